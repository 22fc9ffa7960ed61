"""Renders the table of families in docs/models.md: `python -m docs.render_models`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from quire.families.registry import FAMILIES

PAGE = Path(__file__).with_name("models.md")
BEGIN, END = "<!-- made by docs/render_models.py -->", "<!-- end of families -->"


def render() -> str:
    """The whole page, with the table as the code has it."""
    text = PAGE.read_text(encoding="utf-8")
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    return "\n".join([f"{head}{BEGIN}", *_lines(), f"{END}{tail}"])


def _lines() -> Iterator[str]:
    yield "| family | architectures | GGUF |"
    yield "|---|---|---|"
    for family in sorted(FAMILIES, key=lambda family: family.name):
        architectures = ", ".join(family.architectures)
        gguf = family.gguf or "no"
        if family.gguf and family.gguf_experts:
            gguf += ", with experts"
        yield f"| {family.name} | {architectures} | {gguf} |"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
