"""Codes in the order of tensor cores: products computed as threads would compute them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from quire.backends.quantised.fragments import MAGIC, FragmentMatrix, fragments, has_fragments
from quire.backends.quantised.grouped import FP4, GroupedMatrix
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
            number = FP4[code] if packed.is_fp4 else code + MAGIC[dtype] + float(less)
            value = number * float(packed.scales[place])
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


@pytest.mark.parametrize("kind", ["4 bits", "4 bits, zeros", "4 bits, minima", "4 bits, table"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_they_can_be_made_plain_again(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    matrix = matrices(200, 128, 32, dtype, torch.device("cpu"))[kind]
    if matrix.table is not None:
        matrix = replace(matrix, table=torch.tensor(FP4))
    packed = fragments(matrix, dtype)
    assert torch.equal(packed.dequantised(), matrix.dequantised())
    assert torch.equal(packed.blocks(1, 3).dequantised(), matrix.rows(64, 192).dequantised())


@pytest.mark.parametrize("unit", [1.0, 2.0, 0.25])
def test_floats_of_4_bits_may_be_times_a_power_of_two(unit: float) -> None:
    torch.manual_seed(2)
    made, dtype = matrices(64, 64, 32, torch.bfloat16, torch.device("cpu")), torch.bfloat16
    matrix = replace(made["4 bits, table"], table=torch.tensor(FP4) * unit)
    assert has_fragments(matrix, dtype)
    found = made_plain(fragments(matrix, dtype), dtype)
    assert torch.equal(found, matrix.dequantised())
    for other in (torch.tensor(FP4) * 3, torch.tensor(FP4).flip(0), torch.zeros(16)):
        assert not has_fragments(replace(matrix, table=other), dtype)


def test_says_what_it_has_no_order_for() -> None:
    made = matrices(64, 256, 64, torch.float16, torch.device("cpu"))
    kinds = {name for name, one in made.items() if has_fragments(one, torch.bfloat16)}
    assert kinds == {"4 bits", "4 bits, zeros", "4 bits, minima", "4 bits, order"}
    assert not has_fragments(made["4 bits"], torch.float32)
    scales = torch.ones(64, 4)
    assert not has_fragments(GroupedMatrix(4, made["4 bits"].codes, scales), torch.bfloat16)
