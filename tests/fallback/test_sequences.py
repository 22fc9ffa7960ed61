"""Sequences that go on by one token each, computed in one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quire import LLM, SamplingParams
from quire.models.fallback.sequences import MOST_TOKENS, LastTokens, OneSequence, joined
from tests.fallback.judging import OPTIONS, PROMPTS
from tests.fallback.tiny import saved, tiny_model


def sequence(length: int, blocks: list[int] | None = None, size: int = 4) -> OneSequence:
    table = np.array([blocks or range(-(-length // size))], np.int32)
    slot = int(table[0, (length - 1) // size]) * size + (length - 1) % size
    ids, slots = torch.tensor([length]), torch.tensor([[slot]])
    return OneSequence(0, ids, slots, length - 1, torch.from_numpy(table), table)


def test_those_of_about_the_same_length_go_together() -> None:
    lengths = [5_000, 100, 300, 3, 400, 7]
    found = [[one.end for one in some] for some in joined([sequence(n) for n in lengths])]
    assert found == [[3, 7, 100], [300, 400], [5_000]]


def test_no_call_has_more_keys_than_memory_is_meant_for() -> None:
    found = joined([sequence(1_000) for _ in range(100)])
    assert [len(some) for some in found] == [MOST_TOKENS // 1_000] * 3 + [100 - 96]


def test_shorter_ones_are_filled_up_from_the_left() -> None:
    """Blocks of 4: of six tokens in blocks 7 and 2, beside nine in blocks 5, 0 and 3."""
    last = LastTokens.of([sequence(6, [7, 2, -1]), sequence(9, [5, 0, 3])])
    assert (last.ids.tolist(), last.positions.tolist()) == ([[6], [9]], [[5], [8]])
    assert last.mask.tolist() == [[0, 0, 0, 1, 1, 1, 1, 1, 1], [1] * 9]
    blocks, places = last.places(0, 4)
    assert blocks.tolist() == [[7, 7, 7, 7, 7, 7, 7, 2, 2], [5, 5, 5, 5, 0, 0, 0, 0, 3]]
    assert places.tolist() == [[0, 0, 0, 0, 1, 2, 3, 0, 1], [0, 1, 2, 3, 0, 1, 2, 3, 0]]
    assert last.slots(0).tolist() == [2 * 4 + 1, 3 * 4]
    assert (last.blocks_of(0, 1, 4), last.blocks_of(0, 0, 4)) == ([2, 0], [2, 3])


@pytest.mark.parametrize(
    ("architecture", "together"),
    [("BloomForCausalLM", True), ("Mamba2ForCausalLM", True), ("RobertaForCausalLM", False)],
)
def test_rows_share_a_call_where_that_comes_out_right(
    architecture: str, together: bool, tmp_path: Path
) -> None:
    """Roberta counts positions behind the tokens that it is given."""
    options = {**OPTIONS, "block_size": None, "num_gpu_blocks_override": None}
    options["max_num_batched_tokens"] = 128
    llm = LLM(saved(tiny_model(architecture), tmp_path), **options)
    model: Any = llm._session.model.executor._model  # type: ignore[attr-defined]
    assert model.together == together
    sizes: list[int] = []
    hidden = model.body.hidden

    def counted(ids: torch.Tensor, *given: Any) -> Any:
        sizes.append(len(ids))
        return hidden(ids, *given)

    model.body.hidden = counted
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], params, use_tqdm=False)
    llm.close()
    assert max(sizes) == (len(PROMPTS) if together else 1)
