"""Makes layers that keep a state from named weights."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.backends.ops import StateHeads, StateRule
from quire.layer_parts.state import ConvolutionPlan, DeltaNetPlan, MambaPlan, StatePlan
from quire.layers.state_layer import (
    Around,
    DeltaNet,
    Mamba,
    PartsNorm,
    ShortConvolution,
    StateLayer,
)
from quire.models.weight_parts import WeightParts


def state_layer(parts: WeightParts, name: str, plan: StatePlan) -> StateLayer:
    rule, around = _rule(parts, name, plan), _around(parts, name, plan)
    return StateLayer(parts.shape, rule, around, parts.tp)


def _around(parts: WeightParts, name: str, plan: StatePlan) -> Around:
    if isinstance(plan, ConvolutionPlan):
        return _short_convolution(parts, name, plan)
    if isinstance(plan, MambaPlan):
        return _mamba(parts, name, plan)
    return _delta_net(parts, name, plan)


def _rule(parts: WeightParts, name: str, plan: StatePlan) -> StateRule:
    if isinstance(plan, ConvolutionPlan):
        return StateRule(plan, *_convolution(parts, name, plan, bias=plan.bias))
    slopes = parts.tensor(f"{name}.log_slopes.weight", plan.num_heads)
    shifts = parts.tensor(f"{name}.shifts.bias", plan.num_heads)
    if isinstance(plan, MambaPlan):
        heads = StateHeads(slopes, shifts, parts.tensor(f"{name}.skips.weight", plan.num_heads))
        biased = plan.convolution_bias
        return StateRule(plan, *_convolution(parts, name, plan, bias=biased), heads)
    convolution = _convolution(parts, name, plan, bias=False)
    return StateRule(plan, *convolution, StateHeads(slopes, shifts))


def _convolution(
    parts: WeightParts, name: str, plan: StatePlan, *, bias: bool
) -> tuple[Tensor, Tensor | None]:
    """Its taps [channels, reach], and its bias."""
    taps = parts.tensor(f"{name}.convolution.weight", plan.channels, 1, plan.reach)[:, 0]
    return taps, parts.tensor(f"{name}.convolution.bias", plan.channels) if bias else None


def _delta_net(parts: WeightParts, name: str, plan: DeltaNetPlan) -> DeltaNet:
    hidden, heads, width = parts.spec.hidden_size, plan.num_heads, plan.value_width
    return DeltaNet(
        plan.channels,
        parts.linear(f"{name}.qkvz", plan.channels + width, hidden, bias=False),
        parts.linear(f"{name}.rates", 2 * heads, hidden, bias=False),
        parts.norm(f"{name}.head_norm", plan.norm, plan.value_dim),
        parts.linear(f"{name}.o", hidden, width, bias=False),
    )


def _mamba(parts: WeightParts, name: str, plan: MambaPlan) -> Mamba:
    hidden, width, bias = parts.spec.hidden_size, plan.value_width, plan.bias
    norm, factors = None, None
    if plan.norm is not None:
        given = parts.row_norm(f"{name}.gated_norm", plan.norm, width)
        norm = PartsNorm(parts.kernels, given, plan.num_key_heads, plan.shared, parts.tp)
    if plan.factors:
        *each, steps = plan.factors
        counts = torch.tensor((plan.key_width, plan.key_width, width, width))
        factors = torch.tensor(each).repeat_interleave(counts).to(parts.device), steps
    return Mamba(
        plan,
        parts.linear(f"{name}.qkvz", plan.channels + width, hidden, bias=bias),
        parts.linear(f"{name}.rates", plan.num_heads, hidden, bias=bias),
        norm,
        parts.linear(f"{name}.o", hidden, width, bias=plan.o_bias),
        factors,
    )


def _short_convolution(parts: WeightParts, name: str, plan: ConvolutionPlan) -> ShortConvolution:
    hidden, width, bias = parts.spec.hidden_size, plan.channels, plan.bias
    return ShortConvolution(
        parts.linear(f"{name}.gated", 3 * width, hidden, bias=bias),
        parts.linear(f"{name}.o", hidden, width, bias=bias),
    )
