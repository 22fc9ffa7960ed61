"""A row that guesses keeps what it draws as far as it was right, and goes on as if it had not."""

from __future__ import annotations

import numpy as np
import pytest
from torch import Tensor

from quire.executor.cpu.runner import Runner
from quire.executor.guessed import NO_GUESS, Draws
from quire.params.row_sampling import RowSampling
from quire.request import Ints
from quire.sampling.sampled import Sampled
from quire.step import DecodeRows, Masks, Slice, StepPlan, StepResult
from tests.executor.harness import TextSampler, ints
from tests.executor.test_runner import PROMPT, decode_plan, new_runner, prefill_plan, written

LENGTH = len(PROMPT)


def begun(**start: object) -> tuple[Runner, TextSampler, int]:
    """A runner whose row 0 has computed its prompt, and the token it drew."""
    runner, sampler = new_runner()
    return runner, sampler, written(runner.run(prefill_plan(**start)), 0)[0]  # type: ignore[arg-type]


def one_by_one(count: int) -> list[int]:
    """What row 0 draws in `count` steps after its prompt, the first one included."""
    runner, _, first = begun()
    made = [first]
    for i in range(count - 1):
        made += written(runner.run(decode_plan(ints(0), ints(LENGTH + i))), 0)
    return made


def guess(runner: Runner, start: int, fed: list[int], **plan: object) -> StepResult:
    one = Slice(0, start, ints(*fed), (0,), num_guessed=len(fed) - 1)
    return runner.run(StepPlan(prefill=(one,), **plan))  # type: ignore[arg-type]


def test_every_line_is_told_its_row_its_position_and_what_it_must_draw() -> None:
    slices = (
        Slice(3, 0, ints(7, 8, 9), (3, 4)),
        Slice(6, 0, ints(1), ()),
        Slice(5, 0, ints(5, 6), (5,), num_guessed=1),
    )
    draws = Draws.of(slices, np.array([3]), ints(4))
    assert draws.entries.tolist() == [0, 1, 2, 2, 3]
    assert draws.positions.tolist() == [3, 3, 1, 2, 5]
    assert draws.guesses.tolist() == [NO_GUESS, NO_GUESS, 6, NO_GUESS, NO_GUESS]
    assert draws.first_lines.tolist() == [0, 1, 2, 4]


@pytest.mark.parametrize("num_right", range(5))
def test_guesses_count_as_far_as_they_are_right(num_right: int) -> None:
    expected = one_by_one(9)
    runner, _, first = begun()
    fed = [first, *expected[1:5]]
    if num_right < 4:
        fed[1 + num_right] += 1
    result = guess(runner, LENGTH, fed)
    assert written(result, 0) == expected[1 : num_right + 2]
    made = [first, *written(result, 0)]
    while len(made) < 9:  # over the slots of wrong guesses
        result = runner.run(decode_plan(ints(0), ints(LENGTH + len(made) - 1)))
        made += written(result, 0)
    assert made == expected


def test_rows_with_and_without_guesses_share_a_pass() -> None:
    expected = one_by_one(4)
    runner, _, _ = begun()
    other = written(runner.run(prefill_plan(row=2, blocks=(20, 21, 22, 23, 24))), 0)[0]
    assert other == expected[0]
    decode = DecodeRows(ints(2), ints(LENGTH))
    result = guess(runner, LENGTH, expected[:3], decode=decode)
    assert written(result, 0) == expected[1:4]
    assert written(result, 1) == expected[1:2]


def test_a_stop_token_ends_the_row_among_its_guesses() -> None:
    expected = one_by_one(5)
    stop = expected[2]
    runner, _, first = begun(stop_ids=ints(stop))
    kept = expected[1 : expected.index(stop, 1) + 1]
    assert written(guess(runner, LENGTH, [first, *expected[1:5]]), 0) == kept
    assert not runner.rows.is_live(ints(0))[0]


def test_min_tokens_keep_a_stop_token_from_ending_it() -> None:
    expected = one_by_one(5)
    runner, _, first = begun(stop_ids=ints(expected[2]), sampling=RowSampling(min_tokens=20))
    assert written(guess(runner, LENGTH, [first, *expected[1:4]]), 0) == expected[1:5]


class FailingSampler(TextSampler):
    """Finds the logits of one position unusable."""

    fails_at = -1

    def sample(self, logits: Tensor, rows: Ints, positions: Ints, masks: Masks | None) -> Sampled:
        sampled = super().sample(logits, rows, positions, masks)
        failed = np.flatnonzero(positions == self.fails_at).tolist()
        return Sampled(sampled.tokens, sampled.logprobs, tuple(failed))


def test_a_failure_after_right_guesses_is_left_for_the_next_pass() -> None:
    expected = one_by_one(4)
    runner, _, first = begun()
    failing = FailingSampler()
    runner.sampler, failing.fails_at = failing, LENGTH + 2  # type: ignore[assignment]
    result = guess(runner, LENGTH, [first, *expected[1:4]])
    assert written(result, 0) == expected[1:2] and not result.failed
    result = guess(runner, LENGTH + 1, expected[1:4])
    assert result.failed == (0,) and result.counts.tolist() == [0]
