"""The sequences of a batch as a model sees them that computes each by itself: one at a time, or the
last tokens of several in one call.

Of sequences of 9 and 6 tokens the last ones go together: ids [2, 1], positions [[8], [5]], keys and
values of 9 tokens of both, of which the first 3 of the second are hidden. That is how Transformers
has texts of different lengths in a batch: filled up from the left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.layers.batch import Batch
from quire.request import Ints

# Lengths below this go together whatever they are; others with those of the same power of two.
SHORT = 256
# Tokens, filled up, whose keys and values a layer is given at once.
MOST_TOKENS = 1 << 15


@dataclass(frozen=True, slots=True)
class OneSequence:
    """Its new tokens are those from `first` on of a pass; where they go in each group of layers,
    and where its blocks are: on the device, and for the host."""

    first: int
    token_ids: Tensor
    slots: Tensor
    start: int
    tables: Tensor
    blocks: Ints

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)

    @property
    def goes_on(self) -> bool:
        """By one token, behind others."""
        return self.start > 0 and len(self.token_ids) == 1

    def block(self, group: int, number: int) -> int:
        return int(self.blocks[group, number])

    def piece(self, first: int, last: int) -> OneSequence:
        """Some of the new tokens, behind those before them."""
        part = slice(first, last)
        given = (self.first + first, self.token_ids[part], self.slots[:, part], self.start + first)
        return OneSequence(*given, self.tables, self.blocks)


def sequences_of(batch: Batch) -> Iterator[OneSequence]:
    starts, tables = batch.query_starts.tolist(), batch.tables.cpu().numpy()
    for i, length in enumerate(batch.context_lens.tolist()):
        first, last = starts[i : i + 2]
        new = slice(first, last)
        given = (first, batch.token_ids[new], batch.slots[:, new], length - (last - first))
        yield OneSequence(*given, batch.tables[:, i], tables[:, i])


def joined(sequences: Sequence[OneSequence]) -> list[list[OneSequence]]:
    """Those that go on by one token in parts of about the same length, which filling up does not
    make much larger: 3 of 100, 2 of 300 and 400 tokens, 1 of 5,000 are three parts."""
    by_length = sorted(sequences, key=lambda sequence: sequence.end)
    parts: list[list[OneSequence]] = []
    size = -1
    for sequence in by_length:
        bits = max(sequence.end, SHORT - 1).bit_length()
        full = parts and (len(parts[-1]) + 1) * sequence.end > MOST_TOKENS
        if bits != size or full:
            parts.append([])
        parts[-1].append(sequence)
        size = bits
    return parts


@dataclass(frozen=True, slots=True)
class LastTokens:
    """The new tokens of sequences that go on by one each: ids and positions [B, 1], and which of
    the tokens of the longest are there, `mask` [B, L]."""

    sequences: Sequence[OneSequence]
    ids: Tensor
    positions: Tensor
    mask: Tensor

    @staticmethod
    def of(sequences: Sequence[OneSequence]) -> LastTokens:
        ids = torch.cat([sequence.token_ids for sequence in sequences])[:, None]
        ends = torch.tensor([sequence.end for sequence in sequences], device=ids.device)
        longest = max(sequence.end for sequence in sequences)
        left = longest - ends[:, None]
        mask = torch.arange(longest, device=ids.device) >= left
        return LastTokens(sequences, ids, ends[:, None] - 1, mask.to(torch.int64))

    @property
    def longest(self) -> int:
        return self.mask.shape[1]

    def slots(self, group: int) -> Tensor:
        """Where the new tokens go. [B]"""
        return torch.stack([sequence.slots[group, 0] for sequence in self.sequences])

    def places(self, group: int, block_size: int) -> tuple[Tensor, Tensor]:
        """Of every token its block and its place there, [B, L]; hidden ones are given their
        sequence's first."""
        count = -(-self.longest // block_size)
        tables = torch.stack([sequence.tables[group, :count] for sequence in self.sequences])
        at = torch.arange(self.longest, device=tables.device) - (self.mask == 0).sum(1)[:, None]
        at = at.clamp(min=0)
        return tables.to(torch.int64).gather(1, at // block_size), at % block_size

    def blocks_of(self, group: int, back: int, block_size: int) -> list[int]:
        """The block of each sequence in which its token so many before the new one lies."""
        return [one.block(group, (one.start - back) // block_size) for one in self.sequences]
