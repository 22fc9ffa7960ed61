"""What callers may pass to embed, encode, classify and score, and what they get for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quire import LLM, AsyncLLM, LoRARequest, PoolingParams
from quire.errors import (
    BatchError,
    InvalidLogits,
    InvalidOption,
    InvalidParams,
    InvalidPrompt,
    InvalidRequest,
    NotSupported,
    PromptTooLong,
)
from tests.pooling.tiny import DECODERS, ENCODERS, open_llm, texts, write_model


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bert")
    write_model(made, ENCODERS["bert"])
    return made


@pytest.fixture(scope="module")
def llm(directory: Path) -> Iterator[LLM]:
    with open_llm(directory) as made:
        yield made


def test_order_is_kept_and_equal_texts_are_equal(llm: LLM) -> None:
    some = texts(50)
    outputs = llm.embed([*some, some[3]], use_tqdm=False)
    assert len(outputs) == 51
    assert outputs[50].outputs == outputs[3].outputs
    for i in (0, 17, 49):
        alone = llm.embed(some[i], use_tqdm=False)[0].outputs
        np.testing.assert_allclose(outputs[i].outputs.embedding, alone.embedding, atol=1e-6)
    numbers = [int(output.request_id) for output in outputs]
    assert numbers == list(range(numbers[0], numbers[0] + 51))


def test_nothing_gives_nothing(llm: LLM) -> None:
    assert llm.embed([]) == []
    assert llm.encode([], pooling_task="embed") == []
    assert llm.score([], []) == []
    assert llm.score("w1", []) == []


def test_every_form_of_a_prompt(llm: LLM) -> None:
    ids = llm.embed("w1 w2", use_tqdm=False)[0].prompt_token_ids
    forms: list[Any] = ["w1 w2", {"prompt": "w1 w2"}, ids, {"prompt_token_ids": ids}]
    outputs = llm.embed((form for form in forms), use_tqdm=False)
    assert all(output.outputs == outputs[0].outputs for output in outputs)


def test_a_bad_prompt_is_said_before_any_work(llm: LLM) -> None:
    steps = llm._session.engine.num_steps
    bad: list[tuple[Any, type[Exception]]] = [
        (["w1", 7], InvalidPrompt),
        (["w1", "w1 " * 200], PromptTooLong),
        (["w1", [10**6]], InvalidPrompt),
        (["w1", "\ud800"], InvalidPrompt),
    ]
    for prompts, error in bad:
        with pytest.raises(error, match="prompt 1"):
            llm.embed(prompts)
    assert llm._session.engine.num_steps == steps


def test_a_bad_prompt_fails_alone_where_that_is_asked(llm: LLM) -> None:
    outputs = llm.embed(["w1", "w1 " * 200, "w2"], on_error="return", use_tqdm=False)
    assert [output.error is None for output in outputs] == [True, False, True]
    assert isinstance(outputs[1].error, PromptTooLong) and outputs[1].outputs is None
    scores = llm.score("w1", ["w2", "w1 " * 200], on_error="return", use_tqdm=False)
    assert scores[1].error is not None and scores[0].outputs.score > -1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"pooling_params": [PoolingParams()] * 3}, InvalidParams),
        ({"pooling_params": "x"}, InvalidParams),
        ({"pooling_params": [1, 2]}, InvalidParams),
        ({"pooling_params": PoolingParams(dimensions=4)}, InvalidParams),
        ({"pooling_params": PoolingParams(task="classify")}, InvalidParams),
        ({"pooling_params": PoolingParams(returned_token_ids=[1])}, NotSupported),
        ({"on_error": "ignore"}, InvalidOption),
        ({"lora_request": 1}, InvalidRequest),
        ({"lora_request": LoRARequest("a", 1, "adapter")}, NotSupported),
        ({"tokenization_kwargs": {"padding": True}}, InvalidRequest),
    ],
)
def test_bad_arguments(llm: LLM, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        llm.embed(["w1", "w2"], **options)


def test_parameters_are_checked_when_made_and_again_at_the_door(llm: LLM) -> None:
    for wrong in ({"dimensions": 0}, {"use_activation": 2}, {"task": "plugin"}):
        with pytest.raises(InvalidParams):
            PoolingParams(**wrong)  # type: ignore[arg-type]
    params = PoolingParams()
    params.dimensions = -1
    with pytest.raises(InvalidParams):
        llm.embed("w1", pooling_params=params)


def test_encode_must_be_told_the_task(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="pooling_task"):
        llm.encode("w1")
    [output] = llm.encode("w1", PoolingParams(task="embed"), use_tqdm=False)
    assert torch.stack([output.outputs.data]).shape == (1, 48)
    with pytest.raises(NotSupported, match="plugin"):
        llm.encode("w1", pooling_task="plugin")


def test_scores_of_embeddings_are_cosines(llm: LLM) -> None:
    a, b = (o.outputs.array for o in llm.embed(["w1 w2", "w3"], use_tqdm=False))
    [score] = llm.score("w1 w2", "w3", use_tqdm=False)
    assert score.outputs.score == pytest.approx(float(a @ b), abs=1e-6)
    with pytest.raises(InvalidRequest, match="2 and 3"):
        llm.score(["w1", "w2"], ["w1", "w2", "w3"])


def test_states_that_are_not_finite_end_their_own_row(tmp_path: Path) -> None:
    """A broken weight must not become an embedding of NaN."""
    import torch
    from safetensors.torch import load_file, save_file

    write_model(tmp_path, ENCODERS["bert"])
    stored = load_file(tmp_path / "model.safetensors")
    stored["embeddings.word_embeddings.weight"][20] = torch.inf
    save_file(stored, tmp_path / "model.safetensors", {"format": "pt"})
    with open_llm(tmp_path) as llm:
        with pytest.raises(BatchError) as caught:
            llm.embed(["w1", "w14", "w2"], use_tqdm=False)
        assert list(caught.value.errors) == [1]
        assert isinstance(caught.value.errors[1], InvalidLogits)
        assert caught.value.outputs[2].outputs.hidden_size == 48
        assert llm.embed("w1", use_tqdm=False)[0].error is None


def test_tasks_of_an_event_loop(tmp_path: Path) -> None:
    write_model(tmp_path, DECODERS["llama"], "generator")
    options: dict[str, Any] = {"dtype": "float32", "kv_cache_memory_bytes": 8 << 20}
    some = texts(6)
    with open_llm(tmp_path, convert="embed") as plain:
        expected = [o.outputs.embedding for o in plain.embed(some, use_tqdm=False)]

    async def encode(engine: AsyncLLM, text: str, name: str) -> Any:
        params = PoolingParams(task="embed")
        found = [output async for output in engine.encode(text, params, name)]
        assert [output.request_id for output in found] == [name] and found[0].finished
        return found[0].outputs.data

    async def main(engine: AsyncLLM) -> list[Any]:
        tasks = [encode(engine, text, f"r{i}") for i, text in enumerate(some)]
        found = await asyncio.gather(*tasks)
        with pytest.raises(PromptTooLong):
            await encode(engine, "w1 " * 99, "long")
        with pytest.raises(NotSupported):
            async for _ in engine.encode("w1", PoolingParams(task="classify"), "other"):
                pass
        return found

    with AsyncLLM(str(tmp_path), convert="embed", **options) as engine:
        for one, other in zip(asyncio.run(main(engine)), expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_pair_that_is_none_fails_alone(tmp_path: Path) -> None:
    write_model(tmp_path, ENCODERS["bert"], "classes", num_labels=1)
    with open_llm(tmp_path) as llm:
        pairs: tuple[Any, Any] = (["w1", "w1", [7], "w1"], ["w2", None, "w2", "w2"])
        outputs = llm.score(*pairs, use_tqdm=False, on_error="return")
        [alone] = llm.score("w1", "w2", use_tqdm=False)
        with pytest.raises(InvalidPrompt, match="prompt 1: the pair has a NoneType"):
            llm.score(*pairs, use_tqdm=False)
        with pytest.raises(InvalidRequest, match="adds 3 tokens"):  # one more than around a text
            llm.score("w1", "w2", truncate_prompt_tokens=3, use_tqdm=False)
        [cut] = llm.score("w1", "w2 w3", truncate_prompt_tokens=5, use_tqdm=False)
    assert [type(output.error) for output in outputs] == [
        *(type(None), InvalidPrompt, InvalidPrompt, type(None)),
    ]
    assert outputs[0].outputs.score == outputs[3].outputs.score == alone.outputs.score
    assert cut.prompt_token_ids == [0, 7, 2, 8, 2]
