"""States that layers keep, in the blocks of a KV cache: which of them a pass reads and writes.

A block holds the state behind the last token that was written in it (layer_plan.KVGroup).
block_size 4; a slice of row 5 computes 6 tokens from position 2 on, row 0 decodes at position 8:

spans   tokens 0 .. 2 from and into the row's block 0, tokens 2 .. 6 from block 0 into block 1
before  [block 1 of row 0]      into  [block 2 of row 0], fresh
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire.backends.ops import AttentionInputs


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens first .. last of a pass, of one sequence and one block: from the state in the block
    `before` (None: they are the first of all) to that in `into`."""

    first: int
    last: int
    before: int | None
    into: int


@dataclass(frozen=True, slots=True)
class StatePass:
    """A pass as layers that keep a state see it: spans in the order in which they are computed, so
    that one may begin where another of the same pass ends, then a token of each decode row, from
    token `first_decode` on."""

    spans: tuple[Span, ...]
    before: Tensor
    into: Tensor
    first_decode: int


def state_pass(inputs: AttentionInputs, block_size: int) -> StatePass:
    """The states of a pass, under the tables of their group."""
    firsts, ends = inputs.query_starts.tolist(), inputs.context_lens.tolist()
    count = inputs.num_prefill
    spans: list[Span] = []
    for i, table in enumerate(inputs.tables[:count].tolist()):
        shift = ends[i] - firsts[i + 1]  # from tokens of the pass to positions
        at = firsts[i]
        before = table[(at + shift - 1) // block_size] if at + shift else None
        while at < firsts[i + 1]:
            block = (at + shift) // block_size
            last = min(firsts[i + 1], (block + 1) * block_size - shift)
            spans.append(Span(at, last, before, table[block]))
            at, before = last, table[block]
    positions = inputs.context_lens[count:, None] - 1
    tables = inputs.tables[count:]
    before, into = (
        tables.gather(1, (positions - back) // block_size)[:, 0].long() for back in (1, 0)
    )
    return StatePass(tuple(spans), before, into, firsts[count])


class StateBlocks:
    """The states of one layer, in its part of the KV cache: the first half of each block's numbers
    lies with the keys, the second with the values, as float32."""

    def __init__(self, keys: Tensor, values: Tensor, numbers: int) -> None:
        self._half = -(-numbers // 2)
        self._halves = [
            part.view(len(part), -1).view(torch.float32)[:, : self._half] for part in (keys, values)
        ]
        if (room := 2 * self._halves[0].shape[1]) < numbers:
            raise RuntimeError(f"a block has room for {room} numbers of a state, not for {numbers}")

    def load(self, blocks: Tensor, first: int, last: int) -> Tensor:
        """Numbers first .. last of the states in these blocks."""
        out = self._halves[0].new_empty(len(blocks), last - first)
        for half, low, high, at in self._parts(first, last):
            out[:, at : at + high - low] = half[:, low:high].index_select(0, blocks)
        return out

    def store(self, blocks: Tensor, first: int, numbers: Tensor) -> None:
        """The other way round."""
        for half, low, high, at in self._parts(first, first + numbers.shape[1]):
            half[:, low:high].index_copy_(0, blocks, numbers[:, at : at + high - low])

    def _parts(self, first: int, last: int) -> list[tuple[Tensor, int, int, int]]:
        """Of each half: where numbers first .. last lie in it, and which of them these are."""
        found = []
        for number, half in enumerate(self._halves):
            begin = number * self._half
            low, high = max(first, begin), min(last, begin + self._half)
            if low < high:
                found.append((half, low - begin, high - begin, low - first))
        return found
