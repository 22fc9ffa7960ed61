"""A random pass over paged KV, for every backend's attention."""

from __future__ import annotations

import torch

from quire.backends.ops import AttentionInputs, HeadShape


def random_pass(
    shape: HeadShape, seed: int, *, shared: int = 0, decode: int = 9, new: int = 90, past: int = 200
) -> tuple[AttentionInputs, int]:
    """Three slices, one of them from position 0 on, and some decode rows over shuffled blocks;
    with `shared`, the decode rows begin with as many equal blocks. Fewer than `new` tokens behind
    fewer than `past`. Also: how many blocks."""
    made = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=made))

    num_new = [number(1, new) for _ in range(3)] + [1] * decode
    num_past = [0, *(number(0, past) for _ in range(len(num_new) - 1))]
    num_past[3:] = [count + shared * shape.block_size for count in num_past[3:]]
    lengths = [a + b for a, b in zip(num_new, num_past, strict=True)]
    counts = [-(-length // shape.block_size) for length in lengths]
    num_blocks = sum(counts) + shared
    free = torch.randperm(num_blocks, generator=made).tolist()
    prefix = [free.pop() for _ in range(shared)]
    tables = torch.full((len(lengths), max(counts)), -1)
    slots = []
    for i, (begin, length, count) in enumerate(zip(num_past, lengths, counts, strict=True)):
        own = prefix if i >= 3 else []
        tables[i, :count] = torch.tensor(own + [free.pop() for _ in range(count - len(own))])
        for at in range(begin, length):
            block = int(tables[i, at // shape.block_size])
            slots.append(block * shape.block_size + at % shape.block_size)
    starts = torch.tensor([0, *num_new]).cumsum(0)
    prefixes = ((torch.tensor(prefix), torch.arange(3, len(lengths))),) if shared else ()
    inputs = AttentionInputs(
        starts, torch.tensor(lengths), tables, torch.tensor(slots), 3, prefixes
    )
    return inputs, num_blocks
