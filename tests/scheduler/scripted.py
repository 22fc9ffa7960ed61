"""Rows that write given texts through the real scheduler, on a machine whose passes take what a
line says: what guessing brings can then be counted, without a clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.cache.pool import BlockPool
from quire.config import Speculation
from quire.request import Request
from quire.sampling_params import SamplingParams
from quire.scheduler.guesses import continuation, look_up
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
    max_repeat: int = 1,
    **params: object,
) -> Told:
    """Let each row write its text; all must come out as they are."""
    limits = Limits(max_num_seqs, 1024, max_repeat=max_repeat, speculation=speculation)
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
        took = machine.fixed * plan.repeat + machine.each * plan.num_tokens
        if all(s.num_guessed for s in plan.prefill):
            seconds, num_passes = seconds + took, num_passes + plan.repeat
        for sequence in scheduler.commit(_drawn(plan, row_text), took).ended:
            outputs[sequence.request.number] = sequence.output_ids.tolist()
    assert [outputs[i] for i in range(len(texts))] == [answer for _, answer in texts]
    guesses = scheduler.guesses
    return Told(
        seconds, num_passes, guesses.num_guessed, guesses.num_accepted, list(outputs.values())
    )


def _drawn(plan: StepPlan, row_text: dict[int, list[int]]) -> StepResult:
    made = [_of_slice(s, row_text[s.row]) for s in plan.prefill if s.sample_into]
    passes, guessed = [], []
    for line, (row, position) in enumerate(
        zip(plan.decode.rows.tolist(), plan.decode.positions.tolist(), strict=True)
    ):
        told = [_of_pass(plan, line, row_text[row], position + 1)]
        while len(told) < plan.repeat and told[-1][1] < len(row_text[row]):
            told.append(_of_pass(plan, line, row_text[row], told[-1][1]))
        made.append(row_text[row][position + 1 : told[-1][1]])
        passes.append(len(told))
        guessed.append(sum(count for count, _ in told))
    width = max(map(len, made), default=1)
    tokens = [some + [-1] * (width - len(some)) for some in made]
    counts = np.array([len(some) for some in made], np.int32)
    drawn = np.array(tokens, np.int32).reshape(-1, width)
    if plan.guessing is None:
        return StepResult(drawn, counts)
    told_of = (np.array(numbers, np.int32) for numbers in (passes, guessed))
    return StepResult(drawn, counts, **dict(zip(("passes", "guessed"), told_of, strict=True)))


def _of_pass(plan: StepPlan, line: int, text: list[int], end: int) -> tuple[int, int]:
    """How many tokens decode row `line` guesses after the first `end` of its text, and how far the
    pass brings it."""
    asked = plan.guessing
    if asked is None or not asked.lengths[line]:
        return 0, end + 1
    known = np.array(text[:end], np.int32)
    begin, agreed = look_up(known, asked.shortest, asked.longest)
    guesses = continuation(known, begin, asked.count).tolist() if agreed else []
    guesses = guesses[: len(text) - end - 1]
    true = text[end:]
    right = next((i for i, guess in enumerate(guesses) if guess != true[i]), len(guesses))
    return len(guesses), end + right + 1


def _of_slice(s: Slice, text: list[int]) -> list[int]:
    end = s.start + len(s.token_ids)
    guesses = s.token_ids[len(s.token_ids) - s.num_guessed :].tolist()
    true = text[end - s.num_guessed : end + 1]
    right = next((i for i, guess in enumerate(guesses) if guess != true[i]), len(guesses))
    return true[: right + 1]
