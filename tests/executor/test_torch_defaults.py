"""Scripts that have changed torch's defaults for their own models."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from quire import SamplingParams
from quire.executor.torch_defaults import by_usual_defaults
from tests.tiny_llm import tiny_llm

PARAMS = [
    SamplingParams(max_tokens=8, temperature=0.0, logprobs=2, ignore_eos=True),
    SamplingParams(max_tokens=8, seed=1, top_k=9, top_p=0.8, min_p=0.01, bad_words=["a"]),
    SamplingParams(max_tokens=8, seed=2, repetition_penalty=1.3, logit_bias={5: 2.0}),
]


@contextmanager
def another_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


CHANGES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "dtype": another_dtype,
    "device": lambda: torch.device("meta"),
    "deterministic": deterministic,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


def answers(home: Path, model_impl: str) -> list[Any]:
    with tiny_llm(home, model_impl=model_impl) as llm:
        prompts = [{"prompt_token_ids": [7, 8, 9 + i]} for i in range(len(PARAMS))]
        made = llm.generate(prompts, PARAMS, use_tqdm=False)
    return [(one.outputs[0].token_ids, one.outputs[0].cumulative_logprob) for one in made]


@pytest.mark.parametrize(
    ("kind", "model_impl"),
    [
        ("dtype", "quire"),
        ("device", "quire"),
        ("autocast", "transformers"),
        ("deterministic", "quire"),
        ("deterministic", "transformers"),
    ],
)
def test_defaults_of_a_script_change_no_answer_and_stay(
    tmp_path: Path, kind: str, model_impl: str
) -> None:
    wanted = answers(tmp_path, model_impl)
    with CHANGES[kind]():
        empty = torch.empty(0)
        assert answers(tmp_path, model_impl) == wanted
        assert torch.empty(0).dtype == empty.dtype
        assert torch.empty(0).device == empty.device


def test_the_dtype_is_set_back_when_the_last_thread_is_done() -> None:
    is_inside, may_end = threading.Event(), threading.Event()

    @by_usual_defaults
    def slow_work() -> None:
        is_inside.set()
        assert may_end.wait(60)

    with another_dtype():
        slow = threading.Thread(target=slow_work)
        slow.start()
        assert is_inside.wait(60)
        by_usual_defaults(lambda: None)()
        assert torch.get_default_dtype() == torch.float32
        may_end.set()
        slow.join()
        assert torch.get_default_dtype() == torch.float64
