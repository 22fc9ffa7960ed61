"""Guessing ahead changes no bit of what the default model writes, only how many passes it takes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.scheduler.pass_times import PassTimes
from tests.parity.test_same_tokens import preempt_every_second_step

LIST = "Anna Smith, 31, Leeds. Bob Jones, 45, York. Carla Diaz, 27, Hull. Dan Brown, 60, Bath. "
COPY = f"Repeat this list word for word.\n{LIST}\nThe same list again:\n{LIST}\nAnd once more:\n"
PROSE = "It was a dark night, and the harbour was empty when"
ARITHMETIC: dict[str, dict[str, Any]] = {
    "8 bits": {"quantization": "int8"},
    "float32": {"quantization": "none", "dtype": "float32", "batch_invariant": True},
}
NUM_LAYERS = 5  # of 30 in the gate: what is guessed and taken back is so in every layer
NEVER = {"num_speculative_tokens": 0}
# Every way to draw and to stop, on texts that repeat themselves and on one that does not.
ASKED: list[tuple[str, dict[str, Any]]] = [
    (COPY, {"temperature": 0.0, "max_tokens": 60}),
    (COPY, {"temperature": 0.0, "max_tokens": 40, "logprobs": 3}),
    (COPY, {"temperature": 0.7, "seed": 5, "n": 3, "max_tokens": 40, "logprobs": 0}),
    (COPY, {"temperature": 1.0, "seed": 6, "top_p": 0.9, "top_k": 40, "max_tokens": 50}),
    (COPY, {"temperature": 0.0, "max_tokens": 60, "stop": ["York"]}),
    (COPY, {"temperature": 0.0, "max_tokens": 40, "presence_penalty": 0.5}),
    (COPY, {"temperature": 0.0, "max_tokens": 40, "min_tokens": 30, "logit_bias": {198: 2.0}}),
    (PROSE, {"temperature": 0.0, "max_tokens": 30}),
    (PROSE, {"temperature": 1.0, "seed": 7, "max_tokens": 30, "logprobs": 1}),
]


def answers(llm: LLM, name: str) -> list[Any]:
    """All that may not change, of every answer; of every second one where passes take long."""
    asked = ASKED[::2] if name == "float32" else ASKED
    prompts = [prompt for prompt, _ in asked]
    outputs = llm.generate(prompts, [SamplingParams(**p) for _, p in asked], use_tqdm=False)
    return [
        (
            list(a.token_ids),
            a.text,
            a.logprobs,
            a.cumulative_logprob,
            a.finish_reason,
            a.stop_reason,
        )
        for output in outputs
        for a in output.outputs
    ]


@pytest.fixture(scope="module")
def model(default_model: Path, long_mode: bool) -> Callable[..., LLM]:
    layers = {} if long_mode else {"hf_overrides": {"num_hidden_layers": NUM_LAYERS}}
    return functools.partial(LLM, str(default_model), **layers)


@pytest.fixture(scope="module")
def plain(model: Callable[..., LLM]) -> Callable[[str], list[Any]]:
    """The answers in an arithmetic, without guesses."""

    @functools.cache
    def made(name: str) -> list[Any]:
        with model(speculative_config=NEVER, **ARITHMETIC[name]) as llm:
            found = answers(llm, name)
            assert llm.llm_engine.speculation.num_guessed == 0
        return found

    return made


@pytest.fixture
def free_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever may be right is guessed, however long passes take here."""
    monkeypatch.setattr(PassTimes, "line", lambda times: (1.0, 0.0))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        pytest.param("8 bits", {}, marks=pytest.mark.long),
        ("8 bits", {"async_scheduling": True, "max_num_seqs": 4}),
        ("8 bits", {"num_gpu_blocks_override": 40, "max_num_batched_tokens": 64}),
        ("float32", {}),
    ],
    ids=["8 bits", "two plans in flight", "preempted", "float32"],
)
@pytest.mark.usefixtures("free_positions")
def test_tokens_and_logprobs_are_bitwise_those_without_guesses(
    name: str,
    changes: dict[str, Any],
    plain: Callable[[str], list[Any]],
    model: Callable[..., LLM],
) -> None:
    with model(**ARITHMETIC[name], **changes) as llm:
        if "num_gpu_blocks_override" in changes:
            preempt_every_second_step(llm._session.engine.scheduler)
        assert answers(llm, name) == plain(name)
        told = llm.llm_engine.speculation
    assert told.num_guessed > told.num_accepted > 50


def test_copying_takes_few_passes(default_model: Path) -> None:
    with LLM(str(default_model), quantization="int8") as llm:
        engine, params = llm._session.engine, SamplingParams(temperature=0.0, max_tokens=60)
        llm.generate([COPY], params, use_tqdm=False)
        assert engine.num_steps < 30
        assert llm.llm_engine.speculation.num_accepted > 30
