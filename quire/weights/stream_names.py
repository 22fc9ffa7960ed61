"""The weights of several streams, around layers and in them. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from quire.families.family import ModelNames
from quire.layer_parts.streams import StreamsPlan
from quire.layer_plan import NormPlan
from quire.spec import ModelSpec
from quire.weights.parts import LayerParts, Weight, single
from quire.weights.within import Within


def outer_stream_weights(spec: ModelSpec, names: ModelNames) -> Iterator[Weight]:
    if spec.streams is None:
        return
    square = spec.hidden_size, spec.hidden_size
    for ours, name in (("spread", names.spread), ("joined", names.joined)):
        for i in range(spec.streams.count - 1):
            weight = single(f"streams.{ours}.{i}", square, replace(name, hf=name.hf.format(i)))
            parts = (replace(weight.parts[0], gguf_within=Within(expert=i)),)
            yield replace(weight, parts=parts)


def stream_weights(layer: LayerParts, norm: NormPlan, plan: StreamsPlan) -> Iterator[Weight]:
    names, count, hidden = layer.names, plan.count, layer.hidden
    yield from layer.norm("streams.router_norm", names.stream_norm, norm)
    for ours, name, rows, columns in (
        ("router", names.stream_router, count, hidden),
        ("predicting", names.predicting, count * count, count),
        ("correcting", names.correcting, count, count),
    ):
        parts = layer.parts((name,), (rows,))
        for weight in layer.linear(f"streams.{ours}", columns, parts):
            yield replace(weight, is_wide=True)
    yield single(layer.ours("streams.scale"), (hidden,), layer.stored(names.stream_scale))
    narrow, wide = (
        layer.parts((name,), (rows,))
        for name, rows in ((names.side_narrow, plan.side), (names.side_wide, hidden))
    )
    yield from layer.linear("side.narrow", hidden, narrow)
    yield from layer.linear("side.wide", plan.side, wide)
    yield from layer.norm("side_norm", names.side_norm, norm)
