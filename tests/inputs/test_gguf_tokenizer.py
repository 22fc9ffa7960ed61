from __future__ import annotations

import random
import re
import time
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers
from transformers.convert_slow_tokenizer import generate_merges

from quire.errors import CorruptModel, UnsupportedModel
from quire.inputs.gguf_tokenizer import load_gguf_tokenizer
from quire.inputs.tokenizer import Tokenizer
from tests.inputs.makers import (
    SENTENCES,
    gguf_metadata,
    strings,
    train_byte_bpe,
    train_sentencepiece,
)

TEXTS = SENTENCES + strings(500, special=True)


def ids_of(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [row.tolist() for row in tokenizer.encode_batch(texts, add_special_tokens=False)]


@pytest.mark.parametrize(("kind", "pre"), [("byte_bpe", "gpt-2"), ("digits", "smollm")])
def test_byte_bpe_equals_the_tokenizer_it_was_made_from(kind: str, pre: str) -> None:
    backend = train_byte_bpe(digits=kind == "digits")
    metadata = gguf_metadata(backend, "gpt2", pre=pre)
    texts = SENTENCES + strings(500, special=True)
    made = ids_of(load_gguf_tokenizer(metadata), texts)
    assert made == [row.ids for row in backend.encode_batch(texts)]


def test_sentencepiece_merges_follow_from_the_scores() -> None:
    backend = train_sentencepiece()
    made = load_gguf_tokenizer(gguf_metadata(backend, "llama"))
    assert [row.tolist() for row in made.encode_batch(TEXTS)] == [
        row.ids for row in backend.encode_batch(TEXTS)
    ]
    rows = made.encode_batch(TEXTS)
    assert made.decode_batch(rows) == backend.decode_batch([row.tolist() for row in rows])


def test_pieces_of_one_score_merge_in_the_order_of_transformers() -> None:
    """Runs of spaces as Mistral's vocabulary has them: one score, ids in no order of length."""
    runs = (2, 4, 8, 3, 16, 7, 5, 6, 12, 9, 11, 13, 15, 10, 14)
    pieces = ["▁", "a", "b", *("▁" * run for run in runs), "ab", "▁a", "ba", "aba"]
    scores = [-1e9 if set(piece) == {"▁"} else -float(i) for i, piece in enumerate(pieces)]
    scores[-2:] = [-7.0, -7.0]
    vocab = {piece: index for index, piece in enumerate(["<unk>", *pieces])}
    merges = generate_merges(vocab, list(zip(pieces, scores, strict=True)))
    expected = Backend(models.BPE(vocab, merges))
    tokenizer = load_gguf_tokenizer(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": list(vocab),
            "tokenizer.ggml.scores": [0.0, *scores],
            "tokenizer.ggml.token_type": [2] + [1] * len(pieces),
            "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.ggml.add_space_prefix": False,
        }
    )
    rng = random.Random(3)
    texts = [" " * run + "ab" for run in range(60)]
    texts += ["".join(rng.choices("  ab", k=rng.randint(1, 80))) for _ in range(200)]
    for text in texts:
        assert list(tokenizer.encode(text)) == expected.encode(text.replace(" ", "▁")).ids, text


