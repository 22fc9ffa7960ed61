"""Which blocks a pass reads states from and writes them to."""

from __future__ import annotations

import pytest
import torch

from quire.backends.ops import AttentionInputs
from quire.backends.states import Span, StateBlocks, state_pass


def test_a_pass_goes_from_block_to_block() -> None:
    """Six tokens from position 2 on, three from the first on, and a row that begins its third
    block of 4."""
    inputs = AttentionInputs(
        query_starts=torch.tensor([0, 6, 9, 10]),
        context_lens=torch.tensor([8, 3, 9]),
        tables=torch.tensor([[7, 5, -1], [4, -1, -1], [0, 2, 6]]),
        slots=torch.empty(0),
        num_prefill=2,
    )
    made = state_pass(inputs, 4)
    assert made.spans == (Span(0, 2, 7, 7), Span(2, 6, 7, 5), Span(6, 9, None, 4))
    assert (made.before.tolist(), made.into.tolist(), made.first_decode) == ([2], [6], 9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_comes_back_as_it_was(dtype: torch.dtype) -> None:
    """Float32 whatever keys and values are, across the two halves of a block."""
    keys, values = torch.zeros(2, 5, 2, 4, 8, dtype=dtype)
    numbers = 51 if dtype == torch.bfloat16 else 101
    blocks, at = StateBlocks(keys, values, numbers), torch.tensor([3, 1])
    given = torch.randn(2, numbers)
    blocks.store(at, 0, given[:, :20])
    blocks.store(at, 20, given[:, 20:])
    assert torch.equal(blocks.load(at, 0, numbers), given)
    assert torch.equal(blocks.load(at.flip(0), 15, 40), given.flip(0)[:, 15:40])
    assert not keys[[0, 2, 4]].any() and not values[[0, 2, 4]].any()
    with pytest.raises(RuntimeError, match="room for"):
        StateBlocks(keys, values, 2 * 64 + 1)
