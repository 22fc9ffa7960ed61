"""Layers of models with several streams (layer_parts/streams.py), made from named weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from quire.errors import UnsupportedModel
from quire.layer_parts.streams import StreamsPlan
from quire.layer_plan import LayerPlan
from quire.layers.attention import Pass
from quire.layers.layer_embeddings import EmbeddingBranch
from quire.layers.norm import Norm
from quire.layers.streams import Joined, Side, Spread, Streams
from quire.models.layers import Finish, Mixer, Mlp
from quire.models.weight_parts import WeightParts

_HALF = 2**-0.5


@dataclass(frozen=True, slots=True)
class StreamsLayer:
    """Takes streams [streams, T, H] where other layers take a norm, and returns them; the stream of
    other layers is not used."""

    streams: Streams
    attn_norm: Norm
    side: Side
    attention: Mixer
    finish_attention: Callable[[Tensor], Tensor]
    mlp_norm: Norm
    mlp: Mlp
    finish_mlp: Callable[[Tensor], Tensor]
    embedding: EmbeddingBranch | None
    next_norm: Norm

    def __call__(
        self, normed: Tensor, residual: Tensor, shared: Pass, keys: Tensor, values: Tensor
    ) -> Tensor:
        streams = self.streams.predicted(normed)
        active = streams[self.streams.active]
        read = self.attn_norm(active)
        beside = self.side(read)
        made = self.finish_attention(self.attention(read, shared, keys, values)).add_(active)
        made.add_(beside).mul_(_HALF)
        made += self.finish_mlp(self.mlp(self.mlp_norm(made)))
        self.streams.correct(streams, made)
        if self.embedding is not None:
            read = self.streams.read(streams)
            streams[1:] += self.embedding(read, shared.layer_embeddings)
        return self.next_norm(streams)


def streams_layer(
    parts: WeightParts,
    index: int,
    plan: LayerPlan,
    branches: tuple[Mixer, Mlp],
    embedding: EmbeddingBranch | None,
    next_norm: Norm,
) -> StreamsLayer:
    streams, (attention, mlp) = parts.spec.streams, branches
    bare = (plan.beside, plan.cross, plan.state, plan.mlp_scale) == (None,) * 4
    if streams is None or plan.norms != "both" or not bare or plan.is_scaled:
        raise UnsupportedModel(f"layers.{index}: several streams beside other norms or branches.")
    if plan.branch_scale != 1.0 or plan.joins_next:
        raise UnsupportedModel(f"layers.{index}: several streams beside branches with factors.")
    after = (parts.layer_norm(index, f"{branch}_post_norm") for branch in ("attn", "mlp"))
    finish_attention, finish_mlp = (Finish(norm, 1.0) for norm in after)
    return StreamsLayer(
        _streams(parts, index, streams),
        parts.layer_norm(index, "attn_norm"),
        _side(parts, index, streams),
        attention,
        finish_attention,
        parts.layer_norm(index, "mlp_norm"),
        mlp,
        finish_mlp,
        embedding,
        next_norm,
    )


def _streams(parts: WeightParts, index: int, plan: StreamsPlan) -> Streams:
    hidden, count, name = parts.spec.hidden_size, plan.count, f"layers.{index}.streams"
    return Streams(
        plan.active,
        parts.layer_norm(index, "streams.router_norm"),
        parts.linear(f"{name}.router", count, hidden, bias=False),
        parts.linear(f"{name}.predicting", count * count, count, bias=False),
        parts.linear(f"{name}.correcting", count, count, bias=False),
        parts.tensor(f"{name}.scale.weight", hidden),
    )


def _side(parts: WeightParts, index: int, plan: StreamsPlan) -> Side:
    hidden, name = parts.spec.hidden_size, f"layers.{index}.side"
    narrow = parts.linear(f"{name}.narrow", plan.side, hidden, bias=False)
    wide = parts.linear(f"{name}.wide", hidden, plan.side, bias=False)
    return Side(narrow, wide, parts.layer_norm(index, "side_norm"))


def spread(parts: WeightParts, plan: StreamsPlan) -> Spread:
    hidden = parts.spec.hidden_size
    names = (f"streams.spread.{i}" for i in range(plan.count - 1))
    return Spread([parts.linear(name, hidden, hidden, bias=False) for name in names])


def joined(parts: WeightParts, plan: StreamsPlan) -> Joined:
    hidden, norm = parts.spec.hidden_size, parts.spec.norm
    names = (f"streams.joined.{i}" for i in range(plan.count - 1))
    products = [parts.linear(name, hidden, hidden, bias=False) for name in names]
    return Joined(products, parts.norm("norm", norm, hidden))
