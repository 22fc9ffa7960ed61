"""Vocabularies in tiktoken's format: merged by rank, with the special tokens of their class."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from quire.errors import CorruptModel, UnsupportedModel
from quire.inputs.hf_tokenizer import load_hf_tokenizer
from tests.inputs.makers import SENTENCES, strings

TEXTS = [*SENTENCES, *strings(100), "漢字とkana, CamelCase HTTPServer 1234567\n\n  x"]
KIMI = {"tokenizer_class": "TikTokenTokenizer", "auto_map": {"AutoTokenizer": ["x.T", None]}}


def tokens_of(texts: list[str], count: int = 200) -> list[bytes]:
    """All bytes, then by length what the texts have most of; and a token that merging never makes,
    since none of its parts but single bytes is a token."""
    seen: dict[bytes, int] = {}
    for text in texts:
        data = text.encode()
        for size in range(2, 8):
            for at in range(len(data) - size + 1):
                seen[data[at : at + size]] = seen.get(data[at : at + size], 0) + 1
    most = sorted(seen, key=lambda token: (-seen[token], token))[:count]
    rest = sorted({*most, b" zqjxv"}, key=lambda token: (len(token), token))
    return [*(bytes([i]) for i in reversed(range(256))), *rest]


def write(directory: Path, tokens: list[bytes], name: str, **config: Any) -> None:
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens)]
    (directory / name).write_text("\n".join(lines) + "\n")
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def merged(word: bytes, ranks: dict[bytes, int]) -> list[int]:
    """The rule of the format: a word that is a token is that token; else of two neighbours those
    that make the token of the lowest rank are joined, until none do."""
    parts = [word] if word in ranks else [bytes([byte]) for byte in word]
    while True:
        joined = [ranks.get(a + b, len(ranks)) for a, b in zip(parts, parts[1:], strict=False)]
        if not joined or min(joined) == len(ranks):
            return [ranks[part] for part in parts]
        at = joined.index(min(joined))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@pytest.mark.parametrize("name", ["tiktoken.model", "tokenizer.model", "kimi.tiktoken"])
def test_words_are_merged_by_rank(name: str, tmp_path: Path) -> None:
    tokens = tokens_of(TEXTS)
    write(tmp_path, tokens, name, **KIMI)
    tokenizer = load_hf_tokenizer(tmp_path)
    ranks = {token: rank for rank, token in enumerate(tokens)}
    for text in [*TEXTS, "a zqjxv"]:
        words = tokenizer.backend.pre_tokenizer.pre_tokenize_str(text)
        cut = [text[begin:end].encode() for _, (begin, end) in words]
        expected = [rank for word in cut for rank in merged(word, ranks)]
        assert tokenizer.encode(text).tolist() == expected
        assert tokenizer.decode(expected) == text
    assert ranks[b" zqjxv"] in tokenizer.encode("a zqjxv").tolist()


def test_kimi_has_its_special_tokens_from_the_configuration(tmp_path: Path) -> None:
    tokens = tokens_of(TEXTS)
    first = len(tokens)
    listed = {str(first + 1): {"content": "[EOS]"}, str(first + 4): {"content": "<|im_end|>"}}
    write(
        tmp_path, tokens, "tiktoken.model", **KIMI, added_tokens_decoder=listed, eos_token="[EOS]"
    )
    tokenizer = load_hf_tokenizer(tmp_path)
    assert tokenizer.encode("[EOS]<|im_end|>").tolist() == [first + 1, first + 4]
    assert tokenizer.eos_ids == (first + 1,)
    assert tokenizer.backend.id_to_token(first) == f"<|reserved_token_{first}|>"


def test_the_first_qwen_has_those_of_its_class(tmp_path: Path) -> None:
    tokens = tokens_of(TEXTS)
    write(tmp_path, tokens, "qwen.tiktoken", tokenizer_class="QWenTokenizer")
    tokenizer = load_hf_tokenizer(tmp_path)
    first = len(tokens)
    assert tokenizer.encode("<|endoftext|><|im_end|><|extra_204|>").tolist() == [
        *(first, first + 2, first + 207)
    ]
    composed, apart = "caf\u00e9", "cafe\u0301"
    assert tokenizer.encode(apart).tolist() == tokenizer.encode(composed).tolist()


def test_a_class_whose_rules_are_in_its_code_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, tokens_of(TEXTS), "hy.tiktoken", tokenizer_class="HYTokenizer")
    with pytest.raises(UnsupportedModel, match=r"hy\.tiktoken .*'HYTokenizer' is not run.*QWen"):
        load_hf_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: lines[:-1] + ["!!! 9"], r"line \d+ is not a token"),
        (lambda lines: [*lines, lines[-1]], r"line \d+ is not a token"),
        (lambda lines: [*lines[:-2], lines[-1]], r"do not count up from 0"),
        (lambda lines: [f"YWJj {lines[0].split()[1]}", *lines[1:]], r"or a byte of the 256 is not"),
    ],
    ids=["no base64", "a rank twice", "a rank missing", "a byte missing"],
)
def test_a_damaged_file_is_refused(change: Any, words: str, tmp_path: Path) -> None:
    write(tmp_path, tokens_of(["abcd"]), "tiktoken.model", **KIMI)
    path = tmp_path / "tiktoken.model"
    path.write_text("\n".join(change(path.read_text().splitlines())))
    with pytest.raises(CorruptModel, match=words):
        load_hf_tokenizer(tmp_path)
