"""Encoders from GGUF files give what Transformers gives for the directories they were made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertTokenizer

from quire import PoolingParams
from quire.errors import CorruptModel, UnsupportedModel
from quire.inputs.gguf_tokenizer import load_gguf_tokenizer
from tests.pooling.gguf_encoders import SPECIAL, word_pieces, write_gguf
from tests.pooling.tiny import ENCODERS, VOCAB, WORDS, hidden_of, open_llm, texts, write_model

PIECES = [*SPECIAL, *WORDS, *(f"[unused{i}]" for i in range(VOCAB - len(SPECIAL) - len(WORDS)))]
PIECES_OF_PAIRS = {"general.architecture": "bert", "bert.attention.causal": False}


NOT_IN_GGUF = (
    *("bert, other activation", "embedding gemma", "gte", "gte, no types", "mpnet"),
    *("electra", "electra, narrow"),
)


@pytest.mark.parametrize("name", [name for name in ENCODERS if name not in NOT_IN_GGUF])
def test_states_of_every_token_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = write_model(tmp_path, ENCODERS[name])
    path = write_gguf(tmp_path / "it.gguf", tmp_path, model.config, **word_pieces(PIECES))
    with open_llm(path) as llm:
        assert llm.supported_tasks == ("embed", "token_embed")
        plain = PoolingParams(use_activation=False)
        outputs = llm.encode(texts(), plain, pooling_task="token_embed", use_tqdm=False)
        [pooled] = llm.embed(texts(1), use_tqdm=False)
    for output in outputs:
        found, expected = output.outputs.data, hidden_of(model, output.prompt_token_ids)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    mean = outputs[0].outputs.data.numpy().mean(0)
    np.testing.assert_allclose(pooled.outputs.embedding, mean / np.linalg.norm(mean), atol=1e-5)


@pytest.mark.parametrize("with_dense", [True, False])
def test_embedding_gemma_has_its_dense_layers_where_the_file_has_them(
    with_dense: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """GGUF has no word for its scale of scores: that of the one size there is goes by head_dim."""
    said = {"query_pre_attn_scalar": 16, "attention_bias": False}
    model = write_model(tmp_path, ENCODERS["embedding gemma"], **said)
    made = torch.Generator().manual_seed(7)
    dense = {
        f"dense_{i}.weight": torch.randn(s, generator=made)
        for i, s in ((2, (64, 48)), (3, (48, 64)))
    }
    config = json.loads((tmp_path / "config.json").read_text())
    more = {**word_pieces(PIECES), "ARCH.attention.sliding_window": config["sliding_window"]}
    path = write_gguf(
        tmp_path / "it.gguf", tmp_path, model.config, dense if with_dense else {}, **more
    )
    with caplog.at_level("INFO", "quire"), open_llm(path) as llm:
        [output] = llm.embed(texts(1), use_tqdm=False)
    expected = hidden_of(model, output.prompt_token_ids).mean(0)
    if with_dense:
        expected = dense["dense_3.weight"] @ (dense["dense_2.weight"] @ expected)
    assert ("no dense_2" in caplog.text) is not with_dense
    np.testing.assert_allclose(output.outputs.embedding, F.normalize(expected, dim=0), atol=1e-5)


@pytest.mark.parametrize("name", ["roberta", "distilbert"])
@pytest.mark.parametrize("pooling", [4, None])
def test_a_head_scores_as_transformers_does(name: str, pooling: int | None, tmp_path: Path) -> None:
    model = write_model(tmp_path, ENCODERS[name], "classes", num_labels=1)
    more = {**word_pieces(PIECES), "ARCH.pooling_type": pooling}
    path = write_gguf(tmp_path / "it.gguf", tmp_path, model.config, **more)
    with open_llm(path) as llm:
        assert llm.supported_tasks == ("classify", "token_classify", "score")
        scores = llm.score("w1 w2", texts(4), use_tqdm=False)
    for score in scores:
        with torch.no_grad():
            logits = model(torch.tensor([score.prompt_token_ids])).logits
        assert score.outputs.score == pytest.approx(float(logits.sigmoid()), abs=1e-5)


@pytest.mark.parametrize("name", ["modernbert", "modernbert, every bias"])
@pytest.mark.parametrize("act", ["gelu", "silu"])
def test_a_head_of_modernbert_needs_to_be_told_what_it_reads(
    name: str, act: str, tmp_path: Path
) -> None:
    said = {"num_labels": 1, "hidden_activation": act}
    model = write_model(tmp_path, ENCODERS[name], "classes", **said)
    more = {**word_pieces(PIECES), "ARCH.pooling_type": 4, "ARCH.hidden_activation": act}
    path = write_gguf(tmp_path / "it.gguf", tmp_path, model.config, **more)
    with pytest.raises(UnsupportedModel, match=r"pooler_config=.*'CLS'"):
        open_llm(path)
    reads = {"pooling_type": model.config.classifier_pooling.upper()}
    with open_llm(path, pooler_config=reads) as llm:
        [score] = llm.score("w1 w2", texts(1), use_tqdm=False)
    with torch.no_grad():
        logits = model(torch.tensor([score.prompt_token_ids])).logits
    assert score.outputs.score == pytest.approx(float(logits.sigmoid()), abs=1e-5)


def test_a_head_without_its_first_part_is_refused_and_its_model_embeds(tmp_path: Path) -> None:
    """Converters leave out the part of BERT's head that comes before the labels."""
    model = write_model(tmp_path, ENCODERS["bert"], "classes", num_labels=1)
    path = write_gguf(tmp_path / "it.gguf", tmp_path, model.config, **word_pieces(PIECES))
    with pytest.raises(CorruptModel, match=r"'bert\.pooler\.dense\.weight' is missing.*convert="):
        open_llm(path)
    with open_llm(path, convert="embed") as llm:
        assert llm.embed("w1", use_tqdm=False)[0].outputs.hidden_size == 48


