"""The sequences of a batch for models that compute each by itself, or several with padding.

The last tokens of texts of 9 and 6 tokens in one call: ids [2, 1], positions [[8], [5]], keys and
values of 9 tokens for both, the first 3 of the second masked. This is left padding, as Transformers
expects it. New tokens are padded on the right, where no token looks: 4 and 3 new tokens after 5 and
2 computed ones are ids [2, 4], and the last id of the second is not used. A layer with a state
would read padding on the right, so there texts that begin together are padded on the left, and the
mask tells their class so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from quire.layers.batch import Batch
from quire.request import Ints

# Pasts shorter than this may share a call; longer ones only with the same power of two.
SHORT = 256
# Most tokens with padding whose keys and values one call gets, and most scores of theirs.
MOST_TOKENS, MOST_SCORES = 1 << 15, 1 << 22
# Tokens that take about as long as the overhead of one call. On a GPU a call waits for the host.
A_CALL, A_CALL_ON_GPU = 16, 1024


@dataclass(frozen=True, slots=True)
class OneSequence:
    """One sequence of a pass. Its new tokens begin at token `first` of the pass and have the slots
    `slots` [groups, n]. `tables` (device) and `blocks` (host) are its block table."""

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
    def lines(self) -> range:
        return range(self.first, self.first + len(self.token_ids))

    def block_of(self, group: int, token: int, block_size: int) -> int:
        return int(self.blocks[group, token // block_size])

    def piece(self, first: int, last: int) -> OneSequence:
        """New tokens first .. last alone, as if those before had been computed already."""
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


def independent(sequences: Iterable[OneSequence], block_size: int) -> Iterator[list[OneSequence]]:
    """Split sequences into runs in which none reads a block that another one of the run writes: a
    prompt may go on from blocks of an earlier one in the same pass. Looking at the last block
    before it is enough, as blocks of a text are computed in order."""
    run: list[OneSequence] = []
    written: set[int] = set()
    for one in sequences:
        if one.start and one.block_of(0, one.start - 1, block_size) in written:
            yield run
            run, written = [], set()
        run.append(one)
        written.update(one.blocks[0, one.start // block_size : -(-one.end // block_size)].tolist())
    yield run


@dataclass(frozen=True, slots=True)
class Joins:
    """Which sequences may share a call, as a trial has shown: those that begin (`starts`), and
    those that go on (`nexts`). Where layers keep states the latter must have one new token."""

    starts: bool = False
    nexts: bool = False

    def allow(self, start: int, new: int, *, stateful: bool) -> bool:
        if start == 0:
            return self.starts
        return self.nexts and (new == 1 or not stateful)


APART = Joins()
WAYS_TO_JOIN = (Joins(True, True), Joins(starts=True), Joins(nexts=True), APART)


def joined(
    sequences: Sequence[OneSequence], joins: Joins, *, stateful: bool = False, whole: bool = False
) -> list[list[OneSequence]]:
    """Group sequences into calls. Padding may add no more new tokens than the overhead of a call of
    its own is worth, and may at most double the past. Prompts of 30, 31, 33 and 90 tokens: the
    first three share a call. Next tokens after 100, 300, 400 and 5,000: the second and the third
    do. `whole`: every text is computed from its first token."""
    parts: list[list[OneSequence]] = []
    sized: list[tuple[int, int, int, OneSequence]] = []
    for one in sequences:
        start = 0 if whole else one.start
        if joins.allow(start, one.end - start, stateful=stateful):
            before = max(start, SHORT - 1).bit_length() if start else 0
            sized.append((before, one.end - start, start, one))
        else:
            parts.append([one])
    sized.sort(key=lambda each: each[:3])
    on_gpu = any(one.token_ids.is_cuda for one in sequences)
    spare = A_CALL_ON_GPU if on_gpu else A_CALL
    together: list[OneSequence] = []
    size, most, past = -1, 0, 0
    for before, new, start, one in sized:
        count, past = len(together) + 1, max(past, start)
        padding, keys = (count - 1) * (new - most), count * (past + new)
        if before != size or padding > spare or keys > MOST_TOKENS or keys * new > MOST_SCORES:
            parts.append(together := [])
            past = start
        together.append(one)
        size, most = before, new
    return parts


@dataclass(frozen=True, slots=True)
class FilledUp:
    """The padded new tokens of sequences for one call: ids and positions [B, N], `is_new` [B, N]
    False at padding, and `mask` [B, L] 0 at padding of past and new tokens. `is_plain`: no padding
    before first tokens, so a class may count positions itself and needs no mask."""

    sequences: Sequence[OneSequence]
    ids: Tensor
    positions: Tensor
    is_new: Tensor
    mask: Tensor
    is_plain: bool

    @staticmethod
    def of(sequences: Sequence[OneSequence], *, in_front: bool = False) -> FilledUp:
        """`in_front`: pad new tokens on the left, not on the right."""
        rows = [one.token_ids for one in sequences]
        ids = pad_sequence(rows, batch_first=True, padding_side="left" if in_front else "right")
        starts = torch.tensor([one.start for one in sequences], device=ids.device)[:, None]
        counts = torch.tensor([len(row) for row in rows], device=ids.device)[:, None]
        longest = ids.shape[1]
        at = torch.arange(longest, device=ids.device)
        at = at - (longest - counts) if in_front else at.expand(len(rows), -1)
        is_new = (at >= 0) & (at < counts)
        past = max(one.start for one in sequences)
        is_past = torch.arange(past, device=ids.device) >= past - starts
        positions = starts + at.clamp(min=0).minimum(counts - 1)
        mask = torch.cat([is_past, is_new], 1).long()
        same_length = len({len(row) for row in rows}) == 1
        plain = len(rows) == 1 or (past == 0 and (same_length or not in_front))
        return FilledUp(sequences, ids, positions, is_new, mask, plain)

    @property
    def past(self) -> int:
        """The largest number of computed tokens of any sequence."""
        return self.mask.shape[1] - self.ids.shape[1]

    def slots(self, group: int) -> Tensor:
        """The slots of the new tokens, one sequence after the other."""
        return torch.cat([one.slots[group] for one in self.sequences])

    def places(self, group: int, block_size: int) -> tuple[Tensor, Tensor]:
        """The block of every token and its offset in the block, [B, L] each. Padding has those of
        another token of its sequence."""
        starts = self.positions.new_tensor([[one.start] for one in self.sequences])
        past = torch.arange(self.past, device=starts.device) - (self.past - starts)
        at = torch.cat([past.clamp(min=0), self.positions], 1)
        count = -(-max(one.end for one in self.sequences) // block_size)
        tables = torch.stack([one.tables[group, :count] for one in self.sequences])
        return tables.to(torch.int64).gather(1, at // block_size), at % block_size
