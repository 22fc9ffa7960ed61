"""Encoders against Transformers: hidden states, classes, pairs, and the same bits in any batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from quire import PoolingParams
from quire.errors import CorruptModel, NotSupported, UnsupportedModel
from quire.families.encoders.nomic_bert import OLDER_WORDS
from quire.families.encoders.registry import encoder_family, encoder_spec
from quire.families.fields import Fields
from quire.models.encoder import distance_gains, order_texts
from quire.weights.encoder import dummy_encoder_weights
from quire.weights.source import locate
from tests.pooling.tiny import (
    ENCODERS,
    hidden_of,
    open_llm,
    similarity,
    texts,
    write_model,
)


@pytest.mark.parametrize("name", ENCODERS)
def test_states_of_every_token_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = write_model(tmp_path, ENCODERS[name])
    with open_llm(tmp_path) as llm:
        assert llm.supported_tasks == ("embed", "token_embed")
        plain = PoolingParams(use_activation=False)
        outputs = llm.encode(texts(), plain, pooling_task="token_embed", use_tqdm=False)
    for output in outputs:
        expected = hidden_of(model, output.prompt_token_ids)
        torch.testing.assert_close(output.outputs.data, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["xlm-roberta", "mpnet", "bert"])
def test_padding_within_a_text_has_the_position_that_transformers_gives_it(
    name: str, tmp_path: Path
) -> None:
    model = write_model(tmp_path, ENCODERS[name])
    padding = model.config.pad_token_id
    asked = [{"prompt_token_ids": [4, padding, 5, 6, padding, padding, 7]}]
    with open_llm(tmp_path) as llm:
        plain = PoolingParams(use_activation=False)
        (output,) = llm.encode(asked, plain, pooling_task="token_embed", use_tqdm=False)
    expected = hidden_of(model, output.prompt_token_ids)
    torch.testing.assert_close(output.outputs.data, expected, rtol=1e-4, atol=1e-4)


def test_scores_gain_by_distance_as_in_transformers() -> None:
    """Also beyond the lengths of tiny texts, where many distances share a number."""
    learned, length = torch.randn(32, 4, generator=torch.Generator().manual_seed(0)), 512
    places = MPNetEncoder.relative_position_bucket(torch.arange(1 - length, length))
    assert torch.equal(distance_gains(learned, length), learned[places].T)


def test_texts_are_laid_out_by_length() -> None:
    assert order_texts([3, 5, 3, 2]) == ([3, 0, 2, 1], ((1, 2), (2, 3), (1, 5)))


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize(
    "name",
    [
        *("bert", "xlm-roberta", "distilbert", "nomic_bert", "modernbert, every bias", "gte"),
        *("jina v3", "mpnet", "electra", "electra, narrow", "eurobert", "eurobert, every bias"),
    ],
)
def test_classes_are_those_of_transformers(name: str, labels: int, tmp_path: Path) -> None:
    model = write_model(tmp_path, ENCODERS[name], "classes", num_labels=labels)
    with open_llm(tmp_path) as llm:
        tasks = ("classify", "token_classify", *(("score",) if labels == 1 else ()))
        assert llm.supported_tasks == tasks
        outputs = llm.classify(texts(5), use_tqdm=False)
        raw = llm.classify(
            texts(5), pooling_params=PoolingParams(use_activation=False), use_tqdm=False
        )
    for output, plain in zip(outputs, raw, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([output.prompt_token_ids])).logits[0]
        expected = logits.sigmoid() if labels == 1 else logits.softmax(-1)
        np.testing.assert_allclose(output.outputs.probs, expected, atol=2e-5)
        np.testing.assert_allclose(plain.outputs.probs, logits, rtol=1e-4, atol=1e-4)


def test_labels_of_all_tokens_are_averaged(tmp_path: Path) -> None:
    """What EuroBERT does if its config does not say otherwise."""
    late = {"classifier_pooling": "late", "num_labels": 3}
    model = write_model(tmp_path, ENCODERS["eurobert"], "classes", **late)
    with open_llm(tmp_path) as llm:
        outputs = llm.classify(texts(3), use_tqdm=False)
    config = tmp_path / "config.json"
    said = json.loads(config.read_text())
    assert said.pop("classifier_pooling") == "late"
    config.write_text(json.dumps(said))
    with open_llm(tmp_path) as llm:
        unsaid = llm.classify(texts(3), use_tqdm=False)
    for output, other in zip(outputs, unsaid, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([output.prompt_token_ids])).logits[0]
        np.testing.assert_allclose(output.outputs.probs, logits.softmax(-1), atol=2e-5)
        assert other.outputs.probs == output.outputs.probs


def test_a_pair_is_read_as_one_text_with_types(tmp_path: Path) -> None:
    model = write_model(tmp_path, ENCODERS["bert"], "classes", num_labels=1)
    queries, documents = texts(3, longest=9), texts(3, longest=20, seed=1)
    with open_llm(tmp_path) as llm:
        scores = llm.score(queries, documents, use_tqdm=False)
        one_to_many = llm.score(queries[0], documents, use_tqdm=False)
    for score, query, document in zip(scores, queries, documents, strict=True):
        first, second = len(query.split()) + 2, len(document.split()) + 1
        assert len(score.prompt_token_ids) == first + second
        with torch.no_grad():
            logits = model(
                torch.tensor([score.prompt_token_ids]),
                token_type_ids=torch.tensor([[0] * first + [1] * second]),
            ).logits
        assert score.outputs.score == pytest.approx(float(logits.sigmoid()), abs=1e-5)
    assert one_to_many[0].outputs.score == scores[0].outputs.score
    assert len(one_to_many) == 3


def test_labels_of_tokens(tmp_path: Path) -> None:
    for name in ("roberta", "modernbert, every bias"):
        folder = tmp_path / name
        folder.mkdir()
        model = write_model(folder, ENCODERS[name], "tokens", num_labels=4)
        with open_llm(folder) as llm:
            assert llm.supported_tasks == ("token_classify",)
            [output] = llm.reward("w1 w2 w3 w9", use_tqdm=False)
        with torch.no_grad():
            expected = model(torch.tensor([output.prompt_token_ids])).logits[0].softmax(-1)
        np.testing.assert_allclose(output.outputs.data, expected, atol=2e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["bert", "modernbert", "embedding gemma"])
def test_a_text_has_the_same_bits_in_any_batch(name: str, dtype: str, tmp_path: Path) -> None:
    """Without being asked for: a job that was stopped goes on to the same vectors."""
    write_model(tmp_path, ENCODERS[name])
    some = texts(40)
    with open_llm(tmp_path, dtype=dtype) as llm:
        together = llm.embed(some, use_tqdm=False)
        for i in (0, 7, 39):
            [alone] = llm.embed(some[i], use_tqdm=False)
            assert np.array_equal(alone.outputs.array, together[i].outputs.array)


def test_long_texts_share_passes_and_are_never_cut_in_two(tmp_path: Path) -> None:
    model = write_model(tmp_path, ENCODERS["bert"])
    some = texts(30, longest=60)
    with open_llm(tmp_path, max_num_batched_tokens=64, max_num_seqs=3) as llm:
        outputs = llm.embed(some, use_tqdm=False)
    for output in outputs:
        expected = hidden_of(model, output.prompt_token_ids)[0]
        assert similarity(output.outputs.embedding, expected) > 0.99999


@pytest.mark.parametrize(
    "options", [{"quantization": "int8", "dtype": None}, {"dtype": "bfloat16"}]
)
def test_products_in_fewer_bits_stay_close(options: dict[str, Any], tmp_path: Path) -> None:
    write_model(tmp_path, ENCODERS["bert"])
    with open_llm(tmp_path) as exact, open_llm(tmp_path, **options) as rough:
        pairs = zip(
            exact.embed(texts(), use_tqdm=False), rough.embed(texts(), use_tqdm=False), strict=True
        )
        for one, other in pairs:
            assert one.outputs.embedding != other.outputs.embedding
            assert similarity(one.outputs.embedding, other.outputs.embedding) > 0.999


def test_dummy_weights_need_no_files(tmp_path: Path) -> None:
    write_model(tmp_path, ENCODERS["bert"])
    (tmp_path / "model.safetensors").unlink()
    with open_llm(tmp_path, load_format="dummy") as llm:
        assert llm.embed("w1", use_tqdm=False)[0].outputs.hidden_size == 48


def test_dummy_weights_are_near_those_that_training_begins_with(tmp_path: Path) -> None:
    write_model(tmp_path, ENCODERS["bert"])
    config = locate(str(tmp_path)).config
    family = encoder_family(config)
    assert family is not None
    spec = encoder_spec(family, Fields(config, "config.json"))
    weights = dummy_encoder_weights(spec, family, dtype=torch.bfloat16, device="cpu", seed=1)
    norms = {name: one for name, one in weights.items() if name.endswith("norm.weight")}
    assert len(norms) > 2
    for name, one in weights.items():
        if name in norms:
            assert one.dtype == torch.float32 and (one == 1).all()
        elif one.numel() > 1000:
            assert 0.015 < one.float().std() < 0.025


def test_sleep_and_wake_up(tmp_path: Path) -> None:
    write_model(tmp_path, ENCODERS["bert"])
    with open_llm(tmp_path) as llm:
        before = llm.embed("w1 w2", use_tqdm=False)[0].outputs.embedding
        llm.sleep(level=2)
        llm.wake_up()
        assert llm.embed("w1 w2", use_tqdm=False)[0].outputs.embedding == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"enable_lora": True}, r"enable_lora=True with an encoder.*merge_and_unload"),
        ({"tensor_parallel_size": 2}, r"tensor_parallel_size=2.*encoders.*data_parallel_size"),
    ],
    ids=["LoRA", "ranks"],
)
def test_what_is_not_built_for_encoders_is_refused(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    write_model(tmp_path, ENCODERS["bert"])
    with pytest.raises(NotSupported, match=words):
        open_llm(tmp_path, **options)


def test_a_config_of_nomic_in_older_words_is_the_same_model(tmp_path: Path) -> None:
    model = write_model(tmp_path, ENCODERS["nomic_bert"], rope_parameters={"rope_theta": 77.0})
    said = {
        "architectures": ["NomicBertModel"],
        "model_type": "nomic_bert",
        "auto_map": {"AutoModel": "modeling.NomicBertModel"},
        "activation_function": "swiglu",
        "rotary_emb_base": 77,
        "rotary_scaling_factor": None,
        "vocab_size": model.config.vocab_size,
        "type_vocab_size": 2,
        "prenorm": False,
        **{older: getattr(model.config, word) for word, older in OLDER_WORDS.items()},
    }
    (tmp_path / "config.json").write_text(json.dumps(said))
    plain = PoolingParams(use_activation=False)
    with open_llm(tmp_path) as llm:
        [output] = llm.encode(texts(1), plain, pooling_task="token_embed", use_tqdm=False)
    found, expected = output.outputs.data, hidden_of(model, output.prompt_token_ids)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(UnsupportedModel, match="qkv_proj_bias must be false"):
        open_llm(tmp_path, hf_overrides={"qkv_proj_bias": True})


def test_an_encoder_writes_no_text(tmp_path: Path) -> None:
    write_model(tmp_path, ENCODERS["bert"])
    with open_llm(tmp_path) as llm:
        for call in (
            lambda: llm.generate("w1"),
            lambda: llm.chat([{"role": "user", "content": "w1"}], chat_template="{{ 1 }}"),
            lambda: list(llm.stream(["w1"])),
            lambda: llm.score_continuations(["w1"], [["w2"]]),
            lambda: llm.plan(["w1"]),
            lambda: llm.enqueue(["w1"]),
        ):
            with pytest.raises(NotSupported, match="writes no text"):
                call()
        assert len(llm.embed("w1", use_tqdm=False)) == 1


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"position_embedding_type": "relative_key"}, UnsupportedModel),
        ({"is_decoder": True}, UnsupportedModel),
        ({"hidden_act": "quick_gelu"}, UnsupportedModel),
        ({"architectures": ["BertForQuestionAnswering"]}, UnsupportedModel),
        ({"num_hidden_layers": 2}, UnsupportedModel),  # the files have three
        ({"num_hidden_layers": 4}, CorruptModel),
        ({"num_attention_heads": 5}, CorruptModel),
        ({"intermediate_size": 81}, CorruptModel),
    ],
)
def test_a_config_that_would_be_another_model_is_refused(
    change: dict[str, object], error: type[Exception], tmp_path: Path
) -> None:
    write_model(tmp_path, ENCODERS["bert"])
    with pytest.raises(error):
        open_llm(tmp_path, hf_overrides=change)


@pytest.mark.parametrize(
    ("family", "pooling", "rule"),
    [
        ("modernbert", "max", "'cls' or 'mean' for modernbert"),
        ("modernbert", "bos", "'cls' or 'mean' for modernbert"),
        ("eurobert", "cls", "'late' or 'bos' or 'mean' for eurobert"),
        ("nomic_bert", "mean", "'cls' for nomic_bert"),  # its class reads no such key
        ("bert", "mean", "'cls' for bert"),
    ],
)
def test_labels_of_other_tokens_than_the_family_has_are_refused(
    family: str, pooling: str, rule: str, tmp_path: Path
) -> None:
    write_model(tmp_path, ENCODERS[family], "classes", num_labels=1)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"classifier_pooling": pooling}))
    with pytest.raises(UnsupportedModel, match=f"classifier_pooling must be {rule}"):
        open_llm(tmp_path)