def test_sentencepiece_equals_sentencepiece_itself(tmp_path: Path) -> None:
    library = pytest.importorskip("sentencepiece")
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 4),
        model_prefix=str(tmp_path / "m"),
        vocab_size=600,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    oracle = library.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    size = oracle.get_piece_size()
    types = [
        2 if oracle.is_unknown(i) else 3 if oracle.is_control(i) else 6 if oracle.is_byte(i) else 1
        for i in range(size)
    ]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [oracle.id_to_piece(i) for i in range(size)],
        "tokenizer.ggml.scores": np.array([oracle.get_score(i) for i in range(size)], np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.unknown_token_id": np.uint32(oracle.unk_id()),
        "tokenizer.ggml.bos_token_id": np.uint32(oracle.bos_id()),
        "tokenizer.ggml.eos_token_id": np.uint32(oracle.eos_id()),
    }
    tokenizer = load_gguf_tokenizer(metadata)
    texts = [t for t in SENTENCES + strings(500) if "▁" not in t and "<0x" not in t]
    assert ids_of(tokenizer, texts) == [oracle.encode(text) for text in texts]
    assert [tokenizer.decode(oracle.encode(text)) for text in texts] == texts


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "tekken", "gpt-2"])
def test_cutting_rules_equal_those_of_transformers(pre: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    from transformers import AutoTokenizer

    metadata = gguf_metadata(train_byte_bpe(digits=False), "gpt2", pre=pre)
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "llama")
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_uint32(key, value)

    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    oracle = AutoTokenizer.from_pretrained(str(tmp_path), gguf_file="m.gguf")
    # The oracle leaves out Qwen's normal form, so it is given text in it.
    texts = [unicodedata.normalize("NFC", text) for text in TEXTS]
    made = ids_of(load_gguf_tokenizer(metadata), texts)
    assert made == [oracle(text, add_special_tokens=False)["input_ids"] for text in texts]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("kimi-k2", ["a", " ", " ", "中文", " Test's", " x", "/\n", "123", "45"]),
        (
            "seed-coder",
            ["a", " ", " 中文", " Test", "'s", " x", "/", "\n", "1", "2", "3", "4", "5"],
        ),
        ("tiny_aya", ["a", " ", " 中文", " Test's", " x", "/\n", "12", "345"]),
        ("kanana2", ["a", " ", " 中文", " Test's", " x", "/\n", "123", "45"]),
        ("joyai-llm", ["a", "  ", "中文", " Test", "'s", " x", "/\n", "123", "45"]),
    ],
)
def test_rarer_cutting_rules(pre: str, expected: list[str]) -> None:
    backend = load_gguf_tokenizer(gguf_metadata(train_byte_bpe(False), "gpt2", pre=pre)).backend
    text = "a  中文 Test's x/\n12345"
    cut = [text[slice(*at)] for _, at in backend.pre_tokenizer.pre_tokenize_str(text)]
    assert cut == expected


def test_qwen_text_is_brought_to_its_normal_form() -> None:
    tokenizer = load_gguf_tokenizer(gguf_metadata(train_byte_bpe(False), "gpt2", pre="qwen2"))
    assert ids_of(tokenizer, ["e\u0301"]) == ids_of(tokenizer, ["\u00e9"])


def test_the_default_rule_cuts_marks_and_digits_as_llama_cpp_does() -> None:
    backend = load_gguf_tokenizer(
        gguf_metadata(train_byte_bpe(False), "gpt2", pre="default")
    ).backend
    cut = [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str("it's 12345!? ok")]
    assert cut == ["it", "'", "s", "Ġ", "123", "45", "!?", "Ġok"]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        # Phi-4-mini: by case, with what was left out of a word behind it, three digits at a time.
        ("gpt-4o", ["He", "LLo", "World's", "Ġ", "123", "45", "ĠDON'T", "Ġ//Ċ", "ĠĠ", "Ġok"]),
        # Phi-4: what was left out of a word is a piece of its own.
        ("dbrx", ["HeLLoWorld", "'s", "Ġ", "123", "45", "ĠDON", "'T", "Ġ//Ċ", "ĠĠ", "Ġok"]),
    ],
)
def test_cutting_rules_of_phi_are_those_of_its_tokenizers(pre: str, expected: list[str]) -> None:
    backend = load_gguf_tokenizer(gguf_metadata(train_byte_bpe(False), "gpt2", pre=pre)).backend
    text = "HeLLoWorld's 12345 DON'T //\n   ok"
    assert [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text)] == expected


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("deepseek-llm", "Ab|'|s|Ġ|12345|ĠDON|'|T|Ġ//|Ċ|ĠĠ|Ġgr|Ã¶|ä¸Ń"),
        ("deepseek-coder", "Ab|'|s|Ġ|1|2|3|4|5|ĠDON|'|T|Ġ//|Ċ|ĠĠ|ĠgrÃ¶|ä¸Ń"),
        ("deepseek-v3", "Ab|'s|Ġ|123|45|ĠDON|'T|Ġ//Ċ|ĠĠ|ĠgrÃ¶|ä¸Ń"),
        ("falcon", "Ab|'|s|Ġ|123|45|ĠDON|'|T|Ġ|//|ĊĠĠ|ĠgrÃ¶ä¸Ń"),
        ("glm4", "Ab|'s|Ġ|123|45|ĠDON|'T|Ġ//Ċ|ĠĠ|ĠgrÃ¶ä¸Ń"),
        ("stablelm2", "Ab|'s|Ġ|1|2|3|4|5|ĠDON|'T|Ġ//Ċ|ĠĠ|ĠgrÃ¶ä¸Ń"),
    ],
)
def test_every_family_in_gguf_has_its_cutting_rule(pre: str, expected: str) -> None:
    backend = load_gguf_tokenizer(gguf_metadata(train_byte_bpe(False), "gpt2", pre=pre)).backend
    cut = backend.pre_tokenizer.pre_tokenize_str("Ab's 12345 DON'T //\n   grö中")
    assert "|".join(piece for piece, _ in cut) == expected


