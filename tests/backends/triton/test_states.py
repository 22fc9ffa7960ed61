"""States by the kernels of a GPU, against plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from quire.backends import generic
from quire.backends.fp8 import FP8
from quire.backends.ops import (
    AttentionInputs,
    HeadShape,
    ReadGate,
    RowNorm,
    StateHeads,
    StateRule,
)
from quire.backends.states import state_pass
from quire.layer_parts.state import ConvolutionPlan, DeltaNetPlan, MambaPlan, StatePlan
from quire.layer_plan import NormPlan
from tests.backends.triton.checks import Place, assert_close, generator
from tests.backends.triton.places import DEVICE, GPU_DTYPES, small_places

PLAN = DeltaNetPlan(4, 2, 6, 20, 4, NormPlan(1e-6))
PLANS = {
    "heads in a row": PLAN,
    "heads in turn": replace(PLAN, in_turn=True),
    "rates up to 2": replace(PLAN, most_rate=2.0),
    "no reach": replace(PLAN, reach=1, num_key_heads=4, key_dim=16),
    "convolution": ConvolutionPlan(150, 3),
    "convolution with a bias": ConvolutionPlan(20, 5, bias=True),
    "mamba": MambaPlan(6, 2, 6, 20, 4, NormPlan(1e-6)),
    "mamba, wide keys, no bias, least steps": MambaPlan(
        *(2, 1, 160, 9, 3, NormPlan(1e-6)), convolution_bias=False, least_step=0.7
    ),
    "mamba, real size": MambaPlan(64, 1, 128, 64, 4, NormPlan(1e-6)),
    "real size": DeltaNetPlan(32, 16, 128, 128, 4, NormPlan(1e-6)),
}
NAMES = [pytest.param(name, marks=[pytest.mark.gpu] * ("real" in name)) for name in PLANS]
SIZE = 8
# (tokens of the pass, tokens before them): across blocks, from the first on, within one, and one
# token that ends a block, begins one, or stands in its middle; the last two rest.
SLICES = [(18, 0), (9, 6), (2, 7), (1, 15), (1, 8), (1, 3), (1, 0), (1, 0)]
RESTING = 2
# Of the root mean square. The interpreter cuts digits off where a GPU rounds.
BFLOAT16_ERROR = 5e-3 if DEVICE.type == "cuda" else 2e-2
# By size of blocks. Slices of more than 8 tokens are taken up in chunks, if a block has as many as
# a product needs; chunks that begin and end within a slice, and blocks with many chunks.
BY_SIZE = {
    8: SLICES[:4],
    16: [(50, 0), (9, 6), (9, 7), (20, 32), (3, 14), (1, 15), (16, 16)],
    48: [(60, 40), (5, 90), (49, 0)],
    192: [(150, 0), (100, 150), (64, 64), (13, 63)],
}


def rule_of(plan: StatePlan, device: Any = "cpu") -> StateRule:
    made = generator(3)

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made).to(device)

    taps = some(plan.channels, plan.reach)
    if isinstance(plan, ConvolutionPlan):
        return StateRule(plan, taps, some(plan.channels) if plan.bias else None)
    slopes, shifts, skips = (some(plan.num_heads) for _ in range(3))
    if isinstance(plan, MambaPlan):
        bias = some(plan.channels) if plan.convolution_bias else None
        return StateRule(plan, taps, bias, StateHeads(slopes, shifts, skips))
    return StateRule(plan, taps, heads=StateHeads(slopes, shifts))


def rates_of(plan: StatePlan, count: int) -> Tensor | None:
    if isinstance(plan, ConvolutionPlan):
        return None
    each = 1 if isinstance(plan, MambaPlan) else 2
    return torch.randn(count, each * plan.num_heads, generator=generator(5))


@pytest.mark.parametrize("name", NAMES)
def test_tokens_of_rows_are_taken_up_in_the_blocks_of_their_tables(name: str) -> None:
    """What a token of each row reads, and every state that a later one may begin from; nothing else
    changes. Tables are reached by way of rows, and rows that rest read 0."""
    from quire.backends.triton.states import TritonStates

    plan, slices = PLANS[name], SLICES[3:]
    case = Case.of(plan, slices, SIZE)
    rows = torch.arange(len(slices) - 1, -1, -1, dtype=torch.int32, device=DEVICE)
    active = case.lengths.clone()
    active[-RESTING:] = 0
    given = case.starts.to(DEVICE), active.to(DEVICE), case.tables.flip(0).int().to(DEVICE)
    case.check(TritonStates(*given, SIZE, rows), live=len(slices) - RESTING)


@pytest.mark.parametrize("size", BY_SIZE)
@pytest.mark.parametrize("name", NAMES)
def test_slices_are_taken_up_in_the_blocks_of_their_tables(name: str, size: int) -> None:
    from quire.backends.triton.states import SlicesStates

    case = Case.of(PLANS[name], BY_SIZE[size], size)
    states = SlicesStates(*case.on_device, size, num_tokens=len(case.qkv))
    case.check(states, live=len(case.lengths))


@pytest.mark.parametrize("name", NAMES)
def test_states_are_float32_beside_keys_in_8_bits(name: str) -> None:
    from quire.backends.triton.states import SlicesStates

    case = Case.of(PLANS[name], BY_SIZE[16], 16)
    states = SlicesStates(*case.on_device, 16, num_tokens=len(case.qkv))
    case.check(states, live=len(case.lengths), kept_as=FP8)


@pytest.mark.parametrize("name", NAMES)
def test_slices_of_bfloat16_are_as_exact_as_it_allows(name: str) -> None:
    from quire.backends.triton.states import SlicesStates

    many = [(600, 0)] if DEVICE.type == "cuda" else []
    case = Case.of(PLANS[name], BY_SIZE[192] + many, 192)
    x, cache = case.qkv.bfloat16(), case.given.clone().to(DEVICE)
    wanted = replace(case, qkv=x.float()).expected(len(case.lengths), torch.float32)
    given = case.on_device
    states = SlicesStates(*given, 192, num_tokens=len(x))
    rates = None if case.rates is None else case.rates.to(DEVICE)
    read = states.take_up(rule_of(case.plan, DEVICE), x.to(DEVICE), rates, *cache)
    for made, exact in zip((read, cache), wanted, strict=True):
        off = (made.cpu() - exact).square().mean().sqrt() / exact.square().mean().sqrt()
        assert off < BFLOAT16_ERROR


@pytest.mark.parametrize("name", NAMES)
def test_steady_kernels_give_the_same_bits_however_a_prompt_is_cut(name: str) -> None:
    """As one prompt, in chunks beside another one, and as decode rows behind its first chunk; in
    blocks that others take up in chunks."""
    from quire.backends.triton.invariant import SteadyKernels

    plan, count, size, read = PLANS[name], 36, 16, []
    rule, rates = rule_of(plan, DEVICE), rates_of(plan, count)
    x = torch.randn(count, plan.channels, generator=generator(4)).to(DEVICE)
    kernels = SteadyKernels(
        HeadShape(2, 1, -(-plan.state_numbers // (2 * size)) + 1, size, torch.float32)
    )
    for cuts in ([count], [5, 6, 25, count], [30, *range(31, count + 1)]):
        caches, at = torch.zeros(2, 9, 1, size, kernels.shape.head_dim, device=DEVICE), 0
        parts = []
        for end in cuts:
            other = 2 * (len(cuts) == 4)  # tokens of another text, in front
            ends = [end] if not other else [other, end]
            starts = torch.tensor([0, other, other + end - at][-len(ends) - 1 :])
            tables = torch.tensor([[8, 7, 6], [4, 2, 5]])[-len(ends) :].int()
            first = len(ends) - (at > 0 and end == at + 1)
            given = torch.cat([x[:other], x[at:end]])
            slots = torch.zeros(len(given))
            inputs = AttentionInputs(starts, torch.tensor(ends), tables, slots, first)
            more = None if rates is None else torch.cat([rates[:other], rates[at:end]]).to(DEVICE)
            step = kernels.plan_states(_on_device(inputs))
            parts.append(step.take_up(rule, given, more, *caches)[other:])
            at = end
        read.append((torch.cat(parts), caches[:, 5].clone()))
    for made, state in read[1:]:
        assert torch.equal(made, read[0][0]) and torch.equal(state, read[0][1])


def _on_device(inputs: AttentionInputs) -> AttentionInputs:
    starts, lengths = inputs.query_starts.int().to(DEVICE), inputs.context_lens.int().to(DEVICE)
    return replace(
        inputs, query_starts=starts, context_lens=lengths, tables=inputs.tables.to(DEVICE)
    )


def test_a_chunk_of_equal_keys_is_solved_as_well_as_any() -> None:
    """Powers of such a chunk's triangle would be as large as 10^17."""
    from quire.backends.triton.states import SlicesStates

    case = Case.of(PLAN, [(64, 0)], 64)
    case.qkv[:] = case.qkv[:1]
    assert case.rates is not None
    case.rates[:, : PLAN.num_heads] = 9.0  # tokens write all that they want
    case.rates[:, PLAN.num_heads :] = -20.0  # nothing decays
    given = case.on_device
    case.check(SlicesStates(*given, 64, num_tokens=64), live=1)


