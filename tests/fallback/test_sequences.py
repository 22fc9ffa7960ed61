"""Sequences that are computed in one call."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quire import LLM
from quire.backends.ops import HeadShape
from quire.models.fallback.model import TransformersModel
from quire.models.fallback.recording import record
from quire.models.fallback.sequences import (
    MOST_TOKENS,
    FilledUp,
    Joins,
    OneSequence,
    independent,
    joined,
)
from quire.models.fallback.trial import BOUND, trial
from tests.fallback.judging import OPTIONS, PROMPTS, wrong
from tests.fallback.tiny import saved, tiny_model

ALL = Joins(starts=True, nexts=True)


def sequence(end: int, blocks: list[int] | None = None, new: int = 1, size: int = 4) -> OneSequence:
    """Of so many tokens, of which the last are new; token n has the id n."""
    table = np.array([blocks or range(-(-end // size))], np.int32)
    at = np.arange(end - new, end)
    ids, slots = torch.from_numpy(at + 1), torch.from_numpy(table[:, at // size] * size + at % size)
    return OneSequence(0, ids, slots, end - new, torch.from_numpy(table), table)


def ends(parts: list[list[OneSequence]]) -> list[list[int]]:
    return [[one.end for one in some] for some in parts]


def test_those_of_about_the_same_length_go_together() -> None:
    lengths = [5_000, 100, 300, 3, 400, 7]
    found = joined([sequence(n) for n in lengths], ALL)
    assert ends(found) == [[3, 7, 100], [300, 400], [5_000]]


def test_prompts_are_filled_up_by_no_more_than_a_call_costs() -> None:
    lengths = [90, 30, 5_000, 33, 31, 5_001]
    found = joined([sequence(n, new=n) for n in lengths], ALL)
    assert ends(found) == [[30, 31, 33], [90], [5_000], [5_001]]  # those have too many scores


def test_no_call_has_more_keys_than_memory_is_meant_for() -> None:
    found = joined([sequence(1_000) for _ in range(100)], ALL)
    assert [len(some) for some in found] == [MOST_TOKENS // 1_000] * 3 + [100 - 96]


def test_what_a_trial_did_not_show_goes_alone() -> None:
    given = [sequence(n, new=new) for n, new in ((5, 5), (6, 6), (7, 1), (8, 1), (9, 2), (10, 2))]
    assert ends(joined(given, Joins(starts=True))) == [[7], [8], [9], [10], [5, 6]]
    assert ends(joined(given, Joins(nexts=True))) == [[5], [6], [7, 8, 9, 10]]
    # A state takes up what stands behind a text.
    assert ends(joined(given, ALL, stateful=True)) == [[9], [10], [5, 6], [7, 8]]
    assert ends(joined(given, Joins(starts=True), whole=True)) == [[5, 6, 7, 8, 9, 10]]


def test_what_goes_on_behind_blocks_of_the_same_pass_comes_after_them() -> None:
    """Blocks of 4: the second begins behind block 0, which the first computes."""
    given = [sequence(5, [0, 1], new=5), sequence(6, [0, 2], new=2), sequence(3, [3], new=1)]
    assert ends(list(independent(given, 4))) == [[5], [6, 3]]


def test_shorter_ones_are_filled_up_from_the_left() -> None:
    """Blocks of 4: of six tokens in blocks 7 and 2, beside nine in blocks 5, 0 and 3."""
    last = FilledUp.of([sequence(6, [7, 2, -1]), sequence(9, [5, 0, 3])])
    assert (last.ids.tolist(), last.positions.tolist()) == ([[6], [9]], [[5], [8]])
    assert last.mask.tolist() == [[0, 0, 0, 1, 1, 1, 1, 1, 1], [1] * 9]
    blocks, places = last.places(0, 4)
    assert blocks.tolist() == [[7, 7, 7, 7, 7, 7, 7, 2, 2], [5, 5, 5, 5, 0, 0, 0, 0, 3]]
    assert places.tolist() == [[0, 0, 0, 0, 1, 2, 3, 0, 1], [0, 1, 2, 3, 0, 1, 2, 3, 0]]
    assert last.slots(0).tolist() == [2 * 4 + 1, 3 * 4]


def test_new_tokens_are_filled_up_behind_them() -> None:
    """Three behind two, beside two behind five."""
    filled = FilledUp.of([sequence(5, [7, 2], new=3), sequence(7, [5, 0], new=2)])
    assert filled.ids.tolist() == [[3, 4, 5], [6, 7, 0]]
    assert filled.positions.tolist() == [[2, 3, 4], [5, 6, 6]]
    assert filled.mask.tolist() == [[0, 0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 0]]
    _, places = filled.places(0, 4)
    assert places.tolist() == [[0, 0, 0, 0, 1, 2, 3, 0], [0, 1, 2, 3, 0, 1, 2, 2]]
    assert filled.slots(0).tolist() == [30, 31, 8, 1, 2]


def test_texts_that_begin_may_be_filled_up_in_front() -> None:
    given = [sequence(3, new=3), sequence(2, new=2)]
    filled = FilledUp.of(given, in_front=True)
    assert (filled.ids.tolist(), filled.is_plain) == ([[1, 2, 3], [0, 1, 2]], False)
    assert filled.positions.tolist() == [[0, 1, 2], [0, 0, 1]]
    assert filled.mask.tolist() == [[1, 1, 1], [0, 1, 1]]
    assert FilledUp.of(given).is_plain


@pytest.mark.parametrize(
    ("architecture", "joins", "most"),
    [
        ("BloomForCausalLM", ALL, len(PROMPTS)),
        ("Mamba2ForCausalLM", ALL, len(PROMPTS)),
        ("RwkvForCausalLM", ALL, len(PROMPTS) - 1),  # by whole texts, of which one is much shorter
        ("RobertaForCausalLM", Joins(starts=True), 2),
    ],
)
def test_rows_share_a_call_where_that_comes_out_right(
    architecture: str, joins: Joins, most: int, tmp_path: Path
) -> None:
    """Roberta counts positions behind the tokens that it is given."""
    options = {**OPTIONS, "block_size": None, "num_gpu_blocks_override": None}
    options |= {"max_num_batched_tokens": 128, "model_impl": "transformers"}
    module = tiny_model(architecture)
    llm = LLM(saved(module, tmp_path), **options)
    model: Any = llm._session.model.executor._model  # type: ignore[attr-defined]
    assert model.joins == joins
    shapes: list[tuple[int, ...]] = []
    hidden = model.body.hidden

    def counted(ids: torch.Tensor, *given: Any) -> Any:
        shapes.append(tuple(ids.shape))
        return hidden(ids, *given)

    model.body.hidden = counted
    assert wrong(llm, module, preempts=False) == ""
    llm.close()
    calls_of_prompts = [rows for rows, new in shapes if new > 1]
    assert max(calls_of_prompts) > 1
    assert max(rows for rows, _ in shapes) == most


def test_a_trial_whose_logits_are_no_numbers_fails() -> None:
    module = tiny_model("BloomForCausalLM")
    seen, call = record(module)
    shape = HeadShape(4, 4, 8, 4, torch.float32)
    no_kernels: Any = None  # of a model whose attention is its own
    model = TransformersModel(module, call, replace(seen, calls=()), no_kernels, shape, joins=ALL)
    with torch.inference_mode():
        assert trial(model, shape) <= BOUND
        model.body.logits = lambda hidden: torch.full((len(hidden), 96), torch.nan)  # type: ignore[method-assign]
        assert not trial(model, shape) <= BOUND
