"""Rows that write given texts through the real scheduler, on a machine whose passes take what a
line says: what guessing brings can then be counted, without a clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.cache.pool import BlockPool
from quire.config import Speculation
from quire.request import Request
from quire.sampling_params import SamplingParams
from quire.scheduler.limits import Limits
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.sequence import Sequence
from quire.step import Slice, StepPlan, StepResult

Text = tuple[list[int], list[int]]  # prompt and answer
USUAL = Speculation(num_tokens=16, shortest=1, longest=8)


@dataclass(frozen=True)
class Machine:
    """Seconds of a pass, and of each position in it."""

    fixed: float = 15.0
    each: float = 0.35


@dataclass(frozen=True)
class Told:
    """What a run took in decode passes, and what came of its guesses."""

    seconds: float
    num_passes: int
    num_guessed: int
    num_accepted: int
    outputs: list[list[int]]


def write(
    texts: list[Text],
    speculation: Speculation | None,
    machine: Machine,
    *,
    max_num_seqs: int = 256,
    **params: object,
) -> Told:
    """Let each row write its text; all must come out as they are."""
    limits = Limits(max_num_seqs, 1024, speculation=speculation)
    scheduler = Scheduler(BlockPool(20_000, block_size=16), limits)
    for number, (prompt, answer) in enumerate(texts):
        request = Request(
            number=number,
            prompt_ids=np.array(prompt, np.int32),
            params=SamplingParams(max_tokens=len(answer), **params),  # type: ignore[arg-type]
            max_tokens=len(answer),
            noise_key=number,
        )
        scheduler.add([Sequence(request, order=number)])
    row_text: dict[int, list[int]] = {}
    outputs: dict[int, list[int]] = {}
    seconds, num_passes = 0.0, 0
    while scheduler.num_unfinished:
        plan = scheduler.schedule()
        assert plan is not None
        for start in plan.starts:
            prompt, answer = texts[start.noise_key]
            row_text[start.row] = prompt + answer
        took = machine.fixed + machine.each * plan.num_tokens
        if all(s.num_guessed for s in plan.prefill):
            seconds, num_passes = seconds + took, num_passes + 1
        for sequence in scheduler.commit(_drawn(plan, row_text), took).ended:
            outputs[sequence.request.number] = sequence.output_ids.tolist()
    assert [outputs[i] for i in range(len(texts))] == [answer for _, answer in texts]
    guesses = scheduler.guesses
    return Told(
        seconds, num_passes, guesses.num_guessed, guesses.num_accepted, list(outputs.values())
    )


def _drawn(plan: StepPlan, row_text: dict[int, list[int]]) -> StepResult:
    made = [_of_slice(s, row_text[s.row]) for s in plan.prefill if s.sample_into]
    for row, position in zip(
        plan.decode.rows.tolist(), plan.decode.positions.tolist(), strict=True
    ):
        made.append([row_text[row][position + 1]])
    width = max(map(len, made), default=1)
    tokens = [some + [-1] * (width - len(some)) for some in made]
    counts = np.array([len(some) for some in made], np.int32)
    return StepResult(np.array(tokens, np.int32).reshape(-1, width), counts)


def _of_slice(s: Slice, text: list[int]) -> list[int]:
    end = s.start + len(s.token_ids)
    guesses = s.token_ids[len(s.token_ids) - s.num_guessed :].tolist()
    true = text[end - s.num_guessed : end + 1]
    right = next((i for i, guess in enumerate(guesses) if guess != true[i]), len(guesses))
    return true[: right + 1]
