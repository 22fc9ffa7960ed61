"""Converts a tokenizer that a caller made with Transformers to a Tokenizer of quire."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from quire.errors import InvalidOption
from quire.inputs.hf_tokenizer import load_hf_tokenizer
from quire.inputs.tokenizer import Tokenizer


def tokenizer_of(given: Any) -> Tokenizer:
    """The same tokenizer, saved and read again: the caller's object is not kept."""
    if getattr(given, "backend_tokenizer", None) is None or not hasattr(given, "save_pretrained"):
        raise InvalidOption(
            f"the tokenizer is a {type(given).__name__}; quire takes the fast ones of "
            "Transformers, over a `tokenizers.Tokenizer`",
            parameter="tokenizer",
            value=type(given).__name__,
        )
    with tempfile.TemporaryDirectory(prefix="quire-tokenizer-") as folder:
        given.save_pretrained(folder)
        return load_hf_tokenizer(Path(folder))
