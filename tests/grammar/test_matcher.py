"""Matchers: masks agree with brute force, forks go their own ways, forced tokens are the
tokenizer's, and one row's trouble stays its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from quire.errors import GrammarFailed
from quire.grammar.compiler import GrammarCompiler
from quire.grammar.limits import GrammarLimits
from quire.grammar.matcher import GrammarMatcher
from quire.inputs.tokenizer import Tokenizer
from quire.params.structured import StructuredOutputsParams
from tests.grammar.schemas import corpus
from tests.grammar.walking import Walker, allowed_ids, new_bits


class Language:
    """Texts that begin or are a text of the language, by trying: no grammar, no automaton."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = {text.encode() for text in texts}
        self._starts = {text[:end] for text in self._texts for end in range(len(text) + 1)}

    def begins(self, text: bytes) -> bool:
        return text in self._starts

    def holds(self, text: bytes) -> bool:
        return text in self._texts

    def is_forced(self, text: bytes) -> bool:
        """Whether one single byte can follow, and the text cannot end."""
        nexts = sum(self.begins(text + bytes([byte])) for byte in range(256))
        return nexts == 1 and not self.holds(text)


def brackets(depth: int) -> list[str]:
    """Balanced brackets of at most `depth` pairs in all."""
    found = [""]
    for _ in range(depth):
        found += [f"({a}){b}" for a in found for b in found if len(a) + len(b) <= 2 * depth - 2]
        found = sorted(set(found))
    return [text for text in found if len(text) <= 2 * depth]


def repeated(alphabet: str, low: int, high: int) -> list[str]:
    counts = range(low, high + 1)
    return ["".join(p) for n in counts for p in itertools.product(alphabet, repeat=n)]


SMALL: dict[str, tuple[StructuredOutputsParams, list[str]]] = {
    "letters": (StructuredOutputsParams(regex="[ab]{1,3}"), repeated("ab", 1, 3)),
    "digits": (StructuredOutputsParams(regex=r"\d{2}"), repeated("0123456789", 2, 2)),
    "unicode": (StructuredOutputsParams(regex="[äöü人]{1,2}"), repeated("äöü人", 1, 2)),
    "choices": (
        StructuredOutputsParams(choice=["the", "then", "The", "over", "我们", "世界", "é"]),
        ["the", "then", "The", "over", "我们", "世界", "é"],
    ),
    "integers": (
        StructuredOutputsParams(json={"type": "integer", "minimum": -3, "maximum": 112}),
        [*map(str, range(-3, 113)), "-0"],  # which JSON allows
    ),
    "values": (
        StructuredOutputsParams(
            json={"enum": [True, None, 17, "the fox", [1]]}, disable_any_whitespace=True
        ),
        ["true", "null", "17", '"the fox"', "[1]"],
    ),
    "array": (
        StructuredOutputsParams(
            json={"type": "array", "items": {"enum": [1, 12]}, "maxItems": 2},
            disable_any_whitespace=True,
        ),
        ["[]", "[1]", "[12]", "[1,1]", "[1,12]", "[12,1]", "[12,12]"],
    ),
    "words": (
        StructuredOutputsParams(grammar='start: ("foo" | "the" | "ba"){1,2}'),
        [a + b for a in ("foo", "the", "ba") for b in ("", "foo", "the", "ba")],
    ),
}


def states(matcher: GrammarMatcher, vocab_size: int, ends: set[int]) -> Iterator[list[int]]:
    """Every reachable list of tokens, breadth first, up to some hundreds."""
    queue: list[tuple[list[int], GrammarMatcher]] = [([], matcher)]
    for taken, here in queue:
        yield taken
        if here.is_stopped or len(queue) > 300:
            continue
        for token in allowed_ids(here, vocab_size).tolist():
            if token not in ends:
                child = here.fork()
                assert child.accept(token)
                queue.append(([*taken, token], child))


@pytest.mark.parametrize("name", SMALL)
def test_masks_agree_with_trying_every_token(
    name: str, compiler: GrammarCompiler, byte_bpe: Tokenizer, vocab_size: int
) -> None:
    params, texts = SMALL[name]
    language = Language(texts)
    ends = set(byte_bpe.eos_ids)
    pieces = byte_bpe.token_bytes.pieces(False, False)
    plain = [i for i in range(byte_bpe.vocab_size) if i not in byte_bpe.special_ids]
    grammar = compiler.compile(params)
    checked = 0
    for taken in states(grammar.matcher(), vocab_size, ends):
        matcher = grammar.matcher()
        assert all(matcher.accept(token) for token in taken)
        text = b"".join(pieces[i] for i in taken)
        expected = {i for i in plain if pieces[i] and language.begins(text + pieces[i])}
        expected |= ends if language.holds(text) else set()
        found = set(allowed_ids(matcher, vocab_size).tolist())
        if language.is_forced(text):  # then only the tokenizer's own spelling of it remains
            assert found
            assert found <= expected
        else:
            assert found == expected, (text, found ^ expected)
        assert matcher.is_complete == language.holds(text)
        checked += 1
    assert checked > 5


