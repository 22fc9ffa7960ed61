"""The instructions that take codes out of words, run one by one over every word of 16 bits."""

from __future__ import annotations

import re

import pytest
import torch

from tests.backends.triton import conftest  # noqa: F401 - before kernels: they are interpreted

NAMES = ("0", "1", "2", "3", "0_WHOLE", "2_WHOLE")


def run(text: str, words: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What the instructions make of two words each, int32 [n, 2] -> [n, 2]."""
    registers = {"$1": words[:, 0] | (words[:, 1] << 16)}

    def value(name: str) -> torch.Tensor:
        if name in registers:
            return registers[name]
        return torch.tensor(int(name, 0)).expand(len(words))

    def numbers(name: str) -> torch.Tensor:
        halves = torch.stack([value(name) & 0xFFFF, (value(name) >> 16) & 0xFFFF], 1)
        return halves.to(torch.int16).view(dtype).float()

    def looked_up(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, table: int) -> torch.Tensor:
        made = torch.zeros_like(a)
        for i in range(8):  # bit i of the table is for these three bits
            wanted = [x if i & bit else ~x for x, bit in ((a, 4), (b, 2), (c, 1))]
            if table >> i & 1:
                made |= wanted[0] & wanted[1] & wanted[2]
        return made & 0xFFFFFFFF

    for line in re.findall(r"(\S+) ([^;{}]+);", text.split("n; ", 1)[1]):
        name, into, *given = line[0], *(one.strip() for one in line[1].split(","))
        if name == "mov.b32":
            registers[into] = value(given[0])
        elif name == "shr.b32":
            registers[into] = value(given[0]) >> int(given[1])
        elif name == "lop3.b32":
            a, b, c = (value(one) for one in given[:3])
            registers[into] = looked_up(a, b, c, int(given[3], 0))
        else:
            assert name.startswith("fma.rn.")
            a, b, c = (numbers(one) for one in given)
            return (a * b + c).to(dtype)
    raise AssertionError("no number was made")


@pytest.mark.parametrize(("kind", "dtype"), [("BF16", torch.bfloat16), ("F16", torch.float16)])
@pytest.mark.parametrize("name", NAMES)
def test_every_word_gives_its_four_bits(name: str, kind: str, dtype: torch.dtype) -> None:
    from quire.backends.triton import grouped_kernels

    text = str(getattr(grouped_kernels, f"_{kind}_{name}").value)
    low = torch.arange(1 << 16)
    words = torch.stack([low, low.flip(0)], 1)
    less = 0 if name.endswith("WHOLE") else 8
    expected = ((words >> (4 * int(name[0]))) & 15) - less
    assert torch.equal(run(text, words, dtype), expected.to(dtype))
