"""quire's own names for a model's weights, their shapes, and the names of their parts in files. No
torch.

There is one entry for each final tensor. If it is made of several stored ones, these are listed in
row order: the first heads * head_dim rows of `layers.0.attn.qkv.weight` are q_proj, then come
k_proj and v_proj. A family whose files have them in one tensor lists that one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from quire.families.family import ModelNames, Name
from quire.families.registry import family_named
from quire.layer_plan import ExpertsPlan, LayerPlan, MlpPlan
from quire.spec import ModelSpec, is_joined
from quire.weights.attention_names import attention_weights, cross_weights
from quire.weights.parts import LayerParts, Weight, normed, single
from quire.weights.state_names import state_weights
from quire.weights.stream_names import outer_stream_weights, stream_weights

AFTER = ("after", "both")  # with norms after the branches


def weights_of(spec: ModelSpec) -> Iterator[Weight]:
    family, vocab, hidden = family_named(spec.family), spec.vocab_size, spec.hidden_size
    names = family.outer_names
    embed = single("embed", (vocab, hidden), names.embed)
    if spec.tied_embeddings:  # a tool that stores each matrix once keeps either name
        (part,) = embed.parts
        head = (f"{names.head.hf}.weight", part.hf_within)
        embed = replace(embed, parts=(replace(part, hf_else=head),))
    yield embed
    if spec.embed_norm is not None:
        yield from normed("embed_norm", names.embed_norm, hidden, spec.embed_norm)
    if spec.learned_positions is not None:
        rows = spec.learned_positions.count
        yield replace(single("positions", (rows, hidden), names.positions), is_wide=True)
    yield from _layer_embeddings(spec, names)
    yield from outer_stream_weights(spec, names)
    for index, (plan, number) in enumerate(zip(spec.layers, stored_numbers(spec), strict=True)):
        names_there = family.names_by_norms.get(plan.norms, family.names)
        layer = LayerParts(index, hidden, family, names_there, number)
        yield from _layer(layer, plan, joined=is_joined(spec, index))
        if spec.streams is not None:
            yield from stream_weights(layer, plan.norm, spec.streams)
    yield from normed("norm", names.norm, hidden, spec.norm)
    if not spec.tied_embeddings:
        yield single("head", (vocab, hidden), names.head)
    if spec.logits.bias:
        yield single("head", (vocab,), names.head, kind="bias")


def unread_keys(spec: ModelSpec) -> frozenset[str]:
    """Stored tensors that make keys and values in layers that read those of others: files may have
    them all the same."""
    if all(source is None for source in spec.kv_sources):
        return frozenset()
    whole = spec.with_attention(lambda one: replace(one, kv_from=None))
    parts = (part for weight in weights_of(whole) for part in weight.parts)
    return frozenset(name for part in parts for name in (part.hf, part.gguf))


def stored_numbers(spec: ModelSpec) -> Iterator[int]:
    """The number of each layer in files, where a branch may be a layer of its own."""
    number, apart = 0, family_named(spec.family).branches_apart
    for plan in spec.layers:
        yield number
        number += _stored_layers(plan, branches_apart=apart)


def _stored_layers(plan: LayerPlan, *, branches_apart: bool) -> int:
    """How many layers it is in files: none if the next one is the rest of it."""
    if plan.joins_next:
        return 0
    return 2 if branches_apart and plan.mlp is not None else 1


def _layer(layer: LayerParts, plan: LayerPlan, *, joined: bool) -> Iterator[Weight]:
    """`joined`: it reads the norm of the layer before it."""
    names, before, after = layer.names, plan.norms != "after", plan.norms in AFTER
    if before and not joined:
        yield from layer.norm("attn_norm", names.attn_norm, plan.norm)
    if plan.state is None:
        yield from attention_weights(layer, plan.attention)
    else:
        yield from state_weights(layer, plan.state)
    if after:
        yield from layer.norm("attn_post_norm", names.attn_post_norm, plan.norm)
    if plan.cross is not None:
        yield from layer.norm("cross_norm", names.cross_norm, plan.norm)
        yield from cross_weights(layer, plan.attention)
    if plan.mlp is not None:
        behind = replace(layer, number=layer.number + layer.family.branches_apart)
        if before and plan.norms != "parallel":
            yield from behind.norm("mlp_norm", names.mlp_norm, plan.norm)
        yield from _mlp(behind, plan.mlp)
    if plan.beside is not None:
        yield from layer.norm("mlp_own_norm", names.mlp_own_norm, plan.norm)
        yield from layer.norm("beside_norm", names.beside_norm, plan.norm)
        yield from _experts(layer, "beside", plan.beside)
        yield from layer.norm("beside_post_norm", names.beside_post_norm, plan.norm)
    if after:
        yield from layer.norm("mlp_post_norm", names.mlp_post_norm, plan.norm)
    if plan.embedding is not None:
        width = plan.embedding.width
        gate, out = layer.parts((names.embedding_gate,), (width,)), (names.embedding_out,)
        yield from layer.linear("embedding.gate", layer.hidden, gate)
        yield from layer.linear("embedding.out", width, layer.parts(out, (layer.hidden,)))
        yield from layer.norm("embedding_post_norm", names.embedding_post_norm, plan.norm)
    if plan.is_scaled:
        yield single(layer.ours("scale"), (1,), layer.stored(names.scale))


def _layer_embeddings(spec: ModelSpec, names: ModelNames) -> Iterator[Weight]:
    plan = spec.layer_embeddings
    if plan is None:
        return
    rows = spec.num_layers * plan.width
    yield single("layer_embed", (plan.count, rows), names.layer_embed)
    yield single("layer_embed_product", (rows, spec.hidden_size), names.layer_embed_product)
    yield from normed("layer_embed_norm", names.layer_embed_norm, plan.width, plan.norm)


def _mlp(layer: LayerParts, plan: MlpPlan | ExpertsPlan) -> Iterator[Weight]:
    if isinstance(plan, ExpertsPlan):
        yield from _experts(layer, "mlp", plan)
        return
    names = layer.names
    stored = (names.gate_up if plan.gated else (names.up,), names.down)
    yield from _feed_forward(layer, "mlp", plan, *stored)


def _feed_forward(
    layer: LayerParts,
    ours: str,
    plan: MlpPlan,
    first: tuple[Name, ...],
    last: Name,
    expert: int | None = None,
    experts: int = 0,
) -> Iterator[Weight]:
    """Of gate and up, in the tensors named `first`, or of up alone; and of down."""
    rows, name = (plan.width,) * (1 + plan.gated), "gate_up" if plan.gated else "up"
    stored = partial(layer.parts, expert=expert, experts=experts)
    up, down = stored(first if plan.gated else first[-1:], rows), (last,)
    yield from layer.linear(f"{ours}.{name}", layer.hidden, up, bias=plan.bias)
    if plan.activation == "xielu":
        numbers = layer.parts(layer.names.curve, (1,) * len(layer.names.curve))
        named = tuple(one.named("weight") for one in numbers)
        yield Weight(layer.ours(f"{ours}.curve.weight"), (len(named),), named, is_wide=True)
    if plan.inner_norm is not None:
        inner = layer.names.mlp_inner_norm, plan.inner_norm, plan.width
        yield from layer.norm(f"{ours}.inner_norm", *inner)
    out = stored(down, (layer.hidden,))
    yield from layer.linear(f"{ours}.down", plan.width, out, bias=plan.bias)


def _experts(layer: LayerParts, ours: str, plan: ExpertsPlan) -> Iterator[Weight]:
    names = layer.names
    yield from _router(layer, ours, plan)
    for i in range(plan.count):
        stored = (names.expert_gate_up, names.expert_down, i, plan.count)
        yield from _feed_forward(layer, f"{ours}.experts.{i}", plan.expert, *stored)
    if plan.shared is not None:
        shared = (names.shared_gate_up, names.shared_down)
        yield from _feed_forward(layer, f"{ours}.shared", plan.shared, *shared)
    if plan.shared is not None and plan.shared_gate:
        gate = layer.parts((names.shared_gate,), (1,))
        for weight in layer.linear(f"{ours}.shared_gate", layer.hidden, gate, bias=False):
            yield replace(weight, is_wide=True)


def _router(layer: LayerParts, ours: str, plan: ExpertsPlan) -> Iterator[Weight]:
    names = layer.names
    if plan.router_norm is not None:
        norm = layer.norm(f"{ours}.router_norm", names.router_norm, plan.router_norm)
        yield from (replace(weight, is_wide=True) for weight in norm)
    if plan.has_factors:
        factors = layer.ours(f"{ours}.factors"), (plan.count,), layer.stored(names.expert_factors)
        yield replace(single(*factors), is_wide=True)
    router = layer.parts((names.router,), (plan.count,))
    for weight in layer.linear(f"{ours}.router", layer.hidden, router, bias=plan.router_bias):
        yield replace(weight, is_wide=True)
    if plan.choice_bias:
        named = layer.ours(f"{ours}.choice"), (plan.count,), layer.stored(names.router_choice)
        yield replace(single(*named, kind="bias"), is_wide=True)
