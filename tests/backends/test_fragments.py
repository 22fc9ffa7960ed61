"""Codes in the order of tensor cores: products computed as threads would compute them."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from quire.backends.quantised.fragments import MAGIC, FragmentMatrix, fragments, has_fragments
from quire.backends.quantised.grouped import GroupedMatrix
from tests.backends.triton.grouped_checks import matrices


def made_plain(packed: FragmentMatrix, dtype: torch.dtype) -> Tensor:
    """The weight by what each thread has: a[i] of mma.m16n8k16 is line g + 8 (i % 2) and columns
    2 t + 8 (i / 2) and the next."""
    lines, columns = packed.shape
    out = torch.zeros(packed.codes.shape[0] * 64, columns)
    words = packed.codes.long() & 0xFFFFFFFF
    seconds = packed.zeros if packed.minima is None else packed.minima
    for block, k64, tile, thread, k16 in itertools.product(*map(range, packed.codes.shape)):
        g, t, word = thread // 4, thread % 4, int(words[block, k64, tile, thread, k16])
        for i, second in itertools.product(range(4), range(2)):
            code = (word >> (4 * i + 16 * second)) & 15
            column = k64 * 64 + k16 * 16 + 2 * t + 8 * (i // 2) + second
            place = (block, column // packed.group, g, tile * 2 + i % 2)
            less = -(MAGIC[dtype] + packed.zero) if packed.zeros is None else packed.zeros[place]
            value = (code + MAGIC[dtype] + float(less)) * float(packed.scales[place])
            if packed.minima is not None and seconds is not None:
                value += float(seconds[place])
            out[block * 64 + tile * 16 + g + 8 * (i % 2), column] = value
    return out[:lines]


@pytest.mark.parametrize("kind", ["4 bits", "4 bits, zeros", "4 bits, minima"])
@pytest.mark.parametrize("group", [32, 128])
def test_each_thread_has_its_own_weights(kind: str, group: int) -> None:
    torch.manual_seed(0)
    dtype = torch.bfloat16 if group == 32 else torch.float16
    matrix = matrices(70, 128, group, dtype, torch.device("cpu"))[kind]
    assert has_fragments(matrix, dtype)
    found = made_plain(fragments(matrix, dtype), dtype)
    torch.testing.assert_close(found, matrix.dequantised(), rtol=1e-6, atol=1e-6)


def test_says_what_it_has_no_order_for() -> None:
    made = matrices(64, 256, 64, torch.float16, torch.device("cpu"))
    kinds = {name for name, one in made.items() if has_fragments(one, torch.bfloat16)}
    assert kinds == {"4 bits", "4 bits, zeros", "4 bits, minima", "4 bits, order"}
    assert not has_fragments(made["4 bits"], torch.float32)
    scales = torch.ones(64, 4)
    assert not has_fragments(GroupedMatrix(4, made["4 bits"].codes, scales), torch.bfloat16)
