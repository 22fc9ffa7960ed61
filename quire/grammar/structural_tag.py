"""Structural tags: free text in which certain tags, once begun, must be finished as told.

Two forms are read, both JSON. The older one:

  {"structures": [{"begin": "<f=add>", "schema": {...}, "end": "</f>"}], "triggers": ["<f="]}

and {"type": "structural_tag", "format": F}, where F is one of

  {"type": "const_string", "value": "..."}         {"type": "any_text"}
  {"type": "json_schema", "json_schema": {...}}    {"type": "regex", "pattern": "..."}
  {"type": "sequence", "elements": [F, ...]}       {"type": "or", "elements": [F, ...]}
  {"type": "tag", "begin": "...", "content": F, "end": "..."}
  {"type": "triggered_tags", "triggers": ["..."], "tags": [tag, ...],
   "at_least_one": false, "stop_after_first": false}
  {"type": "tags_with_separator", "tags": [tag, ...], "separator": ","}

Both become Lark for llguidance, a schema as `%json`. A trigger that is a token of its own in the
vocabulary is asked for as that token, since the model will not spell it letter by letter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any, NoReturn

from quire.errors import InvalidGrammar
from quire.grammar.regex import in_slashes, translated

_MAX_DEPTH = 40
_TEXT = r"/(.|\n)*/"


def structural_tag_to_lark(
    tag: str, *, tokens: Collection[str], json_rule: Callable[[Any], str]
) -> str:
    """The Lark grammar; `tokens` are the vocabulary's added tokens, `json_rule` makes llguidance's
    text of a schema."""
    try:
        value = json.loads(tag)
    except (ValueError, RecursionError) as error:
        raise InvalidGrammar(
            f"structural_tag does not read as JSON: {error}", parameter="structural_tag"
        ) from None
    if not isinstance(value, dict):
        _fail("$", "an object")
    writer = _Writer(frozenset(tokens), json_rule)
    if value.get("type") == "structural_tag":
        body = writer.format(value.get("format"), "$.format", last=True)
    else:
        body = writer.older(value)
    return "\n".join([f"start: {body}", *writer.lines]) + "\n"


def _fail(path: str, rule: str) -> NoReturn:
    raise InvalidGrammar(
        f"structural_tag: {path} must be {rule}; see docs of StructuredOutputsParams",
        parameter="structural_tag",
    )


def _texts(value: Any, path: str) -> list[str]:
    if not isinstance(value, list) or not value:
        _fail(path, "a list of at least one text")
    if not all(isinstance(text, str) and text for text in value):
        _fail(path, "a list of texts, none of them empty")
    return list(value)


def _items(value: Any, path: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        _fail(path, "a list of at least one entry")
    return value


class _Writer:
    """Collects rules; each method returns what stands for its format inside a rule."""

    def __init__(self, tokens: frozenset[str], json_rule: Callable[[Any], str]) -> None:
        self._tokens, self._json_rule = tokens, json_rule
        self._depth = 0
        self.lines: list[str] = []

    def _rule(self, body: str, options: str = "") -> str:
        name = f"r{len(self.lines)}"
        self.lines.append(f"{name}{options}: {body}")
        return name

    def _literal(self, text: str) -> str:
        """The text, with the tokens in it asked for as tokens: "<f>x" -> <f> "x"."""
        for token in sorted(self._tokens, key=len, reverse=True):
            if token and token in text and token.startswith("<") and token.endswith(">"):
                before, _, after = text.partition(token)
                return " ".join(filter(None, (self._literal(before), token, self._literal(after))))
        return json.dumps(text, ensure_ascii=False) if text else ""

    def older(self, value: dict[str, Any]) -> str:
        tags = [
            {
                "type": "tag",
                "begin": tag.get("begin") if isinstance(tag, dict) else None,
                "content": {"type": "json_schema", "json_schema": tag.get("schema")}
                if isinstance(tag, dict)
                else None,
                "end": tag.get("end") if isinstance(tag, dict) else None,
            }
            for tag in _items(value.get("structures"), "$.structures")
        ]
        return self._triggered_tags(
            {"triggers": value.get("triggers"), "tags": tags}, "$", last=True
        )

    def format(self, value: Any, path: str, *, last: bool) -> str:
        """`last`: nothing follows, so free text may run to the end."""
        kinds: dict[str, Callable[..., str]] = {
            "const_string": self._const_string,
            "json_schema": self._json_schema,
            "regex": self._regex,
            "any_text": self._any_text,
            "sequence": self._sequence,
            "or": self._or,
            "tag": self._tag,
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._tags_with_separator,
        }
        kind = value.get("type") if isinstance(value, dict) else None
        if kind not in kinds:
            _fail(f"{path}.type", f"one of {', '.join(kinds)}, not {kind!r}")
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            _fail(path, f"at most {_MAX_DEPTH} deep")
        text = kinds[kind](value, path, last=last)
        self._depth -= 1
        return text

    def _const_string(self, value: dict[str, Any], path: str, *, last: bool) -> str:
        if not isinstance(value.get("value"), str):
            _fail(f"{path}.value", "a text")
        return self._literal(value["value"]) or '""'

    def _json_schema(self, value: dict[str, Any], path: str, *, last: bool) -> str:
        schema = value.get("json_schema")
        if not isinstance(schema, dict | bool):
            _fail(f"{path}.json_schema", "a JSON schema")
        return self._rule(f"%json {self._json_rule(schema)}")

    def _regex(self, value: dict[str, Any], path: str, *, last: bool) -> str:
        if not isinstance(value.get("pattern"), str) or not value["pattern"]:
            _fail(f"{path}.pattern", "a regex")
        return in_slashes(translated(value["pattern"]))

    def _any_text(self, value: dict[str, Any], path: str, *, last: bool) -> str:
        if not last:
            _fail(path, "the last element: free text has no end of its own")
        return _TEXT

    def _sequence(self, value: dict[str, Any], path: str, *, last: bool) -> str:
        elements = _items(value.get("elements"), f"{path}.elements")
        parts = [
            self.format(part, f"{path}.elements[{i}]", last=last and i == len(elements) - 1)
            for i, part in enumerate(elements)
        ]
        return f"({' '.join(parts)})"

    def _or(self, value: dict[str, Any], path: str, *, last: bool) -> str:
        elements = _items(value.get("elements"), f"{path}.elements")
        parts = [
            self.format(part, f"{path}.elements[{i}]", last=last) for i, part in enumerate(elements)
        ]
        return f"({' | '.join(parts)})"

    def _tag(self, value: dict[str, Any], path: str, *, last: bool = False, after: str = "") -> str:
        """A tag whole, or what is left of it `after` its trigger."""
        begin, end = value.get("begin"), value.get("end")
        if not isinstance(begin, str) or not isinstance(end, str):
            _fail(path, "a tag with texts as begin and end")
        content = self.format(value.get("content"), f"{path}.content", last=last and not end)
        parts = [self._literal(begin[len(after) :]), content, self._literal(end)]
        return self._rule(" ".join(filter(None, parts)))

    def _tags_with_separator(self, value: dict[str, Any], path: str, *, last: bool) -> str:
        separator = value.get("separator")
        if not isinstance(separator, str):
            _fail(f"{path}.separator", "a text")
        tags = self._tags(value, path)
        one = self._rule(" | ".join(self._tag(tag, at) for at, tag in tags))
        many = f"{one} ({self._literal(separator)} {one})*"
        return f"({many})" if value.get("at_least_one") else f"({many})?"

    def _tags(self, value: dict[str, Any], path: str) -> list[tuple[str, dict[str, Any]]]:
        tags = _items(value.get("tags"), f"{path}.tags")
        found = []
        for i, tag in enumerate(tags):
            if not isinstance(tag, dict):
                _fail(f"{path}.tags[{i}]", "a tag")
            found.append((f"{path}.tags[{i}]", tag))
        return found

    def _triggered_tags(self, value: dict[str, Any], path: str, *, last: bool) -> str:
        """Free text up to a trigger, then one of the tags that begin with it, and so on."""
        if not last:
            _fail(path, "the last element: the free text around its tags has no end of its own")
        triggers = _texts(value.get("triggers"), f"{path}.triggers")
        by_trigger: dict[str, list[str]] = {}
        for at, tag in self._tags(value, path):
            begin = tag.get("begin")
            own = [t for t in triggers if isinstance(begin, str) and begin.startswith(t)]
            if not own:
                _fail(f"{at}.begin", f"a text that begins with one of the triggers {triggers}")
            trigger = max(own, key=len)
            by_trigger.setdefault(trigger, []).append(self._tag(tag, at, after=trigger))
        calls = []
        for trigger, bodies in by_trigger.items():
            if trigger in self._tokens and trigger.startswith("<") and trigger.endswith(">"):
                head = f"{_TEXT} {trigger}"
            else:
                head = self._rule(f"{_TEXT} {json.dumps(trigger, ensure_ascii=False)}", "[lazy]")
            calls.append(self._rule(f"{head} ({' | '.join(bodies)})"))
        call = f"({' | '.join(calls)})"
        if value.get("stop_after_first"):
            return call if value.get("at_least_one") else f"({call} | {_TEXT})"
        return f"{call}{'+' if value.get('at_least_one') else '*'} {_TEXT}"
