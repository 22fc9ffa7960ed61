"""The metadata of `vllm` for importlib.metadata, where that is another name of quire."""

from __future__ import annotations

from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

# The release whose names quire has: the version of `vllm` that libraries see.
VLLM_VERSION = "0.25.0"
_TEXTS = {
    "METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}\n",
    "top_level.txt": "vllm\n",
}


class VllmMetadata(Distribution):
    """A distribution `vllm` with a name and a version, and no files."""

    def read_text(self, filename: str) -> str | None:
        return _TEXTS.get(filename)

    def locate_file(self, path: Any) -> Any:
        return Path(__file__).parents[1] / path
