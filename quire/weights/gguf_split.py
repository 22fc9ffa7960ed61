"""Names of a GGUF model in parts: stem-00001-of-00003.gguf, stem-00002-of-00003.gguf, ..."""

from __future__ import annotations

import re

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def part_names(name: str) -> list[str]:
    """The names of all parts of a file's model, by its own name; just itself if it is whole."""
    found = _PART.fullmatch(name)
    if found is None or not 1 <= int(found["number"]) <= int(found["count"]):
        return [name]
    stem, count = found["stem"], int(found["count"])
    return [f"{stem}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
