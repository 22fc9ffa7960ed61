"""Makes what a layer may have beside attention and a feed-forward from named weights."""

from __future__ import annotations

from quire.layer_plan import EmbeddingBranchPlan, ExpertsPlan, LayerPlan
from quire.layers.embedding import ScaledEmbedding
from quire.layers.layer_embeddings import EmbeddingBranch, LayerEmbeddings
from quire.layers.norm import Norm
from quire.models.layers import Beside, Finish, LongLayer, Mixer, Mlp
from quire.models.mlp_parts import experts
from quire.models.weight_parts import WeightParts
from quire.spec import LayerEmbeddingsPlan


def long_layer(
    parts: WeightParts,
    index: int,
    plan: LayerPlan,
    attention: tuple[Mixer, Finish],
    mlp: tuple[Norm, Mlp, Finish],
    next_norm: Norm,
) -> LongLayer:
    norm, feed_forward, finish = mlp
    return LongLayer(
        *attention,
        norm,
        feed_forward,
        _beside(parts, index, plan.beside),
        finish,
        embedding_branch(parts, index, plan.embedding),
        parts.tensor(f"layers.{index}.scale.weight", 1) if plan.is_scaled else None,
        next_norm,
    )


def _beside(parts: WeightParts, index: int, plan: ExpertsPlan | None) -> Beside | None:
    if plan is None:
        return None
    names = ("mlp_own_norm", "beside_norm", "beside_post_norm")
    mlp_norm, before, after = (parts.layer_norm(index, name) for name in names)
    return Beside(mlp_norm, before, experts(parts, f"layers.{index}.beside", plan), after)


def embedding_branch(
    parts: WeightParts, index: int, plan: EmbeddingBranchPlan | None
) -> EmbeddingBranch | None:
    if plan is None:
        return None
    hidden, name = parts.spec.hidden_size, f"layers.{index}.embedding"
    return EmbeddingBranch(
        index,
        parts.linear(f"{name}.gate", plan.width, hidden, bias=False),
        parts.kernels.activate(plan.activation),
        parts.linear(f"{name}.out", hidden, plan.width, bias=False),
        parts.layer_norm(index, "embedding_post_norm"),
    )


def layer_embeddings(parts: WeightParts, plan: LayerEmbeddingsPlan) -> LayerEmbeddings:
    spec = parts.spec
    name, rows = "layer_embed", spec.num_layers * plan.width
    table = ScaledEmbedding(
        parts.kernels, parts.matrix(f"{name}.weight", plan.count, rows), plan.width**0.5
    )
    parts.places[f"{name}.weight"] = (table.place,)
    product = parts.linear(f"{name}_product", rows, spec.hidden_size, bias=False)
    norm = parts.norm(f"{name}_norm", plan.norm, plan.width)
    count = plan.count if plan.count < spec.vocab_size else None
    return LayerEmbeddings(
        table, product, norm, width=plan.width, of_media=plan.of_media, count=count
    )
