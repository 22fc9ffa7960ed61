"""sentence-transformers directories: their pooling, dense layer, normalising, prompts, limits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from quire import PoolingParams
from quire.errors import (
    CorruptModel,
    InvalidParams,
    InvalidRequest,
    ModelNotFound,
    PromptTooLong,
    QuireError,
    UnsupportedModel,
)
from tests.pooling.tiny import (
    ENCODERS,
    hidden_of,
    open_llm,
    similarity,
    texts,
    write_model,
    write_sentence_files,
)

MODES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cls_token": lambda states: states[0],
    "mean_tokens": lambda states: states.mean(0),
    "lasttoken": lambda states: states[-1],
    "max_tokens": lambda states: states.amax(0),
    "mean_sqrt_len_tokens": lambda states: states.sum(0) / len(states) ** 0.5,
    "weightedmean_tokens": lambda states: (
        sum((i + 1) * one for i, one in enumerate(states)) / sum(range(len(states) + 1))
    ),
}


def embedded(states: torch.Tensor, mode: str, dense: torch.Tensor | None) -> torch.Tensor:
    x = MODES[mode](states)
    return x if dense is None else torch.tanh(dense[:, :-1] @ x + dense[:, -1])


@pytest.mark.parametrize(("normalise", "dense"), [(True, 20), (False, None)])
@pytest.mark.parametrize("mode", MODES)
def test_every_pooling_kind(mode: str, normalise: bool, dense: int | None, tmp_path: Path) -> None:
    model = write_model(tmp_path, ENCODERS["bert"])
    weight = write_sentence_files(tmp_path, mode, normalise=normalise, dense=dense)
    with open_llm(tmp_path) as llm:
        outputs = llm.embed(texts(4), use_tqdm=False)
    for output in outputs:
        expected = embedded(hidden_of(model, output.prompt_token_ids), mode, weight)
        assert similarity(output.outputs.embedding, expected) > 0.99999
        length = 1 if normalise else float(expected.norm())
        assert np.linalg.norm(output.outputs.embedding) == pytest.approx(length, rel=1e-4)


def test_a_norm_and_a_dropout_between(tmp_path: Path) -> None:
    model = write_model(tmp_path, ENCODERS["bert"])
    write_sentence_files(tmp_path, "max_tokens", normalise=False)
    (tmp_path / "2_LayerNorm").mkdir()
    norm = torch.nn.LayerNorm(48)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    tensors = {f"norm.{name}": tensor.detach() for name, tensor in norm.state_dict().items()}
    save_file(tensors, tmp_path / "2_LayerNorm" / "model.safetensors")
    (tmp_path / "2_LayerNorm" / "config.json").write_text('{"dimension": 48}')
    modules = json.loads((tmp_path / "modules.json").read_text())
    for kind in ("LayerNorm", "Dropout"):
        modules.append({"type": f"sentence_transformers.models.{kind}", "path": f"2_{kind}"})
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with open_llm(tmp_path) as llm:
        [output] = llm.embed("w1 w2", use_tqdm=False)
    with torch.no_grad():
        expected = norm(hidden_of(model, output.prompt_token_ids).amax(0))
    assert np.allclose(output.outputs.embedding, expected.numpy(), atol=1e-4)


def test_the_newer_word_for_pooling(tmp_path: Path) -> None:
    model = write_model(tmp_path, ENCODERS["bert"])
    write_sentence_files(tmp_path, "cls_token")
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "lasttoken"}))
    with open_llm(tmp_path) as llm:
        [output] = llm.embed("w1 w2", use_tqdm=False)
    expected = hidden_of(model, output.prompt_token_ids)[-1]
    assert similarity(output.outputs.embedding, expected) > 0.99999


def test_without_pooling_each_token_has_a_vector_and_scores_are_sums_of_the_best(
    tmp_path: Path,
) -> None:
    write_model(tmp_path, ENCODERS["modernbert"])
    write_sentence_files(tmp_path, None, dense=16)
    with open_llm(tmp_path) as llm:
        assert llm.supported_tasks == ("token_embed",)
        [query, document] = (
            one.outputs.data.numpy()
            for one in llm.encode(["w1 w2", "w3 w4 w5"], pooling_task="token_embed", use_tqdm=False)
        )
        [score] = llm.score("w1 w2", "w3 w4 w5", use_tqdm=False)
    assert query.shape == (4, 16)
    assert score.outputs.score == pytest.approx((query @ document.T).max(1).sum(), rel=1e-5)


def test_prompts_and_lower_case(tmp_path: Path) -> None:
    write_model(tmp_path, ENCODERS["bert"])
    write_sentence_files(tmp_path, "mean_tokens")
    prompts: dict[str, Any] = {"prompts": {"query": "w7 w8 ", "document": ""}}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    with open_llm(tmp_path) as llm:
        plain, asked = (
            llm.embed(t, prompt_name=n, use_tqdm=False)[0]
            for t, n in (("w7 w8 w1", None), ("w1", "query"))
        )
        assert plain.outputs.embedding == asked.outputs.embedding
        with pytest.raises(InvalidRequest, match="'query', 'document'"):
            llm.embed("w1", prompt_name="passage")
    usual = {**prompts, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(usual))
    lower = {"max_seq_length": 10, "do_lower_case": True}
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps(lower))
    with open_llm(tmp_path) as llm:
        [default] = llm.embed("W1", use_tqdm=False)
        assert default.outputs.embedding == plain.outputs.embedding
        [none] = llm.embed("w1", prompt_name="", use_tqdm=False)
        assert len(none.prompt_token_ids) == 3
        with pytest.raises(PromptTooLong, match="takes 10"):
            llm.embed("w1 " * 9, use_tqdm=False)
        [exact] = llm.embed("w1 " * 8, prompt_name="", use_tqdm=False)
        assert len(exact.prompt_token_ids) == 10


def test_a_cut_text_keeps_what_stands_around_it(tmp_path: Path) -> None:
    write_model(tmp_path, ENCODERS["bert"])
    with open_llm(tmp_path) as llm:
        text = "w0 w1 w2 w3 w4 w5"
        whole = llm.embed(text, use_tqdm=False)[0].prompt_token_ids
        first, last = whole[0], whole[-1]

        def cut(**options: Any) -> list[int]:
            return list(llm.embed(text, use_tqdm=False, **options)[0].prompt_token_ids)

        assert cut(truncate_prompt_tokens=4) == [first, *whole[1:3], last]
        left = {"truncate_prompt_tokens": 4, "truncation_side": "left"}
        assert cut(tokenization_kwargs=left) == [first, *whole[5:7], last]
        assert cut(truncate_prompt_tokens=-1) == whole
        assert len(llm.embed("w1 " * 99, truncate_prompt_tokens=-1)[0].prompt_token_ids) == 64
        ids = llm.embed([[9] * 7], truncate_prompt_tokens=3, use_tqdm=False)[0].prompt_token_ids
        assert ids == [9] * 3
        for keep in (2, 65):
            with pytest.raises(InvalidRequest, match="truncate_prompt_tokens"):
                llm.embed(text, truncate_prompt_tokens=keep, use_tqdm=False)


@pytest.mark.parametrize(
    ("said", "sizes"), [({"is_matryoshka": True}, None), ({"matryoshka_dimensions": [8, 16]}, None)]
)
def test_dimensions(said: dict[str, Any], sizes: None, tmp_path: Path) -> None:
    model = write_model(tmp_path, ENCODERS["bert"])
    with open_llm(tmp_path, hf_overrides=said) as llm:
        short = PoolingParams(dimensions=16)
        [output] = llm.embed("w1 w2", pooling_params=short, use_tqdm=False)
        expected = hidden_of(model, output.prompt_token_ids)[0, :16]
        assert output.outputs.hidden_size == 16
        assert similarity(output.outputs.embedding, expected) > 0.99999
        assert np.linalg.norm(output.outputs.embedding) == pytest.approx(1, abs=1e-5)
        wrong = 12 if "matryoshka_dimensions" in said else 49
        with pytest.raises(InvalidParams, match=f"dimensions={wrong}"):
            llm.embed("w1", pooling_params=PoolingParams(dimensions=wrong))


SIZES = '"in_features": 48, "out_features": 20'
POOLED_LAST = json.dumps(
    [
        {"type": f"a.{kind}", "path": path}
        for kind, path in (("Transformer", ""), ("Dense", "2_Dense"), ("Pooling", "1_Pooling"))
    ]
)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("modules.json", "{}"),
        ("modules.json", "[]"),
        ("modules.json", '[{"type": "a.Transformer", "path": ""}, {"type": "a.CNN", "path": "x"}]'),
        ("modules.json", '[{"type": "a.Transformer"}, {"type": "a.Pooling", "path": "../../x"}]'),
        ("modules.json", '[{"type": "a.Transformer", "path": "0_Transformer"}]'),
        ("1_Pooling/config.json", "{}"),
        ("1_Pooling/config.json", '{"pooling_mode": "median"}'),
        ("2_Dense/config.json", '{"in_features": 48, "out_features": 21}'),
        ("2_Dense/config.json", '{"in_features": 48, "out_features": 20, "bias": false}'),
        ("2_Dense/config.json", '{"in_features": 48, "activation_function": "x"}'),
        ("2_Dense/config.json", f'{{{SIZES}, "use_residual": true}}'),
        ("2_Dense/config.json", f'{{{SIZES}, "module_input_name": "token_embeddings"}}'),
        ("modules.json", POOLED_LAST),
        ("2_Dense/model.safetensors", "no"),
        ("config_sentence_transformers.json", '{"prompts": {"a": 1}}'),
        ("config_sentence_transformers.json", '{"prompts": {}, "default_prompt_name": "a"}'),
        ("sentence_bert_config.json", '{"max_seq_length": -1}'),
    ],
)
def test_files_that_contradict_themselves(name: str, content: str, tmp_path: Path) -> None:
    write_model(tmp_path, ENCODERS["bert"])
    write_sentence_files(tmp_path, "cls_token", dense=20)
    (tmp_path / name).write_text(content)
    with pytest.raises(QuireError):
        open_llm(tmp_path)


def test_a_directory_that_begins_with_no_transformer_is_refused_by_its_module(
    tmp_path: Path,
) -> None:
    (tmp_path / "0_StaticEmbedding").mkdir()
    (tmp_path / "0_StaticEmbedding" / "config.json").write_text("{}")
    modules = [{"type": "a.StaticEmbedding", "path": "0_StaticEmbedding"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelNotFound, match="begins with 'StaticEmbedding'"):
        open_llm(tmp_path)
    write_model(tmp_path, ENCODERS["bert"])
    with pytest.raises(UnsupportedModel, match="it is 'StaticEmbedding'"):
        open_llm(tmp_path)


def test_a_module_does_not_lead_out_of_the_model(tmp_path: Path) -> None:
    inside = tmp_path / "model"
    inside.mkdir()
    write_model(inside, ENCODERS["bert"])
    write_sentence_files(inside, "cls_token", dense=20)
    (inside / "2_Dense" / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    (inside / "2_Dense" / "model.safetensors").symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(CorruptModel, match="outside"):
        open_llm(inside)
