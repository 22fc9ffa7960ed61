"""Structural tags: free text in which certain tags, once begun, must be completed by given rules.

Two forms are read, both JSON. The older one:

  {"structures": [{"begin": "<f=add>", "schema": {...}, "end": "</f>"}], "triggers": ["<f="]}

with or without "type": "structural_tag", and {"type": "structural_tag", "format": F}, where F is
one of

  {"type": "const_string", "value": "..."}         {"type": "any_text"}
  {"type": "json_schema", "json_schema": {...}}    {"type": "regex", "pattern": "..."}
  {"type": "sequence", "elements": [F, ...]}       {"type": "or", "elements": [F, ...]}
  {"type": "tag", "begin": "...", "content": F, "end": "..." or ["...", ...]}
  {"type": "triggered_tags", "triggers": ["..."], "tags": [tag, ...],
   "at_least_one": false, "stop_after_first": false}
  {"type": "tags_with_separator", "tags": [tag, ...], "separator": ",",
   "at_least_one": false, "stop_after_first": false}

Both become Lark for llguidance, a schema as `%json`. A trigger that is a token of the vocabulary is
written as that token, since a model does not spell it letter by letter.

Free text (any_text, and text around triggered tags) runs up to the first place where the end of its
tag is written, or, outside of tags, to the end of the answer. Text and end are one lexeme, so each
format is written together with its end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any, NoReturn

from quire.errors import InvalidGrammar
from quire.grammar.regex import in_slashes, translated

_MAX_DEPTH = 40
_TEXT = r"/(.|\n)*/"
# Fields that are read of each format, besides its type. Any other field could ask for something
# that is not done, so it is refused unless it is empty.
_FIELDS = {
    "const_string": {"value"},
    "json_schema": {"json_schema"},
    "regex": {"pattern"},
    "any_text": set[str](),
    "sequence": {"elements"},
    "or": {"elements"},
    "tag": {"begin", "content", "end"},
    "triggered_tags": {"triggers", "tags", "at_least_one", "stop_after_first"},
    "tags_with_separator": {"tags", "separator", "at_least_one", "stop_after_first"},
}
_SAYS_NOTHING = {"style": "json"}

# The possible ends of a format: one of these texts follows it; none where the answer may end.
Close = tuple[str, ...]


def structural_tag_to_lark(
    tag: str, *, tokens: Collection[str], json_rule: Callable[[Any], str]
) -> str:
    """The Lark grammar. `tokens` are the vocabulary's added tokens; `json_rule` turns a schema into
    text for llguidance."""
    try:
        value = json.loads(tag)
    except (ValueError, RecursionError) as error:
        raise InvalidGrammar(
            f"structural_tag does not read as JSON: {error}", parameter="structural_tag"
        ) from None
    if not isinstance(value, dict):
        _fail("$", "an object")
    writer = _Writer(frozenset(tokens), json_rule)
    if value.get("type") == "structural_tag" and "structures" not in value:
        body = writer.format(value.get("format"), "$.format", ())
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


@lru_cache(maxsize=4)
def _finder(tokens: frozenset[str]) -> re.Pattern[str]:
    """A regex that finds the tokens which Lark can name; of several at one place, the longest."""
    named = sorted(filter(_has_a_name, tokens), key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, named))})" if named else r"((?!))")


def _has_a_name(token: str) -> bool:
    return len(token) > 2 and token.startswith("<") and token.endswith(">")


class _Writer:
    """Collects rules; each method returns the text for its format inside a rule, with the end of
    the format."""

    def __init__(self, tokens: frozenset[str], json_rule: Callable[[Any], str]) -> None:
        self._tokens, self._json_rule = tokens, json_rule
        self._finder = _finder(tokens)
        self._depth = 0
        self.lines: list[str] = []

    def _rule(self, body: str, options: str = "") -> str:
        name = f"r{len(self.lines)}"
        self.lines.append(f"{name}{options}: {body}")
        return name

    def _literal(self, text: str) -> str:
        """The text, with tokens in it written as tokens: "<f>x" -> <f> "x"."""
        pieces = self._finder.split(text)  # text, token, text, token, ..., text
        quoted = [json.dumps(piece, ensure_ascii=False) if piece else "" for piece in pieces]
        quoted[1::2] = pieces[1::2]
        return " ".join(filter(None, quoted))

    def _closed(self, body: str, close: Close) -> str:
        """`body`, followed by the end of its format."""
        if not close:
            return body
        ends = [self._literal(text) for text in close]
        return f"{body} {ends[0]}" if len(ends) == 1 else f"{body} ({' | '.join(ends)})"

    def _free_text(self, close: Close) -> str:
        """Free text up to the first of its ends, and that end."""
        if not close:
            return _TEXT
        return f"({' | '.join(self._text_up_to(end) for end in close)})"

    def _text_up_to(self, end: str) -> str:
        before, *rest = self._finder.split(end, maxsplit=1)
        spelled = f"{_TEXT} {json.dumps(before, ensure_ascii=False)}" if before else _TEXT
        if not rest:
            return self._rule(spelled, "[lazy]")
        # Text cannot contain a token, so the longest text before the token is the right one.
        token, after = rest
        text = f"T{len(self.lines)}"  # upper case: one lexeme
        self.lines.append(f"{text}: {spelled}")
        return " ".join(filter(None, (text, token, self._literal(after))))

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
        return self._triggered_tags({"triggers": value.get("triggers"), "tags": tags}, "$", ())

    def format(self, value: Any, path: str, close: Close) -> str:
        kinds: dict[str, Callable[[dict[str, Any], str, Close], str]] = {
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
        if not isinstance(kind, str) or kind not in kinds:
            _fail(f"{path}.type", f"one of {', '.join(kinds)}, not {kind!r:.80}")
        _check_fields(value, kind, path)
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            _fail(path, f"at most {_MAX_DEPTH} deep")
        text = kinds[kind](value, path, close)
        self._depth -= 1
        return text

    def _const_string(self, value: dict[str, Any], path: str, close: Close) -> str:
        if not isinstance(value.get("value"), str):
            _fail(f"{path}.value", "a text")
        return self._closed(self._literal(value["value"]) or '""', close)

    def _json_schema(self, value: dict[str, Any], path: str, close: Close) -> str:
        schema = value.get("json_schema")
        if not isinstance(schema, dict | bool):
            _fail(f"{path}.json_schema", "a JSON schema")
        return self._closed(self._rule(f"%json {self._json_rule(schema)}"), close)

    def _regex(self, value: dict[str, Any], path: str, close: Close) -> str:
        if not isinstance(value.get("pattern"), str) or not value["pattern"]:
            _fail(f"{path}.pattern", "a regex")
        return self._closed(in_slashes(translated(value["pattern"])), close)

    def _any_text(self, value: dict[str, Any], path: str, close: Close) -> str:
        return self._free_text(close)

    def _sequence(self, value: dict[str, Any], path: str, close: Close) -> str:
        elements = _items(value.get("elements"), f"{path}.elements")
        for i, part in enumerate(elements[:-1]):
            if _ends_in_free_text(part):
                _fail(
                    f"{path}.elements[{i}]",
                    "the last element: free text ends with the tag that it is in, and has no end "
                    "of its own",
                )
        parts = [
            self.format(part, f"{path}.elements[{i}]", close if i == len(elements) - 1 else ())
            for i, part in enumerate(elements)
        ]
        return f"({' '.join(parts)})"

    def _or(self, value: dict[str, Any], path: str, close: Close) -> str:
        elements = _items(value.get("elements"), f"{path}.elements")
        parts = [
            self.format(part, f"{path}.elements[{i}]", close) for i, part in enumerate(elements)
        ]
        return f"({' | '.join(parts)})"

    def _tag(self, value: dict[str, Any], path: str, close: Close, after: str = "") -> str:
        """A whole tag, or the rest of it `after` its trigger."""
        begin, end = value.get("begin"), value.get("end")
        if not isinstance(begin, str) or not isinstance(end, str | list):
            _fail(path, "a tag with a text as begin, and a text or texts as end")
        ends = _texts(end, f"{path}.end") if isinstance(end, list) else [end] * bool(end)
        content = self.format(value.get("content"), f"{path}.content", tuple(ends) or close)
        body = " ".join(filter(None, (self._literal(begin[len(after) :]), content)))
        return self._rule(self._closed(body, close) if ends else body)

    def _tags_with_separator(self, value: dict[str, Any], path: str, close: Close) -> str:
        separator = value.get("separator")
        if not isinstance(separator, str):
            _fail(f"{path}.separator", "a text")
        tags = self._tags(value, path)
        one = self._rule(" | ".join(self._tag(tag, at, ()) for at, tag in tags))
        more = f" ({self._literal(separator)} {one})*" if not value.get("stop_after_first") else ""
        sign = "" if value.get("at_least_one") else "?"
        return self._closed(f"({one}{more}){sign}", close)

    def _tags(self, value: dict[str, Any], path: str) -> list[tuple[str, dict[str, Any]]]:
        """The tags of a format with text around them, so each must have an end of its own."""
        tags = _items(value.get("tags"), f"{path}.tags")
        found = []
        for i, tag in enumerate(tags):
            at = f"{path}.tags[{i}]"
            if not isinstance(tag, dict) or tag.get("type", "tag") != "tag":
                _fail(at, "a tag")
            _check_fields(tag, "tag", at)
            if _ends_in_free_text({**tag, "type": "tag"}):
                _fail(f"{at}.end", "a text, since the content is free text up to it")
            found.append((at, tag))
        return found

    def _triggered_tags(self, value: dict[str, Any], path: str, close: Close) -> str:
        """Free text up to a trigger, then a tag that begins with it, and so on."""
        triggers = set(_texts(value.get("triggers"), f"{path}.triggers"))
        lengths = sorted({len(trigger) for trigger in triggers}, reverse=True)
        by_trigger: dict[str, list[str]] = {}
        for at, tag in self._tags(value, path):
            trigger = _longest_prefix(tag.get("begin"), triggers, lengths)
            if trigger is None:
                _fail(f"{at}.begin", f"a text that begins with one of {path}.triggers")
            by_trigger.setdefault(trigger, []).append(self._tag(tag, at, (), trigger))
        calls = [
            self._rule(f"{self._text_up_to(trigger)} ({' | '.join(bodies)})")
            for trigger, bodies in by_trigger.items()
        ]
        call = f"({' | '.join(calls)})"
        if not value.get("stop_after_first"):
            sign = "+" if value.get("at_least_one") else "*"
            return f"({call}{sign} {self._free_text(close)})"
        closed = self._closed(call, close)
        return closed if value.get("at_least_one") else f"({closed} | {self._free_text(close)})"


def _longest_prefix(text: Any, prefixes: set[str], lengths: list[int]) -> str | None:
    """The longest of the prefixes that the text begins with; `lengths` are theirs, longest first.

    Looked up by length, because there may be thousands of tags with different triggers.
    """
    if not isinstance(text, str):
        return None
    return next((text[:n] for n in lengths if n <= len(text) and text[:n] in prefixes), None)


def _check_fields(value: dict[str, Any], kind: str, path: str) -> None:
    for name, given in value.items():
        known = name == "type" or name in _FIELDS[kind]
        if not known and given and given != _SAYS_NOTHING.get(name):
            _fail(f"{path}.{name}", f"left out: {kind} is followed without it")


def _ends_in_free_text(value: Any) -> bool:
    """Whether a format has no end of its own, so that what follows cannot be told from its text."""
    while isinstance(value, dict):
        kind = value.get("type")
        if kind == "or" and isinstance(value.get("elements"), list):
            return any(map(_ends_in_free_text, value["elements"]))
        if kind == "sequence" and isinstance(value.get("elements"), list) and value["elements"]:
            value = value["elements"][-1]
        elif kind == "tag" and value.get("end") == "":
            value = value.get("content")
        elif kind == "triggered_tags":
            return not (value.get("stop_after_first") and value.get("at_least_one"))
        else:
            return kind == "any_text"
    return False
