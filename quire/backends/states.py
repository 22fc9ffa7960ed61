"""States that layers keep in blocks of the KV cache: which states a pass reads and writes, and how
tokens change them in plain torch.

A block holds the state after the last token that was written in it (layers/kv_groups.py).
block_size 4; a slice of row 5 computes 6 tokens from position 2 on, row 0 decodes at position 8:

spans   tokens 0 .. 2 from and into the row's block 0, tokens 2 .. 6 from block 0 into block 1
before  [block 1 of row 0]      into  [block 2 of row 0], fresh
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire.backends.generic import activated
from quire.backends.ops import AttentionInputs, StateRule
from quire.backends.recurrences import Recurrence, recurrence_of
from quire.layer_parts.state import StatePlan

# Most bytes of states that are computed at once for decode rows.
STATE_BYTES = 1 << 25


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens first .. last of a pass, in one sequence and one block. They take the state in block
    `before` (None: the text begins here) to the state in block `into`."""

    first: int
    last: int
    before: int | None
    into: int


@dataclass(frozen=True, slots=True)
class StatePass:
    """A pass for layers that keep a state: spans in the order in which they are computed, as one
    may begin with the state at the end of another; then one token for each decode row, from token
    `first_decode` on. `one_by_one`: every token of any row is taken up by the same ops on numbers
    of the same shape, so that it gets the same bits in any pass."""

    spans: tuple[Span, ...]
    before: Tensor
    into: Tensor
    first_decode: int
    one_by_one: bool = False

    def take_up(
        self, rule: StateRule, x: Tensor, rates: Tensor | None, keys: Tensor, values: Tensor
    ) -> Tensor:
        plan, inputs = rule.plan, x.float()
        blocks = _LayerStates(rule, StateBlocks(keys, values, plan.state_numbers))
        if self.one_by_one:
            return self._one_by_one(blocks, inputs, rates)
        recurrence = recurrence_of(rule, rates)
        read = inputs.new_zeros(len(inputs), plan.value_width)
        for span in self.spans:
            tokens = slice(span.first, span.last)
            read[tokens] = blocks.read_span(inputs[tokens], recurrence.of(tokens), span)
        most = max(1, STATE_BYTES // (4 * plan.state_numbers)) if plan.state_numbers else len(x)
        for first in range(0, len(self.into), most):
            rows = slice(first, first + most)
            before, into = self.before[rows], self.into[rows]
            at = self.first_decode + first
            tokens = slice(at, at + len(into))
            read[tokens] = blocks.read_rows(inputs[tokens], recurrence.of(tokens), before, into)
        return read.view(len(read), *recurrence.shape)

    def _one_by_one(self, blocks: _LayerStates, x: Tensor, rates: Tensor | None) -> Tensor:
        shape = recurrence_of(blocks.rule, rates).shape
        read = x.new_zeros(len(x), blocks.rule.plan.value_width)
        rows = enumerate(zip(self.before.tolist(), self.into.tolist(), strict=True))
        single = (Span(self.first_decode + i, self.first_decode + i + 1, *at) for i, at in rows)
        for span in (*self.spans, *single):
            blocks.read_one_by_one(x, rates, span, read)
        return read.view(len(read), *shape)


def state_pass(inputs: AttentionInputs, block_size: int, *, one_by_one: bool = False) -> StatePass:
    """Plan the states of a pass, with the block tables of their group."""
    firsts, ends = inputs.query_starts.tolist(), inputs.context_lens.tolist()
    count = inputs.num_prefill
    spans: list[Span] = []
    for i, table in enumerate(inputs.tables[:count].tolist()):
        shift = ends[i] - firsts[i + 1]  # token of the pass + shift = position
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
    return StatePass(tuple(spans), before, into, firsts[count], one_by_one)


def half_of(numbers: int) -> int:
    """How many numbers of a state are with the keys of its block; the others are with values."""
    return -(-numbers // 2)


def block_numbers(keys: Tensor, plan: StatePlan) -> int:
    """How many float32 the keys of a block hold. RuntimeError if a state does not fit into the
    block's keys and values."""
    room = keys[0].numel() * keys.itemsize // 4
    if room < half_of(plan.state_numbers):
        raise RuntimeError(
            f"a block has room for {2 * room} numbers of a state, not for {plan.state_numbers}"
        )
    return room


class StateBlocks:
    """The states of one layer in its part of the KV cache: the first half of a state's numbers is
    in the block's keys, the second in its values, as float32."""

    def __init__(self, keys: Tensor, values: Tensor, numbers: int) -> None:
        self._half = half_of(numbers)
        self._halves = [
            part.view(len(part), -1).view(torch.float32)[:, : self._half] for part in (keys, values)
        ]
        if (room := 2 * self._halves[0].shape[1]) < numbers:
            raise RuntimeError(f"a block has room for {room} numbers of a state, not for {numbers}")

    def load(self, blocks: Tensor, first: int, last: int) -> Tensor:
        """Read numbers first .. last of the states in these blocks."""
        out = self._halves[0].new_empty(len(blocks), last - first)
        for half, low, high, at in self._parts(first, last):
            out[:, at : at + high - low] = half[:, low:high].index_select(0, blocks)
        return out

    def store(self, blocks: Tensor, first: int, numbers: Tensor) -> None:
        """Write numbers from `first` on of the states in these blocks."""
        for half, low, high, at in self._parts(first, first + numbers.shape[1]):
            half[:, low:high].index_copy_(0, blocks, numbers[:, at : at + high - low])

    def _parts(self, first: int, last: int) -> list[tuple[Tensor, int, int, int]]:
        """For each half: the range with numbers first .. last, and its offset among them."""
        found = []
        for number, half in enumerate(self._halves):
            begin = number * self._half
            low, high = max(first, begin), min(last, begin + self._half)
            if low < high:
                found.append((half, low - begin, high - begin, low - first))
        return found


@dataclass(frozen=True, slots=True)
class _LayerStates:
    """The states of one layer, and how its tokens change them."""

    rule: StateRule
    blocks: StateBlocks

    def read_span(self, x: Tensor, recurrence: Recurrence, span: Span) -> Tensor:
        """What the tokens of a span read [T, any]."""
        plan, count = self.rule.plan, len(x)
        if span.before is None:
            window = x.new_zeros(plan.reach - 1, plan.channels)
            matrices = x.new_zeros(1, plan.matrix_numbers)
        else:
            windows, matrices = self._load(torch.tensor([span.before]))
            window = windows[0]
        seen = torch.cat([window, x])
        mixed = self._convolved(count)
        for i, tap in enumerate(self.rule.convolution.unbind(1)):
            mixed.addcmul_(seen[i : i + count], tap)
        read = recurrence.read_all(self._activated(mixed), matrices[0])
        self._store(torch.tensor([span.into]), matrices, seen[count:])
        return read

    def read_rows(self, x: Tensor, recurrence: Recurrence, before: Tensor, into: Tensor) -> Tensor:
        """What one token of each row reads [R, any]."""
        windows, matrices = self._load(before)
        seen, mixed = self._seen(windows, x)
        read = recurrence.read_each(self._activated(mixed), matrices)
        self._store(into, matrices, seen[:, 1:])
        return read

    def read_one_by_one(self, x: Tensor, rates: Tensor | None, span: Span, read: Tensor) -> None:
        """Write what the tokens of a span read into their lines of `read`."""
        plan = self.rule.plan
        if span.before is None:
            windows = x.new_zeros(1, plan.reach - 1, plan.channels)
            matrices = x.new_zeros(1, plan.matrix_numbers)
        else:
            windows, matrices = self._load(torch.tensor([span.before]))
        for at in range(span.first, span.last):
            token = slice(at, at + 1)
            seen, mixed = self._seen(windows, x[token])
            recurrence = recurrence_of(self.rule, None if rates is None else rates[token])
            read[token] = recurrence.read_each(self._activated(mixed), matrices)
            windows = seen[:, 1:]
        self._store(torch.tensor([span.into]), matrices, windows)

    def _seen(self, windows: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs of one token of each row's convolution [R, reach, channels], and its sums."""
        seen = torch.cat([windows, x[:, None]], dim=1)
        sums = (seen * self.rule.convolution.t()).sum(1)
        return seen, self._convolved(len(x)).add_(sums)

    def _convolved(self, count: int) -> Tensor:
        """What sums of the convolution begin with [T, channels]."""
        rule = self.rule
        if rule.bias is None:
            return rule.convolution.new_zeros(count, rule.plan.channels)
        return rule.bias.repeat(count, 1)

    def _activated(self, mixed: Tensor) -> Tensor:
        return activated(mixed, "silu") if self.rule.plan.matrix_numbers else mixed

    def _load(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """The past inputs of the convolution [R, reach - 1, channels], and the matrices as rows."""
        plan = self.rule.plan
        matrices = self.blocks.load(at, 0, plan.matrix_numbers)
        windows = self.blocks.load(at, plan.matrix_numbers, plan.state_numbers)
        return windows.view(len(at), plan.reach - 1, plan.channels), matrices

    def _store(self, at: Tensor, matrices: Tensor, windows: Tensor) -> None:
        self.blocks.store(at, 0, matrices)
        self.blocks.store(at, self.rule.plan.matrix_numbers, windows.reshape(len(at), -1))
