"""Values of the options about media: such as are taken, with what becomes of them, and bad ones."""

from __future__ import annotations

from typing import Any

TAKEN: dict[str, list[Any]] = {
    "limit_mm_per_prompt": [
        ({"image": 4}, {"image": 4}),
        ({"image": {"count": 2, "width": 64}, "audio": 0}, {"image": 2, "audio": 0}),
    ],
    "language_model_only": [(True, True)],
    "allowed_local_media_path": [("/data", "/data"), ("", None)],
    "allowed_media_domains": [(["a.example"], ("a.example",))],
    "mm_processor_kwargs": [({"max_pixels": 9}, {"max_pixels": 9})],
    "interleave_mm_strings": [(True, True)],
    "enable_mm_embeds": [(True, True)],
}
BAD: dict[str, list[Any]] = {
    "limit_mm_per_prompt": [4, {"smell": 1}, {"image": -1}, {"image": True}, {"image": "2"}],
    "language_model_only": [1],
    "allowed_local_media_path": [3, "a\0b"],
    "allowed_media_domains": ["a.example", [3]],
    "mm_processor_kwargs": [[]],
    "interleave_mm_strings": ["yes"],
    "enable_mm_embeds": [1],
}
