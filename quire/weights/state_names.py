"""The weights of a layer that keeps a state, for every kind of plan. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from quire.families.family import Name
from quire.layer_parts.state import ConvolutionPlan, DeltaNetPlan, MambaPlan, StatePlan
from quire.weights.parts import LayerParts, Stored, Weight, single
from quire.weights.within import Within


def state_weights(layer: LayerParts, plan: StatePlan) -> Iterator[Weight]:
    if isinstance(plan, ConvolutionPlan):
        yield from _short_convolution(layer, plan)
    elif isinstance(plan, MambaPlan):
        yield from _mamba(layer, plan)
    else:
        yield from _delta_net(layer, plan)


def _short_convolution(layer: LayerParts, plan: ConvolutionPlan) -> Iterator[Weight]:
    names, width, bias = layer.names, plan.channels, plan.bias
    gated = layer.parts((names.gated,), (3 * width,))
    yield from layer.linear("attn.gated", layer.hidden, gated, bias=bias)
    taps = layer.parts((names.convolution,), (plan.channels,))
    yield from _convolution(layer, plan, taps, bias=bias)
    out = layer.parts((names.state_out,), (layer.hidden,))
    yield from layer.linear("attn.o", width, out, bias=bias)


def _convolution(
    layer: LayerParts, plan: StatePlan, parts: tuple[Stored, ...], *, bias: bool
) -> Iterator[Weight]:
    for weight in layer.linear("attn.convolution", plan.reach, parts, bias=bias):
        channels, *taps = weight.shape
        yield replace(weight, shape=(channels, *(1 for _ in taps), *taps), is_wide=True)


def _mamba(layer: LayerParts, plan: MambaPlan) -> Iterator[Weight]:
    """One tensor holds the gate, x, B, C and steps, another the convolution of x, B and C."""
    names, keys, width = layer.names, plan.key_width, plan.value_width
    into = (names.state_in, (width, width, keys, keys, plan.num_heads))
    gate, x, b, c, steps = layer.slices(*into)
    yield from layer.linear("attn.qkvz", layer.hidden, (c, b, x, gate), bias=plan.bias)
    for weight in layer.linear("attn.rates", layer.hidden, (steps,), bias=plan.bias):
        yield replace(weight, is_wide=True)
    x, b, c = layer.slices(names.convolution, (width, keys, keys))
    yield from _convolution(layer, plan, (c, b, x), bias=plan.convolution_bias)
    yield from _of_heads(layer, plan, (names.log_slopes, names.shifts, names.skips))
    if plan.norm is not None:
        (norm,) = layer.norm("attn.gated_norm", names.state_norm, plan.norm, width)
        grouped = replace(norm.parts[0], gguf_within=Within(groups=plan.num_key_heads))
        yield replace(norm, parts=(grouped,))
    out = layer.parts((names.state_out,), (layer.hidden,))
    yield from layer.linear("attn.o", width, out, bias=plan.o_bias)


def _of_heads(
    layer: LayerParts, plan: DeltaNetPlan | MambaPlan, names: tuple[Name, ...]
) -> Iterator[Weight]:
    ours = (("log_slopes", "weight"), ("shifts", "bias"), ("skips", "weight"))
    for (name, kind), stored in zip(ours, names, strict=False):
        made = layer.ours(f"attn.{name}"), (plan.num_heads,), layer.stored(stored)
        weight = single(*made, kind=kind)
        part = replace(weight.parts[0], gguf_minus_exp=name == "log_slopes")
        yield replace(weight, parts=(part,), is_wide=True)


def _delta_net(layer: LayerParts, plan: DeltaNetPlan) -> Iterator[Weight]:
    names, heads, width = layer.names, plan.num_heads, plan.value_width
    apart = (plan.key_width, plan.key_width, width)
    if names.qkvz[0].hf != names.qkvz[1].hf:
        sizes = (plan.channels, width) if len(names.qkvz) == 2 else (*apart, width)
        qkvz = layer.parts(names.qkvz, sizes)
        rates = layer.parts(names.rates, (heads, heads))
    else:
        qkvz, rates = _by_key_head(layer, plan)
    yield from layer.linear("attn.qkvz", layer.hidden, qkvz, bias=False)
    for weight in layer.linear("attn.rates", layer.hidden, rates, bias=False):
        yield replace(weight, is_wide=True)
    taps = layer.parts(names.convolutions or (names.convolution,), apart)
    yield from _convolution(layer, plan, taps, bias=False)
    yield from _of_heads(layer, plan, (names.log_slopes, names.shifts))
    yield from layer.norm("attn.head_norm", names.state_norm, plan.norm, plan.value_dim)
    out = layer.parts((names.state_out,), (layer.hidden,))
    yield from layer.linear("attn.o", width, out, bias=False)


def _by_key_head(
    layer: LayerParts, plan: DeltaNetPlan
) -> tuple[tuple[Stored, ...], tuple[Stored, ...]]:
    """q, k, v and the gate, and rates with decays: in files of Hugging Face each of the two is one
    tensor, ordered by head of k. A GGUF file has q, k and v in one tensor, and the gate in
    another."""
    names, keys, per_key = layer.names, plan.num_key_heads, plan.num_heads // plan.num_key_heads
    sizes = (plan.key_dim, plan.key_dim, *(per_key * plan.value_dim,) * 2)
    q, k, v, gate = layer.by_head(names.qkvz[0], keys, sizes)
    qkv = layer.in_gguf((*q, *k, *v), names.qkvz[0])
    rates = layer.by_head(names.rates[0], keys, (per_key, per_key))
    return (*qkv, *layer.in_gguf(gate, names.qkvz[1])), (*rates[0], *rates[1])
