"""Vocabularies that no tokenizer.json holds: SentencePiece's, Mistral's and BERT's own files."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from quire.errors import CorruptModel, QuireError, UnsupportedModel
from quire.inputs.gguf_tokenizer import load_gguf_tokenizer
from quire.inputs.hf_tokenizer import load_hf_tokenizer
from quire.inputs.sentencepiece_file import sentencepiece_metadata
from tests.inputs.makers import SENTENCES, strings

# Pieces that stand for a space or a byte are found in no text here.
TEXTS = [text for text in SENTENCES + strings(200) if "▁" not in text and "<0x" not in text]


def train(path: Path, kind: str, **options: Any) -> Any:
    library = pytest.importorskip("sentencepiece")
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 4),
        model_prefix=str(path.with_suffix("")),
        vocab_size=500,
        hard_vocab_limit=False,
        model_type=kind,
        minloglevel=2,
        **{"normalization_rule_name": "identity", "byte_fallback": True, **options},
    )
    return library.SentencePieceProcessor(model_file=str(path))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize(
    "options",
    [
        {"remove_extra_whitespaces": False},
        {"add_dummy_prefix": False, "byte_fallback": False},
    ],
)
def test_pieces_are_those_of_sentencepiece(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """With nothing beside it: the beginning token is added, and the space before the first word
    where the file says so."""
    oracle = train(tmp_path / "tokenizer.model", kind, **options)
    tokenizer = load_hf_tokenizer(tmp_path)
    rows = [row.tolist() for row in tokenizer.encode_batch(TEXTS)]
    assert rows == [[oracle.bos_id(), *oracle.encode(text)] for text in TEXTS]
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (oracle.bos_id(), (oracle.eos_id(),))
    if "add_dummy_prefix" not in options:
        assert tokenizer.decode_batch(rows) == TEXTS


def test_what_the_configuration_says_of_pieces(tmp_path: Path) -> None:
    oracle = train(tmp_path / "tokenizer.model", "bpe", remove_extra_whitespaces=False)
    said = {
        "tokenizer_class": "LlamaTokenizer",
        "add_bos_token": False,
        "add_eos_token": True,
        "added_tokens_decoder": {"900": {"content": "[INST]", "special": True}},
    }
    added = oracle.get_piece_size()
    for legacy in (True, False):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({**said, "legacy": legacy}))
        tokenizer = load_hf_tokenizer(tmp_path)
        ids = tokenizer.encode("The fox[INST]jumps").tolist()
        behind = oracle.encode("jumps")
        if not legacy:  # the space before a first word is that of the text alone
            behind = tokenizer.encode("xjumps", False).tolist()[-len(behind) :]
            assert tokenizer.decode(ids) == "The foxjumps"
        assert ids[-1] == oracle.eos_id()
        at = ids.index(added)
        assert ids[:at] == oracle.encode("The fox")
        assert tokenizer.decode(ids[at + 1 : -1]) == "jumps"
        assert (ids[at + 1] == oracle.encode("jumps")[0]) is legacy


def test_a_sentencepiece_file_cut_or_changed_anywhere_is_read_or_refused(tmp_path: Path) -> None:
    train(tmp_path / "tokenizer.model", "unigram")
    whole = (tmp_path / "tokenizer.model").read_bytes()
    read = 0
    for at in range(0, len(whole), 97):
        for data in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :]):
            try:
                metadata = sentencepiece_metadata(data, "tokenizer.model")
                read += metadata is not None and bool(load_gguf_tokenizer(metadata).vocab_size)
            except QuireError:
                pass
    assert 0 < read < 2 * len(whole) / 97


def write_tekken(folder: Path, num_special: int = 10) -> None:
    pattern = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"
    names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    sizes = {"num_vocab_tokens": 256, "default_vocab_size": 256 + num_special}
    sizes["default_num_special_tokens"] = num_special
    (folder / "tekken.json").write_text(
        json.dumps(
            {
                "config": {"pattern": pattern, "version": "v3", **sizes},
                "vocab": [
                    {"rank": i, "token_bytes": base64.b64encode(bytes([i])).decode()}
                    for i in range(256)
                ],
                "special_tokens": [
                    {"rank": i, "token_str": name, "is_control": True}
                    for i, name in enumerate(names)
                ],
            }
        )
    )
    config = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    (folder / "config.json").write_text(json.dumps(config))


def test_texts_of_a_tekken_file_begin_and_end_as_mistral_has_it(tmp_path: Path) -> None:
    write_tekken(tmp_path)
    tokenizer = load_hf_tokenizer(tmp_path)
    assert tokenizer.encode("ab").tolist() == [1, 10 + ord("a"), 10 + ord("b")]
    assert tokenizer.encode("<s>a").tolist() == [1, 10 + ord("a")]
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (1, (2,))


def test_a_tekken_file_that_transformers_numbers_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoTokenizer

    # Of a file with as many special tokens less, which is what older releases make of any file.
    (tmp_path / "old").mkdir()
    write_tekken(tmp_path / "old", num_special=5)
    made = AutoTokenizer.from_pretrained(str(tmp_path / "old"))
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: made)
    write_tekken(tmp_path)
    with pytest.raises(UnsupportedModel, match=r"token 107, .* makes \[102\]"):
        load_hf_tokenizer(tmp_path)


def test_a_list_of_words_is_that_of_bert(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    letters = sorted({c for text in TEXTS for c in text.lower() if c.isalnum()})
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{c}" for c in letters)]
    (tmp_path / "vocab.txt").write_text("\n".join([*words, "the", "##ing"]))
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"], "model_type": "bert"}')
    tokenizer, oracle = load_hf_tokenizer(tmp_path), AutoTokenizer.from_pretrained(str(tmp_path))
    rows = [row.tolist() for row in tokenizer.encode_batch(TEXTS)]
    assert rows == [oracle(text)["input_ids"] for text in TEXTS]
    assert rows[0][0] == 2


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model"])
def test_a_pointer_of_git_lfs_is_called_one(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(CorruptModel, match="git lfs pull"):
        load_hf_tokenizer(tmp_path)
