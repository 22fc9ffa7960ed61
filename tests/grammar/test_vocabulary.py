"""Vocabularies: llguidance has the bytes that we have, whichever way they cross."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from quire.grammar.compiler import GrammarCompiler
from quire.grammar.masks import MaskFiller
from quire.grammar.vocabulary import Vocabulary, open_vocabulary, vocabulary_of
from quire.inputs.tokenizer import Tokenizer
from quire.params.structured import StructuredOutputsParams
from tests.grammar.walking import Walker, ids_in


@pytest.mark.parametrize("kind", ["byte_bpe", "sentencepiece"])
def test_llguidance_has_our_bytes(kind: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    vocabulary = vocabulary_of(tokenizer, tokenizer.vocab_size + 9, tokenizer.eos_ids)
    assert vocabulary.tokenizer_json is not None
    pieces = tokenizer.token_bytes.pieces(False, False)
    as_bytes = replace(
        vocabulary,
        tokenizer_json=None,
        tokens=tuple(pieces[i] for i in range(tokenizer.vocab_size)),
    )
    for one in (vocabulary, as_bytes):
        line = one.to_line()
        assert "\n" not in line and Vocabulary.from_line(line.encode()) == one
        opened = open_vocabulary(one)
        assert opened.vocab_size == tokenizer.vocab_size + 9
        assert opened.eos_tokens == list(tokenizer.eos_ids)
        for i in range(tokenizer.vocab_size):
            # 0xFF is in no UTF-8 text, and llguidance's own mark of a special token.
            assert opened.decode_bytes([i]) == pieces[i].replace(b"\xff", b"")
            assert opened.is_special_token(i) == (i in one.special_ids or pieces[i] == b"\xff")


def words() -> Tokenizer:
    """A tokenizer of whole words with spaces between them, and no bytes at all."""
    names = ["<unk>", "</s>", "▁yes", "▁no", "yes", "no", "▁maybe", "▁", "a", "b"]
    backend = Backend(models.WordLevel({name: i for i, name in enumerate(names)}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    backend.add_special_tokens(["</s>"])
    return Tokenizer(backend, special_tokens={"eos_token": "</s>"})


def test_a_tokenizer_without_bytes_crosses_as_bytes() -> None:
    tokenizer = words()
    vocabulary = vocabulary_of(tokenizer, tokenizer.vocab_size, tokenizer.eos_ids)
    assert vocabulary.tokens is not None
    made = GrammarCompiler(tokenizer, vocab_size=tokenizer.vocab_size, eos_ids=tokenizer.eos_ids)
    walker = Walker(tokenizer, tokenizer.vocab_size)
    for params in (
        StructuredOutputsParams(choice=[" yes", " no", "ab"]),
        StructuredOutputsParams(regex="( yes| no|ab)"),
    ):
        walks = [walker.walk(made.compile(params).matcher(), seed) for seed in range(20)]
        assert {walk.text for walk in walks} == {" yes", " no", "ab"}
    forced = made.compile(StructuredOutputsParams(choice=[" maybe no"])).matcher().forced()
    assert forced[:1] == [tokenizer.backend.token_to_id("▁maybe")]
    made.close()


@pytest.mark.parametrize(
    "params",
    [
        StructuredOutputsParams(choice=["<s></s>"]),
        StructuredOutputsParams(regex="<s></s>"),
        StructuredOutputsParams(json={"const": "a<|im_end|>b</s>"}),
        StructuredOutputsParams(grammar='start: "x</s>" "y"'),
        StructuredOutputsParams(grammar='root ::= "x</s>" "y"'),
    ],
    ids=lambda params: str(next(v for v in (params.choice, params.regex, "json") if v)),
)
def test_special_tokens_are_never_text(
    byte_bpe: Tokenizer, params: StructuredOutputsParams
) -> None:
    """The text "</s>" is spelled with letters; its token would end the answer instead."""
    made = GrammarCompiler(byte_bpe, vocab_size=byte_bpe.vocab_size, eos_ids=byte_bpe.eos_ids)
    walker = Walker(byte_bpe, byte_bpe.vocab_size)
    for seed in range(4):
        matcher = made.compile(params).matcher()
        walk = walker.walk(matcher, seed, forcing=seed % 2 == 0)
        assert walk.ended
        assert "</s>" in walk.text
        assert not byte_bpe.special_ids & set(walk.token_ids)
    made.close()


def test_a_text_without_tokens_for_it_is_a_dead_end() -> None:
    tokenizer = words()
    made = GrammarCompiler(tokenizer, vocab_size=tokenizer.vocab_size, eos_ids=tokenizer.eos_ids)
    matcher = made.compile(StructuredOutputsParams(choice=["noq", "yesq"])).matcher()
    other = made.compile(StructuredOutputsParams(choice=["noa", "yesb"])).matcher()
    bits = np.zeros((2, 1), np.uint32)
    filler = MaskFiller(num_threads=1)
    assert filler.fill([matcher, other], bits) == {}
    for row in (matcher, other):
        assert row.accept(tokenizer.backend.token_to_id("no"))
    failed = filler.fill([matcher, other], bits)
    assert list(failed) == [0]
    assert "a dead end: no token can follow the 1 so far" in str(failed[0])
    assert ids_in(bits[1]).tolist() == [tokenizer.backend.token_to_id("a")]
    filler.close()
    made.close()
