"""Masks against a second judge: 200 places in a grammar, 300 tokens at each.

The judge (derivatives.py) shares nothing with the grammar engine: regexes become languages over
characters, and so do schemas of a plain kind, written out here by hand. A token is allowed
exactly when the text with it is still the beginning of something in the language.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from quire.grammar.compiler import GrammarCompiler
from quire.grammar.matcher import GrammarMatcher
from quire.inputs.tokenizer import Tokenizer
from quire.params.structured import StructuredOutputsParams
from tests.grammar.derivatives import (
    NOTHING,
    Language,
    after_text,
    either,
    has_empty,
    language,
    literally,
    then,
    times,
)
from tests.grammar.regexes import REGEXES, random_regexes
from tests.grammar.schemas import NAMES, WORDS, Schema, closed
from tests.grammar.walking import ids_in, new_bits

NUM_PLACES, NUM_TOKENS = 200, 300
CHARACTER = (
    r'([^"\\\x00-\x1f\x7f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})'  # of a JSON string, as JSON says
)
# Flags and ends of lines are beyond the judge.
JUDGED = [r for r in (*REGEXES, *random_regexes(140)) if "(?i" not in r and "(?s" not in r]
JUDGED = [r for r in JUDGED if r not in ("a{x", "[a&&b~~c]+", "[[a]+")]


def plain_schema(rng: random.Random, depth: int = 2) -> Schema:
    """A schema of the kind that `schema_language` writes out."""
    kinds = ["const", "enum", "boolean", "null", "integer", "string"]
    kind = rng.choice([*kinds, *(["object", "array"] * 4 if depth else [])])
    if kind == "object":
        names = rng.sample(NAMES, rng.randint(1, 3))
        return closed({name: plain_schema(rng, depth - 1) for name in names})
    if kind == "array":
        low = rng.randint(0, 2)
        items = plain_schema(rng, depth - 1)
        return {"type": "array", "items": items, "minItems": low, "maxItems": low + 2}
    if kind == "integer":
        low = rng.randint(-30, 30)
        return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 40)}
    if kind == "string":
        return {"type": "string", "minLength": rng.randint(0, 2), "maxLength": rng.randint(2, 5)}
    if kind == "const":
        return {"const": rng.choice([*WORDS, 7, True, None])}
    return {"enum": rng.sample(WORDS, 3)} if kind == "enum" else {"type": kind}


def schema_language(schema: Schema) -> Language:
    """Everything that is valid under a plain schema, without white space, names in order."""
    if "const" in schema or "enum" in schema:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        return either(literally(json.dumps(value)) for value in values)
    kind = schema["type"]
    if kind == "integer":
        numbers = range(schema["minimum"], schema["maximum"] + 1)
        zero = [literally("-0")] if 0 in numbers else []
        return either([*(literally(str(n)) for n in numbers), *zero])
    if kind == "string":
        low, high = schema["minLength"], schema["maxLength"]
        quote = literally('"')
        return then(quote, then(times(language(CHARACTER), low, high), quote))
    if kind == "array":
        return array_language(schema)
    if kind == "object":
        made = literally("}")
        for place, (name, inner) in reversed(list(enumerate(schema["properties"].items()))):
            start = literally(("," if place else "{") + json.dumps(name) + ":")
            made = then(then(start, schema_language(inner)), made)
        return made
    return either(
        literally(word) for word in {"boolean": ("true", "false"), "null": ("null",)}[kind]
    )


def array_language(schema: Schema) -> Language:
    item, low, high = schema_language(schema["items"]), schema["minItems"], schema["maxItems"]
    more = then(literally(","), item)
    filled = then(item, times(more, max(low - 1, 0), high - 1))
    inside = filled if low else either([filled, literally("")])
    return then(then(literally("["), inside), literally("]"))


@dataclass(frozen=True)
class Place:
    """A constraint and its language; the seed says how far into it a prefix goes."""

    params: StructuredOutputsParams
    language: Language
    seed: int


def places() -> list[Place]:
    rng = random.Random("places in a grammar")
    made = []
    for number in range(NUM_PLACES):
        params: dict[str, Any]
        if number % 10 < 5:
            params = {"regex": rng.choice(JUDGED)}
            meant = language(params["regex"])
        elif number % 10 < 9:
            params = {"json": plain_schema(rng), "disable_any_whitespace": True}
            meant = schema_language(params["json"])
        else:
            words = [*rng.sample(WORDS, 4), *rng.sample(NAMES, 4), "New York", "New Jersey"]
            params = {"choice": words}
            meant = either(literally(word) for word in words)
        made.append(Place(StructuredOutputsParams(**params), meant, number))
    return made


def texts_of(tokenizer: Tokenizer) -> dict[int, str]:
    """The tokens that are whole characters: the judge knows no bytes."""
    pieces = tokenizer.token_bytes.pieces(False, False)
    special = tokenizer.special_ids
    texts = {}
    for token in range(tokenizer.vocab_size):
        text = pieces[token].decode(errors="replace")
        if text and "\ufffd" not in text and token not in special:
            texts[token] = text
    return texts


def walk_into(
    matcher: GrammarMatcher, texts: dict[int, str], rng: random.Random, vocab_size: int
) -> str:
    """Take a few allowed tokens, and return their text."""
    text = ""
    for _ in range(rng.randint(0, 8)):
        bits = new_bits(vocab_size)
        matcher.fill(bits)
        allowed = [int(i) for i in ids_in(bits) if int(i) in texts]
        if matcher.is_stopped or not allowed:
            break
        token = rng.choice(allowed)
        assert matcher.accept(token)
        text += texts[token]
    return text


@pytest.mark.filterwarnings("ignore:Possible")
@pytest.mark.parametrize("block", range(10))
def test_every_judged_token_is_judged_alike(
    block: int, compiler: GrammarCompiler, byte_bpe: Tokenizer, vocab_size: int
) -> None:
    texts, pieces = texts_of(byte_bpe), byte_bpe.token_bytes.pieces(False, False)
    num_allowed = num_judged = 0
    for place in places()[20 * block : 20 * block + 20]:
        rng = random.Random(place.seed)
        matcher = compiler.compile(place.params).matcher()
        prefix = walk_into(matcher, texts, rng, vocab_size)
        here = after_text(place.language, prefix)
        assert here != NOTHING, f"{place.params} let {prefix!r} be written"
        assert matcher.is_complete == has_empty(here), f"{place.params} after {prefix!r}"
        bits = new_bits(vocab_size)
        matcher.fill(bits)
        allowed = {int(i) for i in ids_in(bits)}
        likely = [t for t in texts if t in allowed]
        chosen = rng.sample(likely, min(len(likely), NUM_TOKENS // 2))
        chosen += rng.sample(list(texts), NUM_TOKENS - len(chosen))
        fits = {t for t in chosen if after_text(here, texts[t]) != NOTHING}
        at = f"{place.params} after {prefix!r}"
        if forced := matcher.forced():
            # Of the ways to spell what must come, the tokenizer's alone is allowed.
            must = b"".join(pieces[t] for t in forced).decode(errors="ignore")
            assert after_text(here, must) != NOTHING, at
            assert allowed == {forced[0]}, at
            assert all(must.startswith(texts[t]) or texts[t].startswith(must) for t in fits), at
        else:
            assert fits == allowed & set(chosen), f"{at}: {_shown(fits ^ allowed, chosen, texts)}"
        num_allowed += len(allowed & set(chosen))
        num_judged += len(chosen)
    assert num_judged >= 20 * NUM_TOKENS
    assert 0.02 < num_allowed / num_judged < 0.9, "both answers are meant to come up"


def _shown(tokens: set[int], chosen: list[int], texts: dict[int, str]) -> list[str]:
    return [texts[t] for t in tokens & set(chosen)][:5]


def test_the_judge_knows_what_python_knows() -> None:
    rng = np.random.default_rng(3)
    import re

    for regex in JUDGED:
        meant = language(regex)
        for _ in range(20):
            text = "".join(rng.choice(list("ab0x-_ é.yesno7")) for _ in range(rng.integers(0, 5)))
            assert has_empty(after_text(meant, text)) == bool(re.fullmatch(regex, text)), regex
