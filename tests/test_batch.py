"""A Batch is its plan in tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quire.layers.batch import make_batch
from quire.layers.tp import TensorParallel
from quire.ranks.shares import RankShare
from quire.step import PrefixGroup, Slice
from tests.executor.harness import ints


def tables() -> torch.Tensor:
    """Of one group of layers."""
    made = torch.full((8, 6), -1, dtype=torch.int32)
    made[5, :2] = torch.tensor([11, 12])
    made[0, :3] = torch.tensor([20, 21, 22])
    made[3, :3] = torch.tensor([20, 31, 32])
    return made[None]


def test_slices_come_first_then_decode_rows() -> None:
    batch = make_batch(
        [Slice(5, 2, ints(7, 8, 9), (5, 6))],
        ints(0, 3),
        ints(9, 6),
        [PrefixGroup(ints(20), ints(3, 0, 7))],
        last_tokens=torch.tensor([1, 0, 0, 2, 0, 0, 0, 0]),
        tables=tables(),
        block_size=4,
        padded=lambda n: n + 2,
    )
    assert batch.token_ids.tolist() == [7, 8, 9, 1, 2, 0, 0]
    assert batch.positions.tolist() == [2, 3, 4, 9, 6, 0, 0]
    assert batch.slots.tolist() == [[46, 47, 48, 89, 126]]
    assert batch.num_tokens == 5
    assert batch.query_starts.tolist() == [0, 3, 4, 5]
    assert batch.context_lens.tolist() == [5, 10, 7]
    assert batch.tables.tolist() == [[[11, 12, -1], [20, 21, 22], [20, 31, 32]]]
    assert batch.logit_tokens.tolist() == [2, 3, 4]
    assert batch.draws.tolist() == [0, 0, 1, 2]
    (prefix,) = batch.prefixes
    assert prefix.blocks.tolist() == [[20]]
    assert prefix.members.tolist() == [2, 1]


def test_a_block_first_written_and_not_filled_is_fresh() -> None:
    def fresh(start: int, count: int) -> list[int]:
        tokens = np.zeros(count, np.int32)
        blocks: list[int] = make_batch(
            [Slice(0, start, tokens)],
            ints(),
            ints(),
            last_tokens=torch.zeros(8, dtype=torch.int64),
            tables=tables(),
            block_size=4,
            padded=lambda n: n,
        ).fresh_blocks.tolist()
        return blocks

    assert fresh(0, 1) == [20]
    assert fresh(0, 4) == []
    assert fresh(1, 2) == []
    assert fresh(3, 3) == [21]
    assert fresh(4, 8) == []
    assert fresh(0, 9) == [22]


def test_one_rank_is_the_identity() -> None:
    tp = TensorParallel()
    x = torch.randn(3)
    assert tp.all_reduce(x) is x and tp.all_gather(x, 3) is x
    assert tp.head_rows(7) == 7 and tp.least(5) == 5
    with pytest.raises(ValueError, match="one needs the other"):
        TensorParallel(RankShare(0, 2))
