"""The weights of a layer's attention, for every kind of plan. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd

from quire.families.family import Name
from quire.layer_plan import AttentionPlan, LatentPlan
from quire.weights.parts import LayerParts, Part, Stored, Weight, normed, single
from quire.weights.row_order import deinterleaved, ordered_by, turned_at_the_end
from quire.weights.within import latent_pairs


def attention_weights(layer: LayerParts, plan: AttentionPlan) -> Iterator[Weight]:
    if plan.latent is not None:
        yield from _latent(layer, plan, plan.latent)
        return
    names, size = layer.names, plan.head_dim
    for weight in layer.linear("attn.qkv", layer.hidden, _qkv(layer, plan), bias=plan.qkv_bias):
        is_whole = plan.k_bias or len(weight.shape) > 1
        yield weight if is_whole else _without_second(weight)
    if plan.qk_norm is not None:
        for ours, stored, count in (
            ("attn.q_norm", names.q_norm, plan.num_heads),
            ("attn.k_norm", names.k_norm, plan.num_kv_heads),
        )[: 1 if plan.kv_from is not None else 2]:
            count = count if plan.qk_norm_over == "width" else 1
            order = ordered_by(plan.rope, count, size)
            named = (layer.ours(ours), layer.stored(stored), count * size)
            yield from normed(*named, plan.qk_norm, order)
    if plan.sinks:
        sinks = layer.ours("attn.sinks"), (plan.num_heads,), layer.stored(names.sinks)
        yield replace(single(*sinks), is_wide=True)
    if plan.output_gate:
        if names.attn_gate is None:
            _, gates = _gated_queries(layer, plan)
        else:
            gates = layer.parts((names.attn_gate,), (plan.num_heads * size,))
        yield from layer.linear("attn.gate", layer.hidden, gates, bias=plan.qkv_bias)
    if plan.inner_norm is not None:
        width = plan.num_heads * size
        yield from layer.norm("attn.inner_norm", names.attn_inner_norm, plan.inner_norm, width)
    out = layer.parts((names.o,), (layer.hidden,))
    yield from layer.linear("attn.o", plan.num_heads * size, out, bias=plan.o_bias)


def cross_weights(layer: LayerParts, plan: AttentionPlan) -> Iterator[Weight]:
    """The encoder makes keys and values (models/towers)."""
    width = plan.num_heads * plan.head_dim
    for name, stored, rows, columns, bias in (
        ("cross.q", layer.names.cross_q, width, layer.hidden, plan.qkv_bias),
        ("cross.o", layer.names.cross_o, layer.hidden, width, plan.o_bias),
    ):
        yield from layer.linear(name, columns, layer.parts((stored,), (rows,)), bias=bias)


def _latent(layer: LayerParts, plan: AttentionPlan, latent: LatentPlan) -> Iterator[Weight]:
    names, hidden, heads, rope = layer.names.latent, layer.hidden, plan.num_heads, plan.rope
    biased, queries, inner = plan.qkv_bias, heads * latent.query_dims, latent.q_rank
    order = turned_at_the_end(rope, heads, latent.query_dims)
    if inner is None:
        yield from layer.linear("attn.q", hidden, layer.ordered(names.q, queries, order))
    else:
        yield from layer.linear("attn.q_a", hidden, layer.parts((names.q_a,), (inner,)), biased)
        yield from layer.norm("attn.q_a_norm", names.q_a_norm, latent.norm, inner)
        yield from layer.linear("attn.q_b", inner, layer.ordered(names.q_b, queries, order))
    rows = latent.kv_rank + latent.rope_dims
    kept = layer.ordered(names.kv_a, rows, turned_at_the_end(rope, 1, rows))
    yield from layer.linear("attn.kv_a", hidden, kept, biased)
    yield from layer.norm("attn.kv_a_norm", names.kv_a_norm, latent.norm, latent.kv_rank)
    pairs = tuple(
        Stored(layer.stored(name), Part("", "", count, hf_within=hf, gguf_within=gguf))
        for name, count, hf, gguf in latent_pairs((names.k_b, names.v_b), heads, latent)
    )
    for weight in layer.linear("attn.kv_b", latent.kv_rank, pairs):
        yield replace(weight, is_plain=True)
    out = layer.parts((layer.names.o,), (hidden,))
    yield from layer.linear("attn.o", heads * latent.value_dims, out, bias=plan.o_bias)


def _qkv(layer: LayerParts, plan: AttentionPlan) -> tuple[Stored, ...]:
    names, size = layer.names, plan.head_dim
    heads = (plan.num_heads, plan.num_kv_heads, plan.num_kv_heads)[: plan.num_parts]
    if names.qkv_by_group:
        return tuple(_by_group(layer, names.qkv[0], plan))
    if names.qvk_blocks:
        return tuple(_by_block(layer, names.qkv[0], plan))
    stored = names.qkv[: len(heads)] if len(names.qkv) > 1 else names.qkv
    qkv = layer.parts(stored, tuple(count * size for count in heads))
    if plan.output_gate and names.attn_gate is None:
        queries, _ = _gated_queries(layer, plan)
        ordered = tuple(_turned(layer, one, 1, plan) for one in queries)
        return (*ordered, _turned(layer, qkv[1], heads[1], plan), qkv[2])
    # v is not rotated, so its rows stay in order.
    turned = heads[:2] if len(qkv) > 1 else (sum(heads[:2]),)
    ordered = tuple(_turned(layer, *pair, plan) for pair in zip(qkv, turned, strict=False))
    return (*ordered, *qkv[len(ordered) :])


def _gated_queries(layer: LayerParts, plan: AttentionPlan) -> list[tuple[Stored, ...]]:
    """The parts of q and of its output gate, which q's tensor has alternately, head by head."""
    return layer.by_head(layer.names.qkv[0], plan.num_heads, (plan.head_dim, plan.head_dim))


def _by_group(layer: LayerParts, name: Name, plan: AttentionPlan) -> Iterator[Stored]:
    """q, k and v, cut from a single tensor that in files of Hugging Face is ordered by KV head;
    GGUF files have q, k and v one after the other."""
    queries, size = plan.num_heads // plan.num_kv_heads, plan.head_dim
    q, k, v = layer.by_head(name, plan.num_kv_heads, (queries * size, size, size))
    q = tuple(_turned(layer, one, queries, plan) for one in q)
    k = tuple(_turned(layer, one, 1, plan) for one in k)
    yield from layer.in_gguf((*q, *k, *v), name)


def _by_block(layer: LayerParts, name: Name, plan: AttentionPlan) -> Iterator[Stored]:
    # For a rank's heads, of which there may be fewer than blocks, the shapes alone are asked.
    blocks = gcd(layer.names.qvk_blocks, plan.num_heads)
    heads = plan.num_heads // blocks
    q, v, k = layer.by_head(name, blocks, (heads * plan.head_dim,) * 3)
    yield from (_turned(layer, one, heads, plan) for one in (*q, *k))
    yield from v


def _turned(layer: LayerParts, stored: Stored, heads: int, plan: AttentionPlan) -> Stored:
    """The part with the row order of its first `heads` heads, which are rotated."""
    size, rope = plan.head_dim, plan.rope
    dims = size if rope is None else rope.dims
    order = deinterleaved(heads, size, dims) if layer.family.gguf_interleaved else None
    ordered = replace(stored.part, gguf_order=order, order=ordered_by(rope, heads, size))
    return replace(stored, part=ordered)


def _without_second(weight: Weight) -> Weight:
    """The weight without its stored second part, which is zeros instead."""
    first, second, third = weight.parts
    return replace(weight, parts=(first, replace(third, zeros=second.rows)))
