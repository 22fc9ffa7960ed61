"""Flags of tokenizer_config.json that override tokenizer.json, as in transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

# Generic classes: they use tokenizer.json as it is, and give models token types only if the
# configuration says so.
ANY_VOCABULARY = ("PreTrainedTokenizerFast", "TokenizersBackend")
# Fields of the configuration that classes of BERT's kind use, with their names in the normaliser.
_OF_BERT = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


def follow_flags(backend: Backend, config: Mapping[str, Any]) -> None:
    """Change a tokenizer to what its configuration asks for."""
    from tokenizers.normalizers import BertNormalizer

    backend.encode_special_tokens = config.get("split_special_tokens") is True
    of_any = config.get("tokenizer_class") in ANY_VOCABULARY
    if of_any or not isinstance(backend.normalizer, BertNormalizer):
        return
    flags = json.loads(backend.normalizer.__getstate__())
    said = {to: config[key] for key, to in _OF_BERT.items() if isinstance(config.get(key), bool)}
    if flags != flags | said:
        flags.pop("type")
        backend.normalizer = BertNormalizer(**flags | said)