def test_the_rule_of_qwen35_is_that_of_its_tokenizer() -> None:
    from transformers.models.qwen3_5.tokenization_qwen3_5 import PRETOKENIZE_REGEX

    from quire.inputs.gguf_cuts import CUTS, Cut

    assert CUTS["qwen35"] == Cut((PRETOKENIZE_REGEX,), nfc=True)


@pytest.fixture(scope="module")
def default_metadata(default_model: Path) -> dict[str, Any]:
    from quire.weights.gguf_file import GgufFile

    return dict(GgufFile(default_model).metadata)


def test_the_default_model_has_the_ids_of_its_tokenizer_json(
    default_metadata: dict[str, Any],
) -> None:
    """Its tokenizer.json says: single digits, then GPT-2's rule, then BPE."""
    started = time.process_time()
    tokenizer = load_gguf_tokenizer(default_metadata)
    took = time.process_time() - started
    started = time.process_time()
    tokens = list(default_metadata["tokenizer.ggml.tokens"])
    merges = [tuple(m.split(" ")) for m in default_metadata["tokenizer.ggml.merges"]]
    oracle = Backend(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    assert took < 4 * (time.process_time() - started)  # little beside what the library takes
    oracle.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    oracle.add_special_tokens([t for t in tokens if t.startswith("<") and t.endswith(">")][:17])
    assert ids_of(tokenizer, TEXTS) == [row.ids for row in oracle.encode_batch(TEXTS)]
    assert tokenizer.decode_batch(tokenizer.encode_batch(SENTENCES)) == SENTENCES
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.vocab_size) == (1, (2,), 49_152)
    assert tokenizer.encode("Hi").tolist() == [26_843]  # no beginning token: the file says so
    assert "<|im_start|>" in str(tokenizer.chat_template)


@pytest.mark.long
def test_the_default_model_has_the_ids_of_transformers(
    default_model: Path, default_metadata: dict[str, Any]
) -> None:
    from transformers import AutoTokenizer

    oracle = AutoTokenizer.from_pretrained(str(default_model.parent), gguf_file=default_model.name)
    tokenizer = load_gguf_tokenizer(default_metadata)
    # The oracle does not split digits. No token of this vocabulary has two ASCII digits or a space
    # before one, so that shows only in other scripts' digits and in spaces before a digit.
    texts = [t for t in SENTENCES + strings(7_000) if not re.search(r"[²½٣]|\s\s[0-9]", t)][:5_000]
    assert len(texts) == 5_000
    assert ids_of(tokenizer, texts) == [oracle(text)["input_ids"] for text in texts]
    hf = tokenizer.hf_tokenizer()
    messages = [{"role": "user", "content": "Name three rivers."}]
    assert hf.apply_chat_template(messages, tokenize=False) == oracle.apply_chat_template(
        messages, tokenize=False
    )


def test_beginning_token_where_the_file_does_not_say() -> None:
    byte, piece = train_byte_bpe(False), train_sentencepiece()
    for metadata, bos in (
        (gguf_metadata(byte, "gpt2", pre="gpt-2"), False),
        (gguf_metadata(byte, "gpt2", pre="llama-bpe"), True),  # Llama 3 was trained with it
        (gguf_metadata(byte, "gpt2", pre="llama-bpe", add_bos_token=False), False),
        (gguf_metadata(piece, "llama"), True),
        (gguf_metadata(piece, "llama", add_bos_token=False), False),
    ):
        tokenizer = load_gguf_tokenizer(metadata)
        assert (tokenizer.encode("hello").tolist()[0] == tokenizer.bos_id) is bos
    both = load_gguf_tokenizer(gguf_metadata(piece, "llama", add_eos_token=True))
    assert both.encode("<s>hello").tolist()[-1] == both.eos_ids[0]
    assert both.encode("<s>hello").tolist().count(both.bos_id or 0) == 1


def test_every_token_that_ends_a_turn_ends_an_answer() -> None:
    backend = train_byte_bpe(False)
    backend.add_special_tokens(["<|eot_id|>", "<|eom_id|>", "<|other|>"])
    tokens = [backend.id_to_token(i) for i in range(backend.get_vocab_size())]
    metadata = gguf_metadata(train_byte_bpe(False), "gpt2", pre="gpt-2")
    size = len(tokens)
    metadata["tokenizer.ggml.tokens"] = tokens
    metadata["tokenizer.ggml.token_type"] = [1, 3, 3, 3, 3] + [1] * (size - 8) + [3] * 3
    metadata["tokenizer.ggml.eom_token_id"] = size - 2
    # </s>, the named <|eom_id|>, then <|im_end|> and <|eot_id|> by their spelling.
    assert load_gguf_tokenizer(metadata).eos_ids == (2, size - 2, 4, size - 3)


