"""States in C: what plain torch makes of them, and the same bits whichever pass a token is in."""

from __future__ import annotations

import ctypes

import pytest
import torch

from quire.backends.cpu.native.states import NativeStates
from quire.backends.ops import AttentionInputs
from quire.backends.states import state_pass
from tests.backends.test_states import REAL, SIZE, check_bits
from tests.backends.triton.test_states import PLANS, rates_of, rule_of

# Tokens of this pass and before it: across blocks, from the first on, within one; then decode rows
# that end a block, begin one, or stand in its middle.
SLICES = [(18, 0), (9, 6), (2, 7)]
ROWS = [(1, 15), (1, 8), (1, 3)]
BLOCK = 8


DTYPES = (torch.float32, torch.bfloat16)
# Large states once with each instruction set: what a type changes, small ones show as well.
CASES = [
    *((name, dtype) for name in PLANS for dtype in DTYPES if "real" not in name),
    *(("mamba, real size", DTYPES[0]), ("real size", DTYPES[1])),
]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_tokens_are_taken_up_in_the_blocks_of_their_rows(
    name: str, dtype: torch.dtype, library: ctypes.CDLL
) -> None:
    """What tokens read, and every state that a later one may begin from; nothing else changes, and
    lines of padding read 0."""
    plan, slices = PLANS[name], SLICES + ROWS
    lengths = torch.tensor([new + past for new, past in slices])
    width = -(-int(lengths.max()) // BLOCK)
    torch.manual_seed(1)
    tables = torch.randperm(len(slices) * width + 2)[: len(slices) * width].view(-1, width)
    starts = torch.tensor([0, *(new for new, _ in slices)]).cumsum(0)
    count, padding = int(starts[-1]), 3
    room = 2 * -(-(plan.state_numbers // 2 + 3) // BLOCK) * BLOCK
    cache = torch.randn(2, tables.numel() + 2, room // 2)
    kept = cache.clone()
    x, rates = torch.randn(count + padding, plan.channels), rates_of(plan, count + padding)
    inputs = AttentionInputs(starts, lengths, tables, starts, len(SLICES))
    given = rule_of(plan), x.to(dtype), rates
    shape = (2, len(cache[0]), 1, BLOCK, -1)
    wanted = state_pass(inputs, BLOCK).take_up(*given, *kept.view(dtype).view(shape))
    made = NativeStates(library, state_pass(inputs, BLOCK))
    read = made.take_up(*given, *cache.view(dtype).view(shape))
    assert read.shape == wanted.shape and not read[count:].any()
    torch.testing.assert_close(read, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(cache, kept, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", REAL)
def test_a_token_has_the_same_bits_in_any_pass(name: str, library: ctypes.CDLL) -> None:
    check_bits(REAL[name], lambda inputs: NativeStates(library, state_pass(inputs, SIZE)))
