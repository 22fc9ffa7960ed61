"""Turns StructuredOutputsParams into the text that llguidance compiles.

Everything that can be checked without llguidance is checked here: texts that cannot be read, that
are too large or too deep, or that must be tried in another process first.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from quire.errors import InvalidGrammar
from quire.grammar.closed import close
from quire.grammar.endless import leave_out_endless
from quire.grammar.equivalents import replace_unsupported
from quire.grammar.gbnf import gbnf_to_lark, is_gbnf
from quire.grammar.limits import GrammarLimits
from quire.grammar.merged import merge_parts
from quire.grammar.regex import in_slashes, one_of, translated
from quire.grammar.schema import (
    has_named_and_others,
    may_compile_slowly,
    prepare,
    read_schema,
    schema_text,
    size,
    walk,
)
from quire.grammar.structural_tag import structural_tag_to_lark
from quire.params.structured import StructuredOutputsConfig, StructuredOutputsParams

# Where JSON allows white space: none, up to two blanks, or a new line with its indentation.
# Without a bound a model may write blanks until its tokens run out.
WHITESPACE = r"[ \t]{1,2}|\r?\n[ \t]{0,20}"

# A string or a regex in Lark; without an end it stops at the end of the line. What was matched is
# never matched again, so that a grammar full of quotes takes no longer than any other.
_LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*+"?|/(?:[^/\\\n]|\\.)++/?')

_ESCAPE = re.compile(
    r"\\[xuU](\{[0-9a-fA-F]{1,8}\}|(?<=x)[0-9a-fA-F]{2}|(?<=u)[0-9a-fA-F]{4})|\\(.)"
)

# A control character without a letter in JSON, in a schema as Python writes it, or in a pattern.
_BY_NUMBER = re.compile(r"\\u00([01]|7f)|\\\\[xuU]|\\\\c")


@dataclass(frozen=True, slots=True)
class SourceKey:
    """The whole content of a request: equal keys share a compiled grammar."""

    kind: str
    text: str
    whitespace: str | None
    closes_everywhere: bool

    @property
    def num_bytes(self) -> int:
        return len(self.text) + len(self.whitespace or "")


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """A grammar before it is compiled.

    `text` is for llguidance; `schema` is the JSON schema in it, if there is one.
    """

    kind: str
    text: str
    needs_trial: bool
    schema: Any = None


def source_key(params: StructuredOutputsParams, config: StructuredOutputsConfig) -> SourceKey:
    """The key of these parameters; fast enough for the thread that adds requests."""
    is_json = params.json is not None or params.json_object or params.structural_tag
    compact = params.disable_any_whitespace or config.disable_any_whitespace
    closed = params.disable_additional_properties or config.disable_additional_properties
    return SourceKey(
        *_kind_and_text(params),
        whitespace=(params.whitespace_pattern or WHITESPACE) if is_json and not compact else None,
        closes_everywhere=bool(is_json and closed),
    )


def _kind_and_text(params: StructuredOutputsParams) -> tuple[str, str]:
    if params.json is not None:
        return "json", schema_text(params.json)
    if params.json_object:
        return "json", '{"type": "object"}'
    if params.choice is not None:
        return "choice", json.dumps(params.choice)
    for kind in ("regex", "grammar", "structural_tag"):
        value = getattr(params, kind)
        if value is not None:
            return kind, value
    raise InvalidGrammar(
        "structured outputs need one of json, regex, choice, grammar, json_object or "
        "structural_tag, and all of them are None",
        parameter="structured_outputs",
    )


def read_source(key: SourceKey, special: Collection[str], limits: GrammarLimits) -> GrammarSource:
    """The grammar in llguidance's form; `special` are the vocabulary's special tokens."""
    _check_text(key, limits)
    source = _read(key, special, limits)
    _check_unicode(key.kind, source.text)  # an escape in JSON or GBNF may be a lone surrogate
    return replace(source, text=_unforced(source)) if _spells(source, special) else source


def _spells(source: GrammarSource, special: Collection[str]) -> bool:
    """Whether some text of the grammar spells out a special token: "<s>" as letters.

    Literals are joined as if they followed each other. A wrong yes costs only a little time.
    """
    # Outside of literals, Lark names tokens that are meant as tokens.
    texts = "".join(literal[1:-1] for literal in _LITERAL.findall(source.text))
    spelled = _ESCAPE.sub(lambda found: _character(*found.groups()), texts)
    return any(token in spelled for token in special)


def _character(in_hex: str | None, plain: str | None) -> str:
    """The character of an escape: \\x{3c}, \\u003c and \\< are all "<"."""
    code = int(in_hex.strip("{}"), 16) if in_hex else 0
    return plain or (chr(code) if code <= sys.maxunicode else "")


def _unforced(source: GrammarSource) -> str:
    """The same grammar without forced tokens: asked to write a text that spells out a special
    token, the tokenizer would answer with that token itself."""
    is_schema = source.schema is not None
    text = f"start: %json {json.dumps(source.schema)}\n" if is_schema else source.text
    return f'%llguidance {{"no_forcing": true}}\n{text}'


def _read(key: SourceKey, special: Collection[str], limits: GrammarLimits) -> GrammarSource:
    if key.kind == "json":
        schema = _schema(read_schema(key.text), key, limits)
        large = len(key.text) > limits.trial_text or size(schema)[0] > limits.trial_nodes
        slow = large or may_compile_slowly(schema)
        needs_trial = slow or key.whitespace not in (None, WHITESPACE)
        text = json.dumps({"grammars": [{"json_schema": schema}]})
        return GrammarSource("json", text, needs_trial, schema)
    if key.kind == "choice":
        text = f"start: {in_slashes(one_of(json.loads(key.text)))}\n"
        return GrammarSource("choice", text, len(text) > limits.trial_text)
    if key.kind == "regex":
        text = f"start: {in_slashes(translated(key.text))}\n"
    elif key.kind == "grammar":
        text = gbnf_to_lark(key.text) if is_gbnf(key.text) else key.text
    else:
        text = structural_tag_to_lark(
            key.text,
            tokens=special,
            json_rule=lambda schema: json.dumps(_schema(schema, key, limits)),
        )
    # A few bytes of regex or Lark may take minutes, and such grammars are rarely many.
    return GrammarSource(key.kind, text, needs_trial=True)


def _check_text(key: SourceKey, limits: GrammarLimits) -> None:
    if len(key.text) > limits.max_text:
        raise InvalidGrammar(
            f"{key.kind} has {len(key.text):,} characters, and at most {limits.max_text:,} are "
            "taken; make it smaller",
            parameter=key.kind,
        )
    _check_unicode(key.kind, key.text)
    _check_unicode("whitespace_pattern", key.whitespace or "")


def _check_unicode(kind: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidGrammar(
            f"{kind} holds half of a surrogate pair, {text[error.start]!r}: no valid Unicode",
            parameter=kind,
        ) from None


def _schema(schema: Any, key: SourceKey, limits: GrammarLimits) -> dict[str, Any]:
    """The schema in llguidance's form, with our options and without options of its own."""
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise InvalidGrammar(
            f"a JSON schema is an object, not {json.dumps(schema)[:40]}", parameter=key.kind
        )
    _, depth = size(schema)
    if depth > limits.max_depth:
        raise InvalidGrammar(
            f"the schema is {depth} brackets deep, and at most {limits.max_depth} are taken; "
            "flatten it, or name its parts in $defs",
            parameter=key.kind,
        )
    num_parts = sum(1 for _ in walk(schema))
    if num_parts > limits.max_parts:
        raise InvalidGrammar(
            f"the schema has {num_parts:,} parts, and at most {limits.max_parts:,} are taken; name "
            "those that are alike in $defs",
            parameter=key.kind,
        )
    merge_parts(schema)
    replace_unsupported(schema)
    close(schema, everywhere=key.closes_everywhere)
    prepare(schema)
    path = leave_out_endless(schema)
    if path is not None:
        raise InvalidGrammar(
            f"unsatisfiable schema: what $ref at {path} requires holds another of itself without "
            "end; make one of its required properties optional",
            parameter=key.kind,
        )
    options: dict[str, Any] = {"whitespace_flexible": False, "lenient": False}
    if key.whitespace is not None:
        options["whitespace_pattern"] = translated(key.whitespace)
    if has_named_and_others(schema) and not _BY_NUMBER.search(json.dumps(schema)):
        # llguidance would take "\\u0061" for another name than "a".
        options["json_allowed_escapes"] = 'nrbtf"\\'
    return {**schema, "x-guidance": {"coerce_one_of": False, **options}}
