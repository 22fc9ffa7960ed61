from __future__ import annotations

from pathlib import Path

import pytest

from quire.inputs.hf_tokenizer import load_hf_tokenizer
from quire.inputs.tokenizer import Tokenizer
from tests.inputs.makers import save, train_byte_bpe, train_sentencepiece

KINDS = ("byte_bpe", "digits", "sentencepiece")


@pytest.fixture(scope="session")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A Hugging Face directory for each kind of tokenizer."""
    root = tmp_path_factory.mktemp("tokenizers")
    return {
        "byte_bpe": save(train_byte_bpe(digits=False), root / "byte_bpe"),
        "digits": save(train_byte_bpe(digits=True), root / "digits"),
        "sentencepiece": save(train_sentencepiece(), root / "sentencepiece"),
    }


@pytest.fixture(scope="session")
def tokenizers_by_kind(directories: dict[str, Path]) -> dict[str, Tokenizer]:
    return {kind: load_hf_tokenizer(path) for kind, path in directories.items()}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tokenizer(kind: str, tokenizers_by_kind: dict[str, Tokenizer]) -> Tokenizer:
    return tokenizers_by_kind[kind]


@pytest.fixture
def byte_bpe(tokenizers_by_kind: dict[str, Tokenizer]) -> Tokenizer:
    return tokenizers_by_kind["byte_bpe"]


@pytest.fixture
def sentencepiece(tokenizers_by_kind: dict[str, Tokenizer]) -> Tokenizer:
    return tokenizers_by_kind["sentencepiece"]