@pytest.mark.parametrize(
    ("name", "metadata", "words"),
    [
        ("bert", {"ARCH.attention.causal": True}, r"bert\.attention\.causal must be false"),
        ("bert", {"ARCH.expert_count": 8}, r"bert\.expert_count 8 is a part"),
        ("bert", {"ARCH.attention.head_count_kv": 2}, r"head_count_kv must be 4"),
        ("bert", {"ARCH.block_count": 2}, r"'blk\.2\..*is of a part"),
        ("nomic_bert", {"ARCH.rope.scaling.type": "yarn"}, r"scaling\.type must be 'none'"),
    ],
)
def test_metadata_of_another_model_is_refused(
    name: str, metadata: dict[str, Any], words: str, tmp_path: Path
) -> None:
    model = write_model(tmp_path, ENCODERS[name])
    more = {**word_pieces(PIECES), **metadata}
    path = write_gguf(tmp_path / "it.gguf", tmp_path, model.config, **more)
    with pytest.raises(UnsupportedModel, match=words):
        open_llm(path)


SAMPLES = (
    "Unhappy CAFÉ, naïve\u00a0über—x! 漢字 ok",
    "unfold\tthe\nhappy  café [MASK] [unused1]",
    "",
    "zzz " + "a" * 101,
)
LETTERS = [chr(c) for c in range(ord("a"), ord("z") + 1)]
UNCASED = [*SPECIAL, "[unused1]", *LETTERS, *(f"##{c}" for c in LETTERS), "un", "##happy", "漢"]
CAPITALS = [letter.upper() for letter in LETTERS]
VOCABULARIES = {
    "uncased": (UNCASED, {"do_lower_case": True}),
    "cased": ([*UNCASED, *CAPITALS, "É", "##É"], {"do_lower_case": False}),
    "accents": ([*UNCASED, "é", "##é", "ü"], {"do_lower_case": True, "strip_accents": False}),
}


@pytest.mark.parametrize("marked", [True, False], ids=["named tokens", "an early file"])
@pytest.mark.parametrize("name", VOCABULARIES)
def test_word_pieces_are_those_of_transformers(name: str, marked: bool, tmp_path: Path) -> None:
    pieces, options = VOCABULARIES[name]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    theirs = BertTokenizer(str(tmp_path / "vocab.txt"), **options)
    ours = load_gguf_tokenizer({**PIECES_OF_PAIRS, **word_pieces(pieces, marked=marked)}).backend
    for text in SAMPLES:
        assert ours.encode(text).ids == theirs(text)["input_ids"]
    pair, expected = ours.encode("happy", "un x"), theirs("happy", "un x")
    assert (pair.ids, pair.type_ids) == (expected["input_ids"], expected["token_type_ids"])


def test_what_a_file_says_of_case_counts_for_more_than_its_pieces() -> None:
    said = {"tokenizer.ggml.normalizer.lowercase": False}
    backend = load_gguf_tokenizer({**PIECES_OF_PAIRS, **word_pieces(UNCASED), **said}).backend
    assert backend.encode("Un").tokens == ["[CLS]", "[UNK]", "[SEP]"]


def test_pieces_of_xlm_roberta_are_cut_as_its_own_tokenizer_does() -> None:
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces += [("▁", -3.0), ("▁he", -2.0), ("llo", -2.5), ("▁hello", -6.0), ("o", -4.0)]
    theirs = Tokenizer(models.Unigram(pieces, 3))
    theirs.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    theirs.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    ours = load_gguf_tokenizer(
        {
            **PIECES_OF_PAIRS,
            "tokenizer.ggml.model": "t5",
            "tokenizer.ggml.tokens": [piece for piece, _ in pieces],
            "tokenizer.ggml.scores": [score for _, score in pieces],
            "tokenizer.ggml.token_type": [3, 3, 3, 2, 1, 1, 1, 1, 1],
            "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.unknown_token_id": 3,
            "tokenizer.ggml.remove_extra_whitespaces": False,
        }
    ).backend
    for text in ("hello  hello", " hello\n o ", "o"):
        assert ours.encode(text).ids == theirs.encode(text).ids
    assert ours.encode("hello", "o").ids == theirs.encode("hello", "o").ids
