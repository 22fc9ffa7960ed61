"""The sequences of a batch as a model sees them that computes each by itself: one at a time, or
several in one call.

Of texts of 9 and 6 tokens the last ones go together: ids [2, 1], positions [[8], [5]], keys and
values of 9 tokens of both, of which the first 3 of the second are hidden. That is how Transformers
has texts of different lengths in a batch: filled up from the left. New tokens are filled up behind
them, where no token looks: 4 and 3 that go on behind 5 and 2 are ids [2, 4], of which the last of
the second is nobody's. Where a layer keeps a state, that would take up what stands behind a text,
so texts that begin together are filled up in front there, and classes are told by their mask.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from quire.layers.batch import Batch
from quire.request import Ints

# Lengths below this go together whatever they are; others with those of the same power of two.
SHORT = 256
# Tokens, filled up, whose keys and values a layer is given at once, and scores of theirs.
MOST_TOKENS, MOST_SCORES = 1 << 15, 1 << 22
# Tokens that cost about as much as a call does: on a GPU the host is what a call waits for.
A_CALL, A_CALL_ON_GPU = 16, 1024


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
    def lines(self) -> range:
        return range(self.first, self.first + len(self.token_ids))

    def block_of(self, group: int, token: int, block_size: int) -> int:
        return int(self.blocks[group, token // block_size])

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


def independent(sequences: Iterable[OneSequence], block_size: int) -> Iterator[list[OneSequence]]:
    """Runs of which none reads what another one writes: a prompt may go on behind blocks that one
    before it in the same pass computes. Of these the last is looked at, since blocks of a text are
    computed in order."""
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
    """Which sequences may share a call, as a trial has shown: those that begin, and those that go
    on. These by one token alone, where layers keep states."""

    starts: bool = False
    nexts: bool = False

    def allow(self, start: int, new: int, *, stateful: bool) -> bool:
        if start == 0:
            return self.starts
        return self.nexts and (new == 1 or not stateful)


APART = Joins()
# The best first.
WAYS_TO_JOIN = (Joins(True, True), Joins(starts=True), Joins(nexts=True), APART)


def joined(
    sequences: Sequence[OneSequence], joins: Joins, *, stateful: bool = False, whole: bool = False
) -> list[list[OneSequence]]:
    """Those of a call each. Filling up makes a call larger: new tokens by no more than what a call
    of its own would cost, those before them by as much again. Of prompts of 30, 31, 33 and 90
    tokens the first three are one part; of next tokens behind 100, 300, 400 and 5,000 the second
    and the third. `whole`: every text is computed from its first token."""
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
    """New tokens of sequences as those of one call: ids and positions [B, N], which of them
    `is_new`, and which of the tokens so far are there, `mask` [B, L]. `is_plain`: nothing stands
    before a first token, so that a class counts positions right and may see all before a token."""

    sequences: Sequence[OneSequence]
    ids: Tensor
    positions: Tensor
    is_new: Tensor
    mask: Tensor
    is_plain: bool

    @staticmethod
    def of(sequences: Sequence[OneSequence], *, in_front: bool = False) -> FilledUp:
        """`in_front`: new tokens are filled up before the first of them, not behind the last."""
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
        """Tokens before the new ones of the longest."""
        return self.mask.shape[1] - self.ids.shape[1]

    def slots(self, group: int) -> Tensor:
        """Where the new tokens go, one sequence after the other."""
        return torch.cat([one.slots[group] for one in self.sequences])

    def places(self, group: int, block_size: int) -> tuple[Tensor, Tensor]:
        """Of every token its block and its place there, [B, L]; those that fill up are given that
        of a token of their sequence."""
        starts = self.positions.new_tensor([[one.start] for one in self.sequences])
        past = torch.arange(self.past, device=starts.device) - (self.past - starts)
        at = torch.cat([past.clamp(min=0), self.positions], 1)
        count = -(-max(one.end for one in self.sequences) // block_size)
        tables = torch.stack([one.tables[group, :count] for one in self.sequences])
        return tables.to(torch.int64).gather(1, at // block_size), at % block_size
