from __future__ import annotations

from collections.abc import Iterator

import pytest

from quire.grammar.compiler import GrammarCompiler
from quire.inputs.tokenizer import Tokenizer
from tests.grammar.walking import Walker
from tests.inputs.makers import train_byte_bpe, train_sentencepiece

NAMED = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
# More ids than the tokenizer has, as models pad them.
PADDING = 70


@pytest.fixture(scope="session")
def byte_bpe() -> Tokenizer:
    return Tokenizer(train_byte_bpe(digits=False), special_tokens=NAMED)


@pytest.fixture(scope="session")
def sentencepiece() -> Tokenizer:
    return Tokenizer(train_sentencepiece(), special_tokens=NAMED)


@pytest.fixture(scope="session")
def vocab_size(byte_bpe: Tokenizer) -> int:
    return byte_bpe.vocab_size + PADDING


@pytest.fixture(scope="session")
def compiler(byte_bpe: Tokenizer, vocab_size: int) -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(byte_bpe, vocab_size=vocab_size, eos_ids=byte_bpe.eos_ids, num_lexers=2)
    made.warm_up().result()
    yield made
    made.close()


@pytest.fixture(scope="session")
def walker(byte_bpe: Tokenizer, vocab_size: int) -> Walker:
    return Walker(byte_bpe, vocab_size)
