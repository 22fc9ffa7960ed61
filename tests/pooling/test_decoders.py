"""Decoders that embed, classify and score: through the engine, in chunks and over cached blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.gemma3 import Gemma3TextConfig

from quire import PoolingParams, SamplingParams
from quire.errors import InvalidParams, NotSupported, UnsupportedModel
from tests.fallback.tiny import tiny_model as tiny_classifier
from tests.pooling.tiny import (
    DECODERS,
    HEADS,
    SIZES,
    hidden_of,
    open_llm,
    similarity,
    texts,
    write_model,
    write_sentence_files,
    write_tokenizer,
)
from tests.weights.tiny import tiny_model, write_gguf

EMBEDS: dict[str, Any] = {"convert": "embed"}


def pooled(states: torch.Tensor, kind: str) -> torch.Tensor:
    return {"LAST": states[-1], "CLS": states[0], "MEAN": states.mean(0)}[kind]


@pytest.mark.parametrize("kind", ["LAST", "CLS", "MEAN"])
@pytest.mark.parametrize("name", DECODERS)
def test_every_pooling_in_chunks_and_whole(name: str, kind: str, tmp_path: Path) -> None:
    model = write_model(tmp_path, DECODERS[name], "generator")
    some, config = texts(), {"pooling_type": kind}
    with open_llm(tmp_path, **EMBEDS, pooler_config=config) as llm:
        whole = llm.embed(some, use_tqdm=False)
    with open_llm(
        tmp_path,
        **EMBEDS,
        pooler_config=config,
        max_num_batched_tokens=7,
        max_num_seqs=4,
        block_size=4,
        num_gpu_blocks_override=24,
    ) as llm:
        chunked = llm.embed(some, use_tqdm=False)
        again = llm.embed(some, use_tqdm=False)
    for one, other, third in zip(whole, chunked, again, strict=True):
        expected = pooled(hidden_of(model, one.prompt_token_ids), kind)
        for output in (one, other, third):
            assert similarity(output.outputs.embedding, expected) > 0.99999
            assert np.linalg.norm(output.outputs.embedding) == pytest.approx(1, abs=1e-5)


def test_only_the_last_token_reads_cached_blocks(tmp_path: Path) -> None:
    write_model(tmp_path, DECODERS["llama"], "generator")
    long = " ".join(["w1", "w2", "w3"] * 12)
    with open_llm(tmp_path, **EMBEDS, block_size=4) as llm:
        first, second = (llm.embed(long, use_tqdm=False)[0] for _ in range(2))
        skipping = PoolingParams(skip_reading_prefix_cache=True)
        third = llm.embed(long, pooling_params=skipping, use_tqdm=False)[0]
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 36)
    assert third.num_cached_tokens == 0
    assert similarity(first.outputs.embedding, second.outputs.embedding) > 0.99999
    with open_llm(tmp_path, **EMBEDS, block_size=4, pooler_config={"pooling_type": "MEAN"}) as llm:
        for _ in range(2):
            assert llm.embed(long, use_tqdm=False)[0].num_cached_tokens == 0


def test_tokens_one_by_one(tmp_path: Path) -> None:
    model = write_model(tmp_path, DECODERS["qwen3"], "generator")
    with open_llm(tmp_path, **EMBEDS, max_num_batched_tokens=5, block_size=4) as llm:
        plain = PoolingParams(use_activation=False)
        [output] = llm.encode("w1 w2 w3 w4 w5 w6 w7", plain, pooling_task="token_embed")
    expected = hidden_of(model, output.prompt_token_ids)
    np.testing.assert_allclose(output.outputs.data, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("labels", [1, 3])
def test_classes_of_the_last_token(
    labels: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = write_model(tmp_path, DECODERS["qwen3"], "classes", num_labels=labels)
    with caplog.at_level("INFO", "quire"), open_llm(tmp_path) as llm:
        assert "not used" not in caplog.text  # its head is
        outputs = llm.classify(texts(5), use_tqdm=False)
        rewards = llm.reward(texts(2), use_tqdm=False)
        with pytest.raises(NotSupported, match="writes no text"):
            llm.generate("w1")
    for output in outputs:
        with torch.no_grad():
            logits = model(torch.tensor([output.prompt_token_ids])).logits[0]
        expected = logits.sigmoid() if labels == 1 else logits.softmax(-1)
        np.testing.assert_allclose(output.outputs.probs, expected, atol=2e-5)
    for reward in rewards:
        states = hidden_of(model, reward.prompt_token_ids)
        logits = states @ model.score.weight.T
        expected = logits.sigmoid() if labels == 1 else logits.softmax(-1)
        np.testing.assert_allclose(reward.outputs.data, expected.detach(), atol=2e-5)


def test_a_text_model_of_one_that_sees_may_classify(tmp_path: Path) -> None:
    """Transformers calls it Gemma3TextForSequenceClassification."""
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    own = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 7, "layer_types": kinds}
    config = Gemma3TextConfig(**SIZES, **HEADS, **own)
    model = write_model(tmp_path, config, "classes", num_labels=3)
    with open_llm(tmp_path) as llm:
        outputs = llm.classify(texts(3), use_tqdm=False)
    for output in outputs:
        with torch.no_grad():
            logits = model(torch.tensor([output.prompt_token_ids])).logits[0]
        np.testing.assert_allclose(output.outputs.probs, logits.softmax(-1), atol=2e-5)


def test_classes_of_a_text_that_ends_with_the_token_that_pads(tmp_path: Path) -> None:
    """Many tokenizers have one token for both; Transformers takes it for padding."""
    config = DECODERS["qwen3"]
    model = write_model(tmp_path, config, "classes", num_labels=1, pad_token_id=2)
    given: list[Any] = ["w1 w2 w3", "</s>", [7, 2, 8, 2, 2], [2, 2]]
    with open_llm(tmp_path) as llm:
        outputs = llm.classify(given, use_tqdm=False)
        [score] = llm.score("w1", "w2", use_tqdm=False)
        [reward] = llm.reward("w1 w2", use_tqdm=False)
    with open_llm(tmp_path, pooler_config={"pooling_type": "LAST"}) as llm:
        [last] = llm.classify("w1 w2", use_tqdm=False)
    assert last.outputs.probs[0] == pytest.approx(float(reward.outputs.data[-1]), abs=2e-5)
    read = [[0, 7, 8, 9, 2], [0, 2, 2], given[2], [2, 2], [0, 7, 2, 8, 2]]
    for output, ids in zip([*outputs, score], read, strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([ids])).logits[0].sigmoid()
        found = output.outputs.score if output is score else output.outputs.probs[0]
        assert found == pytest.approx(float(expected), abs=2e-5)
    assert len(reward.outputs.data) == 4  # each token has its labels


@pytest.mark.parametrize(
    "architecture",
    [
        "FalconForTokenClassification",  # its head is called "classifier"
        "GPT2ForSequenceClassification",  # its causal class is GPT2LMHeadModel
        "PhiForSequenceClassification",  # logits of tokens would have a bias
        "DiffLlamaForSequenceClassification",  # only Transformers has its layers
    ],
)
def test_classes_with_names_of_their_own(architecture: str, tmp_path: Path) -> None:
    model = tiny_classifier(architecture, num_labels=3)
    model.save_pretrained(tmp_path)
    prompt, task = [7, 8, 9, 60], "classify"
    if architecture.endswith("TokenClassification"):
        task = "token_classify"
    with open_llm(tmp_path, skip_tokenizer_init=True) as llm:
        raw = PoolingParams(use_activation=False)
        [output] = llm.encode(prompt, raw, pooling_task=task, use_tqdm=False)
        with pytest.raises(NotSupported, match="writes no text"):
            llm.generate(prompt)
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0]
    np.testing.assert_allclose(output.outputs.data, logits, rtol=1e-4, atol=1e-4)


def test_layers_of_transformers_without_any_head_embed(tmp_path: Path) -> None:
    model = tiny_classifier("DiffLlamaForCausalLM", tie_word_embeddings=False).model
    model.save_pretrained(tmp_path)
    prompt = [*range(7, 40)]
    with open_llm(
        tmp_path, **EMBEDS, skip_tokenizer_init=True, max_num_batched_tokens=16, max_model_len=64
    ) as llm:
        [output] = llm.embed(prompt, use_tqdm=False)
        assert llm.supported_tasks == ("embed", "token_embed")
    assert similarity(output.outputs.embedding, hidden_of(model, prompt)[-1]) > 0.99999
    model = tiny_classifier("BartForSequenceClassification", is_decoder=False)
    model.save_pretrained(tmp_path / "bart")  # BartForCausalLM is its decoder alone
    with pytest.raises(UnsupportedModel, match="BartForSequenceClassification is not supported"):
        open_llm(tmp_path / "bart", skip_tokenizer_init=True)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "softmax"),
        ({"problem_type": "multi_label_classification"}, "sigmoid"),
        ({"problem_type": "regression"}, "identity"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.Identity"}}, "identity"),
    ],
)
def test_the_activation_of_labels(change: dict[str, Any], expected: str, tmp_path: Path) -> None:
    write_model(tmp_path, DECODERS["llama"], "classes", num_labels=3)
    with open_llm(tmp_path, hf_overrides=change) as llm:
        [found] = llm.classify("w1 w2 w3", use_tqdm=False)
        raw = PoolingParams(use_activation=False)
        [logits] = llm.classify("w1 w2 w3", pooling_params=raw, use_tqdm=False)
    x = torch.tensor(logits.outputs.probs)
    made = {"softmax": x.softmax(-1), "sigmoid": x.sigmoid(), "identity": x}[expected]
    np.testing.assert_allclose(found.outputs.probs, made, atol=1e-6)


def test_a_reranker_answers_yes_or_no(tmp_path: Path) -> None:
    model = write_model(tmp_path, DECODERS["qwen3"], "generator")
    change = {
        "architectures": ["Qwen3ForSequenceClassification"],
        "classifier_from_token": ["no", "yes"],
        "is_original_qwen3_reranker": True,
    }
    template = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}yes"
    with open_llm(tmp_path, hf_overrides=change) as llm:
        pairs = llm.score("w1 w2", ["w3", "w4 w5"], use_tqdm=False)
        [written] = llm.score("w1", "w2", chat_template=template, use_tqdm=False)
    yes, no = 4, 5
    for output in (*pairs, written):
        with torch.no_grad():
            logits = model(torch.tensor([output.prompt_token_ids])).logits[0, -1]
        chance = logits[[no, yes]].softmax(-1)[1]
        assert output.outputs.score == pytest.approx(float(chance), abs=2e-5)
    assert len(written.prompt_token_ids) == 2 + 5  # query w1 document w2 yes


def test_a_directory_without_a_head_is_only_read(tmp_path: Path) -> None:
    """As embedding models are stored: the bare model, which names no head."""
    model = write_model(tmp_path, DECODERS["qwen3"], "model")
    write_sentence_files(tmp_path, "lasttoken")
    with open_llm(tmp_path) as llm:
        assert llm.supported_tasks == ("embed", "token_embed")
        [output] = llm.embed("w1 w2 w3", use_tqdm=False)
        with pytest.raises(NotSupported, match="writes no text"):
            llm.generate("w1")
    expected = hidden_of(model, output.prompt_token_ids)[-1]
    assert similarity(output.outputs.embedding, expected) > 0.99999


def test_one_of_several_architectures_with_a_head_is_enough(tmp_path: Path) -> None:
    write_model(tmp_path, DECODERS["llama"], "generator")
    for names in (["LlamaForCausalLM", "LlamaModel"], ["LlamaModel", "LlamaForCausalLM"]):
        with open_llm(tmp_path, hf_overrides={"architectures": names}) as llm:
            assert llm.supported_tasks == ("generate",)
            assert llm.generate("w1", use_tqdm=False)[0].outputs[0].token_ids


def test_a_plain_generator_is_not_turned_into_anything_unasked(tmp_path: Path) -> None:
    write_model(tmp_path, DECODERS["llama"], "generator")
    with open_llm(tmp_path) as llm:
        assert llm.supported_tasks == ("generate",)
        for call in (llm.embed, llm.classify, llm.reward):
            with pytest.raises(NotSupported, match="convert='embed'"):
                call("w1")
        with pytest.raises(NotSupported, match="generates text"):
            llm.score("w1", "w2")
    with open_llm(tmp_path, runner="pooling") as llm:
        assert llm.supported_tasks == ("generate", "embed", "token_embed")
        with pytest.raises(NotSupported, match="classify"):
            llm.classify("w1")
        with pytest.raises(InvalidParams, match="is_matryoshka"):
            llm.embed("w1", pooling_params=PoolingParams(dimensions=8))


def test_text_and_embeddings_share_an_engine(tmp_path: Path) -> None:
    write_model(tmp_path, DECODERS["llama"], "generator")
    with open_llm(tmp_path, **EMBEDS) as llm:
        greedy = SamplingParams(temperature=0)
        before = llm.generate("w1 w2 w3", greedy, use_tqdm=False)[0].outputs[0].token_ids
        llm.embed(texts(), use_tqdm=False)
        assert llm.generate("w1 w2 w3", greedy, use_tqdm=False)[0].outputs[0].token_ids == before


def test_a_gguf_file_names_its_pooling(tmp_path: Path) -> None:
    model = tiny_model("qwen3")
    ids = [9, 4, 12, 7]
    for kind, pool in ((1, "MEAN"), (2, "CLS"), (3, "LAST")):
        metadata: dict[str, int | float | str] = {"{arch}.pooling_type": kind}
        path = write_gguf(model, tmp_path / f"{kind}.gguf", metadata=metadata)
        with open_llm(path, skip_tokenizer_init=True) as llm:
            assert llm.supported_tasks == ("generate", "embed", "token_embed")
            [output] = llm.embed([{"prompt_token_ids": ids}], use_tqdm=False)
        assert similarity(output.outputs.embedding, pooled(hidden_of(model, ids), pool)) > 0.99999
    write_gguf(model, path, metadata={"{arch}.pooling_type": 4})  # without a head
    with pytest.raises(UnsupportedModel, match="pooling_type 4"):
        open_llm(path, skip_tokenizer_init=True)
    with open_llm(path, skip_tokenizer_init=True, runner="generate") as llm:
        assert llm.supported_tasks == ("generate",)


def test_a_gguf_file_of_a_decoder_scores_pairs_as_it_writes_them(tmp_path: Path) -> None:
    model, yes, no = tiny_model("qwen3"), 7, 3
    words = tmp_path / "words"
    words.mkdir()
    (words / "config.json").write_text("{}")
    backend = write_tokenizer(words)
    metadata: dict[str, Any] = {
        "{arch}.pooling_type": 4,
        "{arch}.classifier.output_labels": ["yes", "no"],
        "tokenizer.chat_template.rerank": "w5 '{{ {query}\nw6 {document} </s>\n",
    }
    head = {"cls.output.weight": model.lm_head.weight.detach().numpy()[[yes, no]]}
    path = write_gguf(model, tmp_path / "it.gguf", metadata=metadata, tensors=head)
    with open_llm(path, tokenizer=str(words)) as llm:
        assert "score" in llm.supported_tasks
        [output] = llm.score("w1 {document}", "w2 w3", use_tqdm=False)
    written = "w5 '{{ w1 {document}\nw6 w2 w3 </s>\n"
    assert output.prompt_token_ids == backend.encode(written, add_special_tokens=False).ids
    with torch.no_grad():
        logits = model(torch.tensor([output.prompt_token_ids])).logits[0, -1]
    expected = logits[[yes, no]].softmax(-1)[0]
    assert output.outputs.score == pytest.approx(float(expected), abs=2e-5)
