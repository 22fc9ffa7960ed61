"""Values of other types and sizes than a model's files should hold, and where to put them."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from quire.inputs.tokenizer import Tokenizer as Ours
from tests.inputs.makers import train_byte_bpe, train_sentencepiece

# What a GGUF file can hold for one key.
GGUF_VALUES: list[Any] = [
    *(0, 1, -1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, -(2**63), True, False),
    *(0.5, math.nan, math.inf, -math.inf, 1e308, "", "x", "1", "\0", "a" * 10_000),
    *([], ["a"], ["", "a"], ["a", "a"], np.zeros(0, np.int32), np.array([1, 2], np.int32)),
    *(np.array([1.5, math.nan]), np.array([2**64 - 1], np.uint64), np.array([True])),
]
JSON_VALUES: list[Any] = [
    *(None, 0, 1, -1, 2**31, 2**32 - 1, 2**63, 10**400, True, False, 0.5, math.nan, math.inf),
    *("", "x", "1", "\ud800", "\U0001f600", "a" * 10_000, "(", "(?=a)", "(a+)+$"),
    *([], [1], ["a"], [None], [[]], [{}], [["a", "b"]], {}, {"a": 1}, {"content": 1}, {"1": 2}),
    *({"type": "x"}, {"Regex": "("}, {"Regex": ""}, {"String": ""}),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of a JSON value, the first few of each object or list."""
    yield path
    if isinstance(value, dict):
        for key in list(value)[:12]:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(min(2, len(value))):
            yield from places(value[index], (*path, index))


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy of `value` with `new` at `path`."""
    if not path:
        return new
    changed = copy.copy(value)
    changed[path[0]] = put(value[path[0]], path[1:], new)
    return changed


def tokenizer_files() -> dict[str, Any]:
    """tokenizer.json of five kinds, which between them hold most parts that the library has."""
    pieces = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    pieces.normalizer = normalizers.BertNormalizer()
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pieces.decoder = decoders.WordPiece()
    unigram = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("▁b", -2.0)], 0, True))
    unigram.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Strip(), normalizers.Replace(Regex("a+"), "b")]
    )
    unigram.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation(), pre_tokenizers.Digits()]
    )
    unigram.decoder = decoders.Sequence(
        [decoders.Metaspace(), decoders.CTC(), decoders.Strip(" ", 1, 1), decoders.Fuse()]
    )
    unigram.post_processor = processors.RobertaProcessing(("a", 1), ("▁b", 2))
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="b"))
    words.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+|\s"), "isolated")
    words.enable_truncation(5)
    words.enable_padding()
    made = [train_byte_bpe(False), train_sentencepiece(), pieces, unigram, words]
    names = ["byte_bpe", "sentencepiece", "word_piece", "unigram", "word_level"]
    return {n: json.loads(t.to_str()) for n, t in zip(names, made, strict=True)}


def use(tokenizer: Ours) -> None:
    """Everything that a run asks of a tokenizer."""
    ids = tokenizer.encode("hello <s> é\U0001f600 12 b")
    tokenizer.decode(ids)
    tokenizer.decode_batch([ids, range(tokenizer.vocab_size)], skip_special_tokens=False)
    for token in range(0, tokenizer.vocab_size, 97):
        tokenizer.token_text(token)
        tokenizer.token_bytes.first(token, tokenizer.token_bytes.pieces(True, True)[token])


def main(directory: Path, every: int) -> None:
    """Try every n-th changed tokenizer.json; print how each went, and what it was if it ends us."""
    from quire.errors import QuireError
    from quire.inputs.hf_tokenizer import load_hf_tokenizer

    number = 0
    for name, whole in tokenizer_files().items():
        for path in places(whole):
            for value in JSON_VALUES:
                number += 1
                if number % every:
                    continue
                changed = json.dumps(put(whole, path, value))
                (directory / "tokenizer.json").write_text(changed, encoding="utf-8")
                print(f"{name} {path} {value!r:.40}", end="\t", flush=True)
                try:
                    use(load_hf_tokenizer(directory))
                    print("fine", flush=True)
                except QuireError as error:
                    print(type(error).__name__, flush=True)
                except BaseException as error:  # what this is about
                    print("raw", type(error).__name__, str(error)[:80], flush=True)


if __name__ == "__main__":
    import sys

    main(Path(sys.argv[1]), int(sys.argv[2]))