def test_brackets_agree_with_counting_them(
    compiler: GrammarCompiler, byte_bpe: Tokenizer, vocab_size: int
) -> None:
    grammar = compiler.compile(StructuredOutputsParams(grammar='start: b\nb: ("(" b ")")*'))
    for text in brackets(3):
        matcher = grammar.matcher()
        assert all(matcher.accept(byte_bpe.backend.token_to_id(char)) for char in text)
        assert matcher.is_complete
        assert not matcher.accept(byte_bpe.backend.token_to_id(")"))


def test_padded_ids_are_never_allowed(
    compiler: GrammarCompiler, byte_bpe: Tokenizer, vocab_size: int
) -> None:
    """Not even where a grammar asks for any token at all."""
    for grammar in ("start: /(?s:.)*/", "start: <[*]>", f"start: <[0-{vocab_size - 1}]>"):
        matcher = compiler.compile(StructuredOutputsParams(grammar=grammar)).matcher()
        ids = allowed_ids(matcher, vocab_size)
        assert len(ids) > 500
        assert ids.max() < byte_bpe.vocab_size
        assert not any(matcher.try_accept(i) for i in range(byte_bpe.vocab_size, vocab_size))


def test_forks_are_independent(compiler: GrammarCompiler, walker: Walker, vocab_size: int) -> None:
    for _, schema in corpus(28):
        grammar = compiler.compile(StructuredOutputsParams(json=schema))
        trunk = grammar.matcher()
        prefix = walker.walk(trunk.fork(), 1).token_ids[:6]
        assert all(trunk.accept(token) for token in prefix)
        before = allowed_ids(trunk, vocab_size)
        branches = [walker.walk(trunk.fork(), seed).text for seed in range(4)]
        assert np.array_equal(allowed_ids(trunk, vocab_size), before)
        alone = grammar.matcher()
        assert all(alone.accept(token) for token in prefix)
        assert [walker.walk(alone.fork(), seed).text for seed in range(4)] == branches


@pytest.mark.parametrize("kind", ["byte_bpe", "sentencepiece"])
def test_forced_tokens_are_the_tokenizers_own(kind: str, request: pytest.FixtureRequest) -> None:
    """Where all of the text is forced, its ids are those of the text encoded after a prompt."""
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    made = GrammarCompiler(tokenizer, vocab_size=tokenizer.vocab_size, eos_ids=tokenizer.eos_ids)
    texts = [
        "The quick brown fox jumps over the lazy dog",
        '{"name": "the price", "raison": [1984, 12.5]}',
        "人工智能正在改变世界",
        "x = (a + b) * c // 🚀 emoji\n\tnext line",
        "déjà vu, naïve cœur",
    ]
    prompt = "Answer:\n"
    before = tokenizer.encode(prompt, False).tolist()
    for text in texts:
        matcher = made.compile(StructuredOutputsParams(choice=[text])).matcher()
        taken: list[int] = []
        while not matcher.is_stopped:
            forced = matcher.forced() or allowed_ids(matcher, tokenizer.vocab_size).tolist()
            for token in forced:
                assert matcher.accept(token)
                taken.append(token)
        whole = tokenizer.encode(prompt + text, False).tolist()
        assert whole[: len(before)] == before
        assert taken == whole[len(before) :]
    made.close()


def test_forcing_changes_no_token(
    compiler: GrammarCompiler, byte_bpe: Tokenizer, vocab_size: int
) -> None:
    """A greedy choice by masks alone is the same as one that takes forced tokens first."""
    rank = np.random.default_rng(0).permutation(vocab_size)
    for _, schema in corpus(56):
        grammar = compiler.compile(StructuredOutputsParams(json=schema))
        outcomes = []
        for forcing in (False, True):
            matcher, taken = grammar.matcher(), list[int]()
            while len(taken) < 120 and not matcher.is_stopped:
                forced = matcher.forced() if forcing else []
                ids = forced[:1] or allowed_ids(matcher, vocab_size).tolist()
                token = min(ids, key=lambda i: int(rank[i]))
                if token in byte_bpe.eos_ids:
                    break
                assert matcher.accept(token)
                taken.append(token)
            outcomes.append(taken)
        assert outcomes[0] == outcomes[1]


