"""Turns a row into a request for the engine: a prompt, a conversation, or a context with endings.

Parts that are the same for all rows (system message, examples) are sent to the engine once, as a
Preamble.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from quire.jobs.input.media import MediaCells
from quire.jobs.input.plain import as_text
from quire.jobs.input.rows import BadRow
from quire.jobs.input.strict_json import parse
from quire.jobs.input.templates import RowTemplate

if TYPE_CHECKING:
    from quire.jobs.store.manifest import Manifest

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Preamble:
    """The part of every conversation before the row's own prompt."""

    system: str | None = None
    few_shot: tuple[tuple[str, str], ...] = ()

    def messages(self, prompt: str) -> list[Message]:
        """A conversation that ends with the prompt."""
        turns: list[Message] = []
        if self.system is not None:
            turns.append({"role": "system", "content": self.system})
        for question, answer in self.few_shot:
            turns.append({"role": "user", "content": question})
            turns.append({"role": "assistant", "content": answer})
        return [*turns, {"role": "user", "content": prompt}]

    def before(self, messages: list[Message]) -> list[Message]:
        """The conversation of a column with our system message, unless it has its own."""
        first = messages[0] if messages else None
        has_own = isinstance(first, Mapping) and first.get("role") == "system"
        if self.system is None or has_own:
            return messages
        return [{"role": "system", "content": self.system}, *messages]

    def text(self, prompt: str) -> str:
        """One text for a model without a chat template; parts are a blank line apart."""
        parts = [] if self.system is None else [self.system]
        parts += [f"{question} {answer}" for question, answer in self.few_shot]
        return "\n\n".join([*parts, prompt])


class PromptMaker:
    """Makes the prompt of each row; raises BadRow for a row that no prompt can be made of."""

    def __init__(
        self,
        *,
        prompt: str | None,
        messages: str | None = None,
        continuations: str | tuple[str, ...] | None = None,
        schema_column: str | None = None,
        media: MediaCells | None = None,
        lora: Mapping[str, str] | None = None,
        lora_column: str | None = None,
    ) -> None:
        """`lora`: adapters by name, with what their files hold."""
        self._media = media
        self._messages, self._schema = messages, schema_column
        self._lora, self._lora_column = lora or {}, lora_column
        self._prompt = None if prompt is None else RowTemplate(prompt, "--prompt")
        self._column = continuations if isinstance(continuations, str) else None
        listed = () if isinstance(continuations, str | None) else continuations
        self._endings = [RowTemplate(each, "--continuations") for each in listed]

    def ask(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """{"prompt"} or {"messages"}, "continuations" where endings are to be scored, "schema"
        where the row has its own, "images", "sounds" and "videos" where it has some, "lora" where
        an adapter answers."""
        asked: dict[str, Any] = (
            {} if self._schema is None else {"schema": _schema(row, self._schema)}
        )
        if self._media is not None:
            asked |= self._media.of(row)
        if (name := self._adapter(row)) is not None:
            # With a digest of its files: another adapter makes it another row.
            asked["lora"] = [name, self._lora[name]]
        if self._messages is not None:
            return {**asked, "messages": _conversation(row, self._messages)}
        if self._prompt is not None:
            asked["prompt"] = self._prompt.render(row)
        if self._column is not None:
            asked["continuations"] = _endings(row, self._column)
        elif self._endings:
            asked["continuations"] = [ending.render(row) for ending in self._endings]
        return asked

    def _adapter(self, row: Mapping[str, Any]) -> str | None:
        """The one adapter, or the one that the row's column names; a row may name none."""
        if self._lora_column is None:
            return next(iter(self._lora), None)
        if self._lora_column not in row:
            raise BadRow("missing_column", f"the row has no column {self._lora_column!r}")
        name = row[self._lora_column]
        if name in (None, ""):
            return None
        if not isinstance(name, str) or name not in self._lora:
            known = ", ".join(map(repr, self._lora))
            raise BadRow(
                "unknown_adapter",
                f"column {self._lora_column!r} names the adapter {name!r}; --lora has {known}",
            )
        return name


def _value(row: Mapping[str, Any], column: str) -> Any:
    if column not in row:
        raise BadRow("missing_column", f"the row has no column {column!r}")
    value = row[column]
    if not isinstance(value, str):
        return value
    try:  # a CSV file holds lists as JSON text
        return parse(value)
    except ValueError as error:
        raise BadRow(
            "malformed_row", f"column {column!r} is text, and does not read as JSON: {error}"
        ) from None


def _conversation(row: Mapping[str, Any], column: str) -> list[Message]:
    found = _value(row, column)
    if not isinstance(found, list):
        raise BadRow(
            "invalid_prompt",
            f"column {column!r} holds {_kind(found)}; a conversation is a list of messages such "
            'as {"role": "user", "content": "..."}',
        )
    return found


def _endings(row: Mapping[str, Any], column: str) -> list[str]:
    found = _value(row, column)
    if not isinstance(found, list) or not found or not all(isinstance(e, str) for e in found):
        raise BadRow(
            "invalid_prompt", f"column {column!r} holds {_kind(found)}; continuations are texts"
        )
    return found


def _schema(row: Mapping[str, Any], column: str) -> Any:
    found = _value(row, column)
    if not isinstance(found, dict | bool):
        raise BadRow(
            "invalid_grammar", f"column {column!r} holds {_kind(found)}; a JSON schema is an object"
        )
    return found


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


@lru_cache(maxsize=8)  # a template is compiled once, not for each row of a report
def _maker(
    prompt: str | None, messages: str | None, continuations: str | tuple[str, ...] | None
) -> PromptMaker:
    return PromptMaker(prompt=prompt, messages=messages, continuations=continuations)


def rendered_prompt(manifest: Manifest, row: Mapping[str, Any]) -> str:
    """What was asked for this row, as a person reads it: speakers and texts, without the tokens
    that a model's chat template puts between them."""
    maker = _maker(manifest.prompt, manifest.messages, manifest.continuations)
    preamble = Preamble(manifest.system, manifest.few_shot)
    try:
        asked = maker.ask(row)
    except BadRow as error:
        return f"[{error.message}]"
    if "prompt" in asked and (manifest.chat is False or "continuations" in asked):
        return preamble.text(asked["prompt"])
    messages = asked.get("messages")
    turns = preamble.before(messages) if messages else preamble.messages(asked.get("prompt", ""))
    if len(turns) == 1 and messages is None:
        return str(turns[0]["content"])
    return "\n\n".join(f"{_role(turn)}: {_content(turn)}" for turn in turns)


def _role(turn: Any) -> str:
    return str(turn.get("role")) if isinstance(turn, Mapping) else "?"


def _content(turn: Any) -> str:
    content = turn.get("content") if isinstance(turn, Mapping) else turn
    if isinstance(content, str):
        return content
    return json.dumps(content, ensure_ascii=False, default=as_text)
