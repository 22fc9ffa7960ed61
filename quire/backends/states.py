"""States that layers keep in blocks of the KV cache: which states a pass reads and writes, and
Gated DeltaNet on them in plain torch.

A block holds the state after the last token that was written in it (layers/kv_groups.py).
block_size 4; a slice of row 5 computes 6 tokens from position 2 on, row 0 decodes at position 8:

spans   tokens 0 .. 2 from and into the row's block 0, tokens 2 .. 6 from block 0 into block 1
before  [block 1 of row 0]      into  [block 2 of row 0], fresh
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.delta_rule import take_up_all, take_up_each
from quire.backends.generic import activated
from quire.backends.ops import AttentionInputs, DeltaRule
from quire.layer_plan import DeltaNetPlan

# Most bytes of states that are computed at once for decode rows.
STATE_BYTES = 1 << 25
_LENGTH_EPS = 1e-6  # for dividing q and k by their lengths


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
    `first_decode` on."""

    spans: tuple[Span, ...]
    before: Tensor
    into: Tensor
    first_decode: int

    def take_up(
        self, rule: DeltaRule, qkv: Tensor, rates: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        plan = rule.plan
        blocks = StateBlocks(keys, values, plan.state_numbers)
        tokens = _Tokens.of(rule, qkv, rates)
        read = qkv.new_zeros(len(qkv), plan.num_heads, plan.value_dim, dtype=torch.float32)
        for span in self.spans:
            of_span = tokens.part(span.first, span.last)
            read[span.first : span.last] = _read_span(rule, of_span, span, blocks)
        most = max(1, STATE_BYTES // (4 * plan.state_numbers))
        for first in range(0, len(self.into), most):
            rows = slice(first, first + most)
            before, into = self.before[rows], self.into[rows]
            at = self.first_decode + first
            end = at + len(into)
            read[at:end] = _read_rows(rule, tokens.part(at, end), before, into, blocks)
        return read


def state_pass(inputs: AttentionInputs, block_size: int) -> StatePass:
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
    return StatePass(tuple(spans), before, into, firsts[count])


def half_of(numbers: int) -> int:
    """How many numbers of a state are with the keys of its block; the others are with values."""
    return -(-numbers // 2)


def block_numbers(keys: Tensor, plan: DeltaNetPlan) -> int:
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
class _Tokens:
    """The inputs of the delta rule for some tokens."""

    qkv: Tensor
    log_decay: Tensor
    rate: Tensor

    @staticmethod
    def of(rule: DeltaRule, qkv: Tensor, rates: Tensor) -> _Tokens:
        rate, decay = rates.chunk(2, dim=-1)
        slopes = rule.log_slopes.exp()
        return _Tokens(qkv.float(), -slopes * F.softplus(decay + rule.shifts), rate.sigmoid())

    def part(self, first: int, last: int) -> _Tokens:
        return _Tokens(*(one[first:last] for one in (self.qkv, self.log_decay, self.rate)))


def _read_span(rule: DeltaRule, tokens: _Tokens, span: Span, blocks: StateBlocks) -> Tensor:
    plan, count, target = rule.plan, len(tokens.qkv), torch.tensor([span.into])
    if span.before is None:
        window = tokens.qkv.new_zeros(plan.reach - 1, plan.channels)
        matrix = tokens.qkv.new_zeros(1, plan.matrix_numbers)
    else:
        window, matrix = _load(plan, torch.tensor([span.before]), blocks)
        window = window[0]
    seen = torch.cat([window, tokens.qkv])
    mixed = seen.new_zeros(count, plan.channels)
    for i, tap in enumerate(rule.convolution.unbind(1)):
        mixed.addcmul_(seen[i : i + count], tap)
    q, k, v = _heads(plan, activated(mixed, "silu"))
    state = matrix.view(plan.num_heads, plan.key_dim, plan.value_dim)
    read = take_up_all(q, k, v, tokens.log_decay, tokens.rate, state)
    _store(plan, target, matrix, seen[count:], blocks)
    return read


def _read_rows(
    rule: DeltaRule, tokens: _Tokens, before: Tensor, into: Tensor, blocks: StateBlocks
) -> Tensor:
    plan = rule.plan
    window, matrix = _load(plan, before, blocks)
    seen = torch.cat([window, tokens.qkv[:, None]], dim=1)
    mixed = (seen * rule.convolution.t()).sum(1)
    q, k, v = _heads(plan, activated(mixed, "silu"))
    states = matrix.view(-1, plan.num_heads, plan.key_dim, plan.value_dim)
    read = take_up_each(q, k, v, tokens.log_decay, tokens.rate, states)
    _store(plan, into, matrix, seen[:, 1:], blocks)
    return read


def _heads(plan: DeltaNetPlan, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v [T, heads, D]; q and k have length 1, and q is scaled."""
    keys = plan.num_key_heads * plan.key_dim
    q, k, v = mixed[:, :keys], mixed[:, keys : 2 * keys], mixed[:, 2 * keys :]
    heads = []
    for one in (q, k):
        wide = one.reshape(len(mixed), plan.num_key_heads, plan.key_dim)
        length = wide.square().sum(-1, keepdim=True).add_(_LENGTH_EPS).rsqrt_()
        heads.append(_shared(plan, wide * length))
    heads[0] *= plan.key_dim**-0.5
    return heads[0], heads[1], v.reshape(len(mixed), plan.num_heads, plan.value_dim)


def _shared(plan: DeltaNetPlan, heads: Tensor) -> Tensor:
    """The head of q or k for each head of v."""
    times = plan.num_heads // plan.num_key_heads
    return heads.repeat(1, times, 1) if plan.in_turn else heads.repeat_interleave(times, 1)


def _load(plan: DeltaNetPlan, at: Tensor, blocks: StateBlocks) -> tuple[Tensor, Tensor]:
    """The past inputs of the convolution [R, reach - 1, channels], and the matrices as rows."""
    matrix = blocks.load(at, 0, plan.matrix_numbers)
    window = blocks.load(at, plan.matrix_numbers, plan.state_numbers)
    return window.view(len(at), plan.reach - 1, plan.channels), matrix


def _store(
    plan: DeltaNetPlan, at: Tensor, matrix: Tensor, window: Tensor, blocks: StateBlocks
) -> None:
    blocks.store(at, 0, matrix)
    blocks.store(at, plan.matrix_numbers, window.reshape(len(at), -1))
