"""LLM(tensor_parallel_size=...): processes give the bits of one process that adds the same parts,
whatever is asked of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from quire import LLM, BeamSearchParams, SamplingParams, StructuredOutputsParams
from quire.errors import BatchError, InvalidOption, NotSupported
from quire.executor.ranks import executor
from tests.ranks.thread_executor import ThreadRanks
from tests.tiny_llm import tiny_llm

OPTIONS: dict[str, Any] = {
    # Chunks of 48 tokens, and few enough blocks that rows have to give way to others.
    "max_num_batched_tokens": 48,
    "max_num_seqs": 8,
    "num_gpu_blocks_override": 24,
    "seed": 3,
    "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
}
SHARED = "Each of the following lines has a number, a colon and a word. "
PROMPTS = [f"{SHARED}{i}: word {'ab' * i}" for i in range(10)]


def favour(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    logits[100 + len(output_ids)] += 3.0
    return logits


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
    "random, several": lambda llm: generated(llm, PROMPTS[:4], n=3, logprobs=2, seed=5),
    "cut off": lambda llm: generated(llm, PROMPTS[:3], top_p=0.7, top_k=50, min_p=0.01),
    "penalties": lambda llm: generated(
        llm, PROMPTS[:3], repetition_penalty=1.3, presence_penalty=0.5, bad_words=[" the"]
    ),
    "logprobs": lambda llm: generated(
        llm, PROMPTS[:2], logprobs=5, prompt_logprobs=2, max_tokens=3
    ),
    "masks": lambda llm: generated(
        llm,
        PROMPTS[:3],
        max_tokens=30,
        structured_outputs=StructuredOutputsParams(regex=r"\d{4}-[a-f]{3}"),
    ),
    "processors": lambda llm: generated(
        llm, PROMPTS[:3], logits_processors=[favour], logprobs=1, max_tokens=5
    ),
    "a processor that fails": failing,
    "beams": beams,
    "scores": scores,
    "sleep": woken,
}


def tiny(directory: Path, size: int, **options: Any) -> LLM:
    return tiny_llm(directory, **{**OPTIONS, "tensor_parallel_size": size, **options})


@pytest.fixture(scope="module")
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LLM, LLM]]:
    """The same model with processes and with threads for ranks; on four in bytes."""
    changes = {"quantization": "int8"} if request.param == 4 else {}
    folder = tmp_path_factory.mktemp("ranks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor, "RanksExecutor", ThreadRanks)
        threads = tiny(folder, request.param, **changes)
    with tiny(folder, request.param, **changes) as processes, threads:
        yield processes, threads


# A mark of its own for the pair: in one list with what is asked, it would be made anew each time.
@pytest.mark.parametrize("what", ASKED)
@pytest.mark.parametrize("pair", [2, pytest.param(4, marks=pytest.mark.long)], indirect=True)
def test_processes_give_the_bits_of_threads(pair: tuple[LLM, LLM], what: str) -> None:
    processes, threads = (ASKED[what](llm) for llm in pair)
    assert processes == threads


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
