"""What a Runner makes of a StepPlan: order of changes, repeat, freezing, failures, scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quire.executor.cpu import runner as runner_module
from quire.executor.cpu.runner import Runner
from quire.layers.embedding import Embedding
from quire.params.row_sampling import RowSampling
from quire.request import Ints
from quire.sampling_params import SamplingParams
from quire.step import (
    Assigned,
    DecodeRows,
    Masks,
    PrefixGroup,
    Slice,
    StepPlan,
    StepResult,
    Targets,
    join_scores,
)
from quire.weights.load import dummy_weights
from tests.executor.harness import TextSampler, ints, make_runner, row_start
from tests.executor.test_invariance import loud, spec_of

SPEC = spec_of()
WEIGHTS = loud(dummy_weights(SPEC, dtype=torch.float32, device="cpu", seed=3))
PROMPT = [5, 9, 14, 3, 77, 20, 1]


def new_runner() -> tuple[Runner, TextSampler]:
    return make_runner(SPEC, WEIGHTS, block_size=4)


def assigned(row: int, *blocks: int) -> Assigned:
    return Assigned(ints(*[row] * len(blocks)), ints(*range(len(blocks))), ints(*blocks))


def prefill_plan(
    row: int = 0, blocks: tuple[int, ...] = (8, 2, 5, 7, 11), **start: object
) -> StepPlan:
    return StepPlan(
        starts=(row_start(row, PROMPT, **start),),
        assigned=assigned(row, *blocks),
        prefill=(Slice(row, 0, ints(*PROMPT), (row,)),),
    )


def decode_plan(rows: Ints, positions: Ints, **changes: object) -> StepPlan:
    return StepPlan(decode=DecodeRows(rows, positions), **changes)  # type: ignore[arg-type]


def written(result: StepResult, index: int) -> list[int]:
    tokens: list[int] = result.tokens[index, : result.counts[index]].tolist()
    return tokens


def test_repeat_gives_the_tokens_of_single_steps() -> None:
    runner, _ = new_runner()
    first = runner.run(prefill_plan())
    singles = written(first, 0)
    for k in range(8):
        singles += written(runner.run(decode_plan(ints(0), ints(7 + k))), 0)
    runner, _ = new_runner()
    runner.run(prefill_plan())
    repeated = runner.run(decode_plan(ints(0), ints(7), repeat=8))
    assert repeated.tokens.shape == (1, 8)
    assert singles[1:] == written(repeated, 0)
    assert len(set(singles)) > 2


def greedy(count: int) -> list[int]:
    runner, _ = new_runner()
    out = written(runner.run(prefill_plan()), 0)
    return out + written(runner.run(decode_plan(ints(0), ints(7), repeat=count - 1)), 0)


def test_a_row_freezes_at_a_stop_id() -> None:
    expected = greedy(8)
    stop = next(t for t in expected[2:] if t not in expected[:2])
    at = expected.index(stop)
    runner, _ = new_runner()
    runner.run(prefill_plan(stop_ids=ints(199, stop)))
    result = runner.run(decode_plan(ints(0), ints(7), repeat=7))
    assert written(result, 0) == expected[1 : at + 1]
    again = runner.run(decode_plan(ints(0), ints(14)))
    assert again.counts.tolist() == [0]


def test_a_stop_id_counts_only_from_min_tokens_on() -> None:
    expected = greedy(8)
    params = SamplingParams(max_tokens=100, min_tokens=6)
    runner, _ = new_runner()
    runner.run(prefill_plan(sampling=RowSampling.of(params), stop_ids=ints(*set(expected))))
    result = runner.run(decode_plan(ints(0), ints(7), repeat=7))
    assert written(result, 0) == expected[1:6]


def test_a_row_freezes_at_max_tokens_which_counts_earlier_outputs() -> None:
    runner, _ = new_runner()
    runner.run(prefill_plan(max_tokens=4))
    assert runner.run(decode_plan(ints(0), ints(7), repeat=7)).counts.tolist() == [3]
    runner, _ = new_runner()
    start = row_start(0, PROMPT[:5], output_ids=ints(*PROMPT[5:]), max_tokens=4)
    plan = StepPlan(
        starts=(start,),
        assigned=assigned(0, 8, 2, 5, 7),
        prefill=(Slice(0, 0, ints(*PROMPT), (0,)),),
    )
    assert runner.run(plan).counts.tolist() == [1]
    assert runner.run(decode_plan(ints(0), ints(7), repeat=7)).counts.tolist() == [1]


def test_a_frozen_row_does_not_hold_the_others() -> None:
    expected = greedy(8)
    runner, _ = new_runner()
    runner.run(prefill_plan(0, max_tokens=3))
    runner.run(prefill_plan(1, (20, 21, 22, 23)))
    result = runner.run(decode_plan(ints(0, 1), ints(7, 7), repeat=7))
    assert result.counts.tolist() == [2, 7]
    assert written(result, 1) == expected[1:]
    assert written(result, 0) == expected[1:3]


def test_a_row_taken_again_starts_afresh() -> None:
    runner, _ = new_runner()
    first = runner.run(prefill_plan(max_tokens=1))
    plan = prefill_plan(0, (40, 41, 42, 43))
    plan = StepPlan(ends=ints(0), starts=plan.starts, assigned=plan.assigned, prefill=plan.prefill)
    assert written(runner.run(plan), 0) == written(first, 0)
    assert runner.run(decode_plan(ints(0), ints(7))).counts.tolist() == [1]


def test_an_ended_row_points_nowhere() -> None:
    runner, _ = new_runner()
    runner.run(prefill_plan())
    runner.run(StepPlan(ends=ints(0)))
    assert (runner.rows.tables[0, 0] == -1).all()
    assert runner.run(decode_plan(ints(0), ints(7))).counts.tolist() == [0]


def test_a_plan_without_tokens_changes_rows_and_returns_nothing() -> None:
    runner, _ = new_runner()
    result = runner.run(StepPlan(starts=(row_start(3, PROMPT),)))
    assert result.tokens.shape == (0, 1)


def test_siblings_draw_from_one_computation() -> None:
    runner, sampler = new_runner()
    plan = StepPlan(
        starts=tuple(row_start(row, PROMPT) for row in (4, 2, 9)),
        assigned=assigned(4, 8, 2),
        prefill=(Slice(4, 0, ints(*PROMPT), (4, 2, 9)),),
    )
    result = runner.run(plan)
    assert result.counts.tolist() == [1, 1, 1]
    assert torch.equal(sampler.logits[4, 7], sampler.logits[2, 7])
    assert torch.equal(sampler.logits[4, 7], sampler.logits[9, 7])


def test_a_copied_block_is_as_good_as_its_source() -> None:
    expected = greedy(4)
    runner, sampler = new_runner()
    sampler.texts = {0: [*PROMPT, 100, 101, 102]}
    runner.run(prefill_plan(0))
    runner.run(
        StepPlan(
            starts=(row_start(1, PROMPT, output_ids=ints(expected[0])),),
            assigned=Assigned(ints(1, 1, 1), ints(0, 1, 2), ints(8, 30, 31)),
            copies=((2, 30),),
            decode=DecodeRows(ints(0), ints(7)),
        )
    )
    result = runner.run(decode_plan(ints(1), ints(7), repeat=3))
    assert written(result, 0) == expected[1:]


def test_a_slice_reads_what_an_earlier_slice_of_the_plan_writes() -> None:
    runner, sampler = new_runner()
    runner.run(
        StepPlan(
            starts=(row_start(0, PROMPT), row_start(1, PROMPT)),
            assigned=Assigned(ints(0, 0, 1, 1), ints(0, 1, 0, 1), ints(8, 2, 8, 3)),
            prefill=(
                Slice(0, 0, ints(*PROMPT), (0,)),
                Slice(1, 4, ints(*PROMPT[4:]), (1,)),
            ),
        )
    )
    assert torch.allclose(sampler.logits[0, 7], sampler.logits[1, 7], atol=1e-4)


def test_grouped_rows_draw_what_ungrouped_ones_do() -> None:
    made = []
    for grouped in (False, True):
        runner, sampler = new_runner()
        runner.run(prefill_plan(0))
        for row in (1, 2, 3):
            runner.run(
                StepPlan(
                    starts=(row_start(row, PROMPT),),
                    assigned=assigned(row, 8, 30 + row, 40 + row, 50 + row),
                    prefill=(Slice(row, 4, ints(*PROMPT[4:]), (row,)),),
                )
            )
        sampler.texts = {row: [*PROMPT, 50 + row, 60 + row, 70 + row, 80 + row] for row in range(4)}
        groups = (PrefixGroup(ints(8), ints(0, 1, 2, 3)),) if grouped else ()
        runner.run(decode_plan(ints(2, 0, 3, 1), ints(7, 7, 7, 7), repeat=3, groups=groups))
        made.append(sampler.logits)
    assert made[0].keys() == made[1].keys()
    for key, logits in made[0].items():
        assert torch.allclose(made[1][key], logits, atol=1e-4)


def test_a_row_of_nan_fails_alone_and_leaves_no_trace() -> None:
    expected = greedy(6)
    runner, _ = new_runner()
    table = runner.model.embedding(torch.arange(200), torch.zeros(200))
    table[199] = torch.nan
    runner.model.embedding = Embedding(runner.model.kernels, table)
    bad = [*PROMPT[:6], 199]
    plan = StepPlan(
        starts=(row_start(0, PROMPT), row_start(1, bad)),
        assigned=Assigned(ints(0, 0, 0, 0, 1, 1), ints(0, 1, 2, 3, 0, 1), ints(8, 2, 5, 7, 20, 21)),
        prefill=(Slice(0, 0, ints(*PROMPT), (0,)), Slice(1, 0, ints(*bad), (1,))),
    )
    result = runner.run(plan)
    assert result.failed == (1,)
    assert result.counts.tolist() == [1, 0]
    both = runner.run(decode_plan(ints(0, 1), ints(7, 7), repeat=2))
    assert both.counts.tolist() == [2, 0]
    assert both.failed == ()
    # The blocks of the failed row go to another sequence, full of NaN.
    reuse = prefill_plan(1, (21, 20, 22))
    runner.run(StepPlan(ends=ints(1)))
    assert written(runner.run(reuse), 0) == expected[:1]
    more = runner.run(decode_plan(ints(1, 0), ints(7, 9), repeat=2))
    assert written(more, 0) == expected[1:3]
    assert more.failed == ()


def test_a_row_that_fails_while_repeating_keeps_what_it_had() -> None:
    class FailsLater(TextSampler):
        def sample(self, logits: torch.Tensor, rows: Ints, positions: Ints, masks: Masks | None):  # type: ignore[no-untyped-def]
            logits = logits.clone()
            logits[torch.from_numpy(positions == 9)] = torch.nan
            return super().sample(logits, rows, positions, masks)

    runner, _ = new_runner()
    runner.sampler = FailsLater()  # type: ignore[assignment]
    runner.run(prefill_plan())
    result = runner.run(decode_plan(ints(0), ints(7), repeat=5))
    assert result.counts.tolist() == [1]
    assert result.failed == (0,)


@pytest.mark.parametrize("limit", [1, 3 * 200 * 4, 64 << 20])
def test_prompt_scores_do_not_depend_on_how_they_are_cut(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(runner_module, "CPU_BYTES", limit)
    runner, _ = new_runner()
    starts = (row_start(0, PROMPT),)
    first = Slice(0, 0, ints(*PROMPT[:4]), (), Targets(ints(0, 1, 2, 3), ints(*PROMPT[1:5])))
    last = Slice(0, 4, ints(*PROMPT[4:]), (0,), Targets(ints(0, 1), ints(*PROMPT[5:])))
    cut = runner.run(StepPlan(starts=starts, assigned=assigned(0, 8, 2), prefill=(first,))).scored
    rest = runner.run(StepPlan(prefill=(last,))).scored
    scores = join_scores([cut[0], rest[0]])
    assert scores.token_ids.tolist() == PROMPT[1:]
    runner, sampler = new_runner()
    for at in range(1, len(PROMPT)):
        runner.run(
            StepPlan(
                starts=(row_start(at, PROMPT[:at]),),
                assigned=assigned(at, 2 * at, 2 * at + 1),
                prefill=(Slice(at, 0, ints(*PROMPT[:at]), (at,)),),
            )
        )
        expected = sampler.logits[at, at].log_softmax(-1)[PROMPT[at]]
        assert float(scores.logprobs[at - 1]) == pytest.approx(float(expected), abs=1e-4)


def test_slices_nobody_asked_to_score_are_not_scored() -> None:
    runner, _ = new_runner()
    assert runner.run(prefill_plan()).scored == {}


def test_positions_drawn_are_one_past_the_tokens_fed() -> None:
    runner, sampler = new_runner()
    runner.run(prefill_plan())
    runner.run(decode_plan(ints(0), ints(7), repeat=2))
    assert sorted(sampler.logits) == [(0, 7), (0, 8), (0, 9)]


def test_tables_grow_with_their_rows() -> None:
    runner, _ = new_runner()
    blocks = np.arange(100, dtype=np.int32)
    runner.rows.assign(Assigned(np.full(100, 3, np.int32), blocks, blocks + 50))
    assert runner.rows.tables[0, 3, :100].tolist() == list(range(50, 150))
    assert (runner.rows.tables[0, 2] == -1).all()