@dataclass(frozen=True)
class Case:
    """Random tokens for a plan, and a cache full of random numbers."""

    plan: StatePlan
    size: int
    starts: Tensor
    lengths: Tensor
    tables: Tensor
    given: Tensor
    qkv: Tensor
    rates: Tensor | None

    @classmethod
    def of(cls, plan: StatePlan, slices: Sequence[tuple[int, int]], size: int) -> Case:
        lengths = torch.tensor([new + past for new, past in slices])
        width = -(-int(lengths.max()) // size)
        order = torch.randperm(len(slices) * width + 2, generator=generator(1))
        tables = order[: len(slices) * width].view(-1, width)
        starts = torch.tensor([0, *(new for new, _ in slices)]).cumsum(0)
        room, count = plan.state_numbers // 2 + 3, int(starts[-1])
        given = torch.randn(2, len(order), 1, size, -(-room // size), generator=generator(2))
        qkv = torch.randn(count, plan.channels + 5, generator=generator(4))[:, :-5]
        return cls(plan, size, starts, lengths, tables, given, qkv, rates_of(plan, count))

    @property
    def on_device(self) -> tuple[Tensor, Tensor, Tensor]:
        """What a step is made of."""
        return self.starts.to(DEVICE), self.lengths.to(DEVICE), self.tables.int().to(DEVICE)

    def expected(self, live: int, kept_as: torch.dtype) -> tuple[Tensor, Tensor]:
        """What the first `live` sequences read by plain torch, and the cache after it."""
        kept, count = self.given.clone(), int(self.starts[live])
        inputs = AttentionInputs(
            *(self.starts[: live + 1], self.lengths[:live], self.tables[:live]),
            *(self.starts, live),
        )
        rates = None if self.rates is None else self.rates[:count]
        planned = state_pass(inputs, self.size)
        return planned.take_up(
            rule_of(self.plan), self.qkv[:count], rates, *kept.view(kept_as)
        ), kept

    def check(self, made: Any, *, live: int, kept_as: torch.dtype = torch.float32) -> None:
        """Against plain torch; sequences from `live` on are idle. `kept_as`: what keys are in
        blocks."""
        wanted, kept = self.expected(live, kept_as)
        count, cache = len(wanted), self.given.clone().to(DEVICE)
        there = None if self.rates is None else self.rates.to(DEVICE)
        read = made.take_up(
            rule_of(self.plan, DEVICE), self.qkv.to(DEVICE), there, *cache.view(kept_as)
        )
        for one, exact in ((read[:count], wanted), (cache, kept)):
            assert_close(one, exact.to(DEVICE), least=1e-4 * max(1.0, float(exact.std())))
        assert not read[count:].any()
        assert not torch.equal(kept, self.given)


@pytest.mark.parametrize("place", small_places())
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("weights", [None, "row", "part", "float32"])
def test_what_was_read_is_gated_and_normed(place: Place, first: bool, weights: str | None) -> None:
    """By definition, in float64."""
    check_gate(place, 5, 96, 3 if weights else 1, first=first, weights=weights)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_DTYPES)
def test_gates_at_real_shapes(dtype: torch.dtype) -> None:
    place = Place(torch.device("cuda"), dtype)
    check_gate(place, 300, 4096, 32, first=True, weights="part")
    check_gate(place, 300, 8192, 8, first=False, weights="row")
    check_gate(place, 300, 8192, 1, first=False, weights="float32")
    check_gate(place, 300, 8200, 1, first=False, weights=None)


def check_gate(
    place: Place, count: int, width: int, parts: int, *, first: bool, weights: str | None
) -> None:
    from quire.backends.triton.state_gate import gate_read

    made = generator(7)
    read = torch.randn(count, width, generator=made)
    gate = torch.randn(count, width + 3, generator=made).to(place.dtype)[:, 3:]
    norm = None
    if weights is not None:
        weight = torch.rand(width // parts if weights == "part" else width, generator=made) + 0.5
        norm = RowNorm(weight if weights == "float32" else weight.to(place.dtype), 1e-5)
    by = ReadGate(norm, parts, norm_first=first)
    wide, opened = read.double(), torch.nn.functional.silu(gate.double())
    wide = wide if norm is not None and first else wide * opened
    if norm is not None:
        each = wide.view(count, parts, -1)
        each = each / (each.square().mean(-1, keepdim=True) + norm.eps).sqrt()
        wide = (each * norm.weight.double().view(-1, each.shape[-1])).flatten(1)
        wide = wide * opened if first else wide
    device = place.device
    there = None if norm is None else RowNorm(norm.weight.to(device), norm.eps)
    given = read.to(device), gate.to(device), replace(by, norm=there)
    for found in (gate_read(*given), generic.gate_read(*given)):
        assert_close(found, wide.to(place.dtype).to(device))


def test_a_state_that_finds_no_room_is_refused() -> None:
    from quire.backends.triton.states import TritonStates

    starts, tables = torch.tensor([0, 1], device=DEVICE), torch.zeros(1, 1, device=DEVICE).int()
    made = TritonStates(starts, starts[1:], tables, SIZE)
    keys, values = torch.zeros(2, 1, 1, SIZE, 8, device=DEVICE)
    qkv, rates = torch.zeros(1, PLAN.channels, device=DEVICE), torch.zeros(1, 8, device=DEVICE)
    with pytest.raises(RuntimeError, match="room for 128 numbers"):
        made.take_up(rule_of(PLAN, DEVICE), qkv, rates, keys, values)