def test_space_prefix_can_be_off() -> None:
    metadata = gguf_metadata(train_sentencepiece(), "llama", add_space_prefix=False)
    tokenizer = load_gguf_tokenizer(metadata)
    first = tokenizer.backend.id_to_token(
        tokenizer.encode("hello", add_special_tokens=False).tolist()[0]
    )
    assert not str(first).startswith("▁")
    assert tokenizer.decode(tokenizer.encode(" hello")) == " hello"


def test_user_defined_tokens_are_found_whole_and_stay_in_the_text() -> None:
    metadata = gguf_metadata(train_sentencepiece(), "llama")
    at = metadata["tokenizer.ggml.tokens"].index("<|im_end|>")
    metadata["tokenizer.ggml.token_type"][at] = 4
    tokenizer = load_gguf_tokenizer(metadata)
    ids = tokenizer.encode("a<|im_end|>b")
    assert at in ids and tokenizer.decode(ids) == "a<|im_end|> b"


def test_tokens_with_a_name_are_special_whatever_their_type() -> None:
    metadata = gguf_metadata(train_sentencepiece(), "llama")
    metadata["tokenizer.ggml.token_type"] = [1] * len(metadata["tokenizer.ggml.tokens"])
    tokenizer = load_gguf_tokenizer(metadata)
    assert tokenizer.special_ids == {0, 1, 2}
    text = "<s>a<unk>b</s>"
    assert tokenizer.encode(text).tolist() == tokenizer.hf_tokenizer()(text)["input_ids"][1:]


def test_named_chat_templates_are_kept() -> None:
    metadata = gguf_metadata(train_byte_bpe(False), "gpt2", pre="gpt-2")
    metadata |= {"tokenizer.chat_template": "A", "tokenizer.chat_template.tool_use": "B"}
    assert load_gguf_tokenizer(metadata).chat_templates == {"default": "A", "tool_use": "B"}


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"model": "rwkv"}, UnsupportedModel, "'rwkv'"),
        ({"model": None}, CorruptModel, "tokenizer.ggml.model"),
        ({"pre": "grok-9"}, UnsupportedModel, "'grok-9'"),
        ({"pre": None}, UnsupportedModel, "tokenizer.ggml.pre"),
        ({"merges": None}, CorruptModel, "merges"),
        ({"merges": ["a"]}, CorruptModel, "no pair"),
        ({"merges": ["zz yy"]}, CorruptModel, "merges do not fit"),
        ({"tokens": []}, CorruptModel, "has 0 tokens"),
        ({"tokens": None}, CorruptModel, "tokens"),
        ({"tokens": [1, 2]}, CorruptModel, "array of texts"),
        ({"token_type": [1]}, CorruptModel, "token_type"),
        ({"bos_token_id": 10**6}, CorruptModel, "bos_token_id is 1000000"),
        ({"eos_token_id": -1}, CorruptModel, "eos_token_id"),
    ],
)
def test_bad_metadata_is_named(change: dict[str, Any], error: type[Exception], words: str) -> None:
    metadata = gguf_metadata(train_byte_bpe(False), "gpt2", pre="gpt-2")
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in change.items()}
    with pytest.raises(error, match=words):
        load_gguf_tokenizer(metadata)


def test_repeated_tokens_and_missing_scores_are_named() -> None:
    metadata = gguf_metadata(train_sentencepiece(), "llama")
    with pytest.raises(CorruptModel, match="scores"):
        load_gguf_tokenizer({**metadata, "tokenizer.ggml.scores": None})
    metadata["tokenizer.ggml.tokens"][7] = metadata["tokenizer.ggml.tokens"][6]
    with pytest.raises(CorruptModel, match="tokens 6 and 7"):
        load_gguf_tokenizer(metadata)


def test_the_metadata_is_not_written_to() -> None:
    metadata = gguf_metadata(train_sentencepiece(), "llama")
    metadata["tokenizer.ggml.token_type"][-1] = 4
    before = {key: list(v) if isinstance(v, list) else v for key, v in metadata.items()}
    load_gguf_tokenizer(metadata)
    assert metadata == before