def test_the_end(compiler: GrammarCompiler, byte_bpe: Tokenizer, vocab_size: int) -> None:
    [end] = byte_bpe.eos_ids
    matcher = compiler.compile(StructuredOutputsParams(regex="ab?")).matcher()
    assert not matcher.is_complete
    assert matcher.accept(byte_bpe.backend.token_to_id("a"))
    assert matcher.is_complete
    assert not matcher.is_stopped
    assert end in allowed_ids(matcher, vocab_size)
    assert matcher.fork().accept(end)
    assert matcher.accept(byte_bpe.backend.token_to_id("b"))
    assert matcher.is_stopped
    assert matcher.forced() == []
    assert allowed_ids(matcher, vocab_size).tolist() == [end]
    assert matcher.accept(end)


def test_a_token_that_is_not_allowed_ends_the_matcher(
    compiler: GrammarCompiler, byte_bpe: Tokenizer, vocab_size: int
) -> None:
    grammar = compiler.compile(StructuredOutputsParams(regex="ab?"))
    matcher, other = grammar.matcher(), grammar.matcher()
    assert not matcher.accept(byte_bpe.backend.token_to_id("z"))
    assert isinstance(matcher.error, GrammarFailed)
    assert not matcher.is_complete
    for use in (lambda: matcher.fill(new_bits(vocab_size)), matcher.forced, matcher.fork):
        with pytest.raises(GrammarFailed, match="is not allowed after the 0 so far"):
            use()
    assert other.accept(byte_bpe.backend.token_to_id("a"))


def test_masks_of_another_size_are_refused(compiler: GrammarCompiler, vocab_size: int) -> None:
    matcher = compiler.compile(StructuredOutputsParams(regex="a")).matcher()
    with pytest.raises(GrammarFailed, match="words of 32 tokens"):
        matcher.fill(new_bits(vocab_size + 320))
    with pytest.raises(TypeError, match="uint32"):
        matcher.fill(np.zeros(len(new_bits(vocab_size)), np.int64))  # type: ignore[arg-type]


def test_a_lexer_that_fails_one_row_fails_no_other(
    byte_bpe: Tokenizer, walker: Walker, vocab_size: int
) -> None:
    """Rows share a lexer with room for few states: one of them fills it up, and goes on with a
    lexer of its own until that is full as well; the others finish."""
    limits = GrammarLimits(lexer_states=400)
    made = GrammarCompiler(byte_bpe, vocab_size=vocab_size, eos_ids=byte_bpe.eos_ids, limits=limits)
    schema = {"type": "string", "pattern": "^([a-z]{1,30} ){1,30}$"}
    grammar = made.compile(StructuredOutputsParams(json=schema))
    greedy, others = grammar.matcher(), [grammar.matcher() for _ in range(3)]
    quote, letter = (byte_bpe.backend.token_to_id(char) for char in '"a')
    space, bits = byte_bpe.backend.token_to_id("Ġ"), new_bits(vocab_size)
    error = None
    assert greedy.accept(quote)
    for i in range(600):
        try:
            greedy.fill(bits)
        except GrammarFailed as failure:
            error = failure
            break
        assert greedy.accept(space if i % 20 == 19 else letter)
    assert error is not None
    assert "more work for the next one than is allowed" in str(error)
    for other in others:
        for token in (quote, letter, space, quote):
            other.fill(bits)
            assert other.accept(token)
        assert other.is_complete
    assert walker.walk(grammar.matcher(), 0, max_tokens=3).token_ids
    made.close()


@pytest.mark.parametrize("name", ["array", "words", "values", "unicode", "letters"])
def test_what_may_be_tried_is_what_masks_allow(
    name: str, compiler: GrammarCompiler, byte_bpe: Tokenizer, vocab_size: int
) -> None:
    """Where nothing is forced; and what may not come changes nothing."""
    ends, grammar, num_free = set(byte_bpe.eos_ids), compiler.compile(SMALL[name][0]), 0
    for taken in itertools.islice(states(grammar.matcher(), vocab_size, ends), 24):
        matcher = grammar.matcher()
        assert all(matcher.accept(token) for token in taken)
        allowed = set(allowed_ids(matcher, vocab_size).tolist())
        found = {t for t in range(vocab_size) if matcher.fork().try_accept(t)}
        assert not any(matcher.try_accept(t) for t in range(vocab_size) if t not in found)
        assert set(allowed_ids(matcher, vocab_size).tolist()) == allowed
        if forced := matcher.forced():
            assert allowed == {forced[0]} and allowed <= found
        else:
            assert found - ends == allowed - ends
            num_free += 1
    assert num_free
