"""Renders the tables of docs/server.md from the code: `python -m docs.render_server`."""

from __future__ import annotations

from pathlib import Path

from quire.openai_api.field import Field
from quire.openai_api.fields import (
    CHAT,
    CLASSIFY,
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    POOLING,
    RERANK,
    RERANKS,
    RESPONSES,
    SCORE,
    TABLE,
)
from quire.openai_api.form_fields import FORMS, TRANSCRIPTIONS, TRANSLATIONS

PAGE = Path(__file__).with_name("server.md")
BEGIN, END = "<!-- fields: python -m docs.render_server -->\n", "<!-- end of fields -->\n"
_SHORT = {
    CHAT: "chat",
    COMPLETIONS: "completions",
    RESPONSES: "responses",
    MESSAGES: "messages",
    EMBEDDINGS: "embeddings",
    RERANK: "rerank",  # the same at its other paths
    SCORE: "score",
    CLASSIFY: "classify",
    POOLING: "pooling",
}
_SHORT_FORMS = {TRANSCRIPTIONS: "transcriptions", TRANSLATIONS: "translations"}
_SAME_AS = RERANKS[1:]


def tables() -> str:
    """A table for each kind of field; one that means the same in several bodies has one line."""
    parts = []
    for kind in ("honoured", "moot", "refused"):
        found: dict[tuple[str, str, str], list[str]] = {}
        for endpoint, fields in TABLE.items():
            for field in fields.values():
                if field.kind == kind and endpoint not in _SAME_AS:
                    found.setdefault(_key(field), []).append(_SHORT[endpoint])
        rows = [
            f"| `{name}` | {_bodies(where)} | {value} | {why} |"
            for (name, value, why), where in found.items()
        ]
        head = f"### {kind.capitalize()}\n\n| field | of | is | |\n|---|---|---|---|\n"
        parts.append(head + "\n".join(rows) + "\n")
    return "\n".join([*parts, _forms()])


def _forms() -> str:
    """A table of its own: few of their fields are those of other bodies."""
    found: dict[tuple[str, ...], list[str]] = {}
    for endpoint, fields in FORMS.items():
        for field in fields.values():
            found.setdefault((*_key(field), field.kind), []).append(_SHORT_FORMS[endpoint])
    rows = [
        f"| `{name}` | {', '.join(where)} | {value} | {kind} | {why} |"
        for (name, value, why, kind), where in found.items()
    ]
    head = "### Forms, beside their `file`\n\n| field | of | is | | |\n|---|---|---|---|---|\n"
    return head + "\n".join(rows) + "\n"


def _bodies(where: list[str]) -> str:
    return "all" if len(where) == len(_SHORT) else ", ".join(where)


def _key(field: Field) -> tuple[str, str, str]:
    return field.name, f"{field.value}; required" if field.required else field.value, field.why


def rendered(page: str) -> str:
    """The page with its tables as they are in the code."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
