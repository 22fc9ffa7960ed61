"""LLM(tensor_parallel_size=...): processes give the bits of one process that adds the same parts,
and one rank's answers but for the rounding of sums, whatever is asked of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from quire import LLM, BeamSearchParams, SamplingParams
from quire.errors import BatchError, InvalidOption, NotSupported
from quire.executor.ranks import executor
from tests.parity.test_any_way import requests
from tests.ranks.thread_executor import ThreadRanks
from tests.tiny_llm import tiny_llm

OPTIONS: dict[str, Any] = {
    # Chunks of 48 tokens, and few enough blocks that rows have to give way to others.
    "max_num_batched_tokens": 48,
    "max_num_seqs": 8,
    "num_gpu_blocks_override": 24,
    "seed": 3,
    "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
    "max_logprobs": -1,
}
SHARED = "Each of the following lines has a number, a colon and a word. "
PROMPTS = [f"{SHARED}{i}: word {'ab' * i}" for i in range(10)]


def fail_at_two(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    if len(output_ids) == 2:
        raise ValueError("enough")
    return logits


def facts_of(outputs: list[Any]) -> list[Any]:
    """Everything that was computed, bit by bit."""
    return [
        (
            [(a.token_ids, a.text, a.finish_reason, a.cumulative_logprob) for a in one.outputs],
            [
                {t: (x.logprob, x.rank) for t, x in line.items()}
                for a in one.outputs
                for line in (a.logprobs or ())
            ],
            [
                line and {t: (x.logprob, x.rank) for t, x in line.items()}
                for line in (one.prompt_logprobs or ())
            ],
        )
        for one in outputs
    ]


def generated(llm: LLM, prompts: list[str], **params: Any) -> list[Any]:
    outputs = llm.generate(prompts, SamplingParams(**{"max_tokens": 12, **params}), use_tqdm=False)
    return facts_of(outputs)


def by_chance(llm: LLM) -> list[Any]:
    """Every feature of sampling, mixed."""
    prompts, asked = requests(3, 16)
    for params in asked:
        params.max_tokens = min(params.max_tokens or 12, 12)
        params.min_tokens = min(params.min_tokens, 12)
    return facts_of(llm.generate(prompts, asked, use_tqdm=False))


def beams(llm: LLM) -> list[Any]:
    found = llm.beam_search(PROMPTS[:2], BeamSearchParams(beam_width=3, max_tokens=5))
    return [[(s.tokens, s.cum_logprob) for s in one.sequences] for one in found]


def scores(llm: LLM) -> list[Any]:
    found = llm.score_continuations(PROMPTS[:3], [[" one", " two more"]] * 3, use_tqdm=False)
    return [[(s.logprob, s.is_greedy) for s in one] for one in found]


def failing(llm: LLM) -> list[Any]:
    with pytest.raises(BatchError) as raised:
        params = [SamplingParams(max_tokens=4, logits_processors=[fail_at_two])]
        params += [SamplingParams(max_tokens=4, temperature=0)] * 2
        llm.generate(PROMPTS[:3], params, use_tqdm=False)
    assert "enough" in str(raised.value.errors[0])
    return [one.outputs[0].token_ids for one in raised.value.outputs[1:]]


def woken(llm: LLM) -> list[Any]:
    llm.sleep(level=1)
    llm.wake_up()
    return generated(llm, PROMPTS[:2], temperature=0)


ASKED: dict[str, Callable[[LLM], Any]] = {
    "greedy, preempted": lambda llm: generated(llm, PROMPTS, temperature=0, max_tokens=40),
    "by chance": by_chance,
    "a processor that fails": failing,
    "beams": beams,
    "scores": scores,
    "sleep": woken,
}


def tiny(directory: Path, size: int, **options: Any) -> LLM:
    return tiny_llm(directory, **{**OPTIONS, "tensor_parallel_size": size, **options})


@pytest.fixture(scope="module")
def engines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LLM, LLM, LLM | None]]:
    """The same model with processes and with threads for ranks, and undivided; on four in bytes,
    which ranks round in parts."""
    size = request.param
    changes = {"quantization": "int8"} if size == 4 else {}
    folder = tmp_path_factory.mktemp("ranks")
    with pytest.MonkeyPatch.context() as patch, ExitStack() as opened:
        patch.setattr(executor, "RanksExecutor", ThreadRanks)
        threads = opened.enter_context(tiny(folder, size, **changes))
        patch.undo()
        processes = opened.enter_context(tiny(folder, size, **changes))
        yield processes, threads, None if changes else opened.enter_context(tiny(folder, 1))


def is_near(one: Any, other: Any) -> bool:
    """Whether all is the same but the rounding of logprobs, and with it who ranks before whom."""
    if isinstance(one, float):
        return one == other or abs(one - other) < 1e-4
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            is_near(v[0], other[t][0]) for t, v in one.items()
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_near, one, other))
    return bool(one == other)


# A mark of its own for the engines: in one list with what is asked, they would be made anew each
# time.
@pytest.mark.parametrize("what", ASKED)
@pytest.mark.parametrize("engines", [2, pytest.param(4, marks=pytest.mark.long)], indirect=True)
def test_processes_give_the_bits_of_threads_and_what_one_rank_gives(
    engines: tuple[LLM, LLM, LLM | None], what: str
) -> None:
    processes, threads, alone = (llm and ASKED[what](llm) for llm in engines)
    assert processes == threads
    assert alone is None or is_near(processes, alone)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"tensor_parallel_size": 5}, InvalidOption, "5 is more than 4 heads over 2 KV heads"),
        ({"distributed_executor_backend": "uni"}, InvalidOption, "uni"),
        ({"pipeline_parallel_size": 2}, NotSupported, "pipeline_parallel_size=2"),
    ],
)
def test_what_cannot_be_is_refused_before_any_process_is_started(
    options: dict[str, Any], error: type[Exception], words: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(executor, "RanksExecutor", None)
    with pytest.raises(error, match=words):
        tiny(tmp_path, options.pop("tensor_parallel_size", 2), **options)
