"""Renders the table of families in docs/models.md, and what of its table of classes the registry
says: `python -m docs.render_models`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill

from quire.families.registry import BY_ARCHITECTURE, FAMILIES

PAGE = Path(__file__).with_name("models.md")
BEGIN, END = "<!-- made by docs/render_models.py -->", "<!-- end of families -->"
CLASSES = "<!-- made by tests/fallback -->"


def render() -> str:
    """The whole page, with its tables as the code has them."""
    text = PAGE.read_text(encoding="utf-8")
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    page = "\n".join([f"{head}{BEGIN}", *_lines(), f"{END}{tail}"])
    before, classes = page.split(CLASSES)
    return f"{before}{CLASSES}{_with_native(classes)}"


def _with_native(classes: str) -> str:
    """The table of classes, in which those of a family are native, and how many are run how."""
    lines = [
        f"| {name} | native |  |" if (name := _class_of(line)) in BY_ARCHITECTURE else line
        for line in classes.splitlines()
    ]
    counts = Counter(line.split(" | ")[1] for line in lines if _class_of(line))
    said = ", ".join(f"{count} {how}" for how, count in sorted(counts.items()))
    first = next(i for i, line in enumerate(lines) if line.startswith("| class"))
    version = classes.split("Transformers ")[1].split(",")[0]
    summary = fill(f"Transformers {version}, {counts.total()} classes: {said}.", 100)
    return "\n".join(["", summary, "", *lines[first:], ""])


def _class_of(line: str) -> str:
    """The class of a row of that table; "" for other lines."""
    cells = line.split(" | ")
    is_row = len(cells) > 2 and line.startswith("| ") and cells[0] != "| class"
    return cells[0].removeprefix("| ") if is_row else ""


def _lines() -> Iterator[str]:
    yield "| family | architectures | GGUF |"
    yield "|---|---|---|"
    for family in sorted(FAMILIES, key=lambda family: family.name):
        architectures = ", ".join(family.architectures)
        gguf = ", ".join((family.gguf or "no", *family.gguf_also))
        if family.gguf and family.gguf_experts:
            gguf += ", with experts"
        yield f"| {family.name} | {architectures} | {gguf} |"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
