"""Makes the layers of a decoder from named weights, as the plans of its spec say."""

from __future__ import annotations

import torch

from quire.backends.ops import HeadNorms, HeadsOp, RowOp
from quire.errors import UnsupportedModel
from quire.layer_plan import AttentionPlan, LatentPlan, LayerPlan
from quire.layers.attention import Attention, Values, unchanged
from quire.layers.cross import CrossAttention
from quire.layers.embedding import (
    Embedding,
    NormedEmbedding,
    PositionedEmbedding,
    Rows,
    ScaledEmbedding,
    waves,
)
from quire.layers.heads import ClippedHeads, DividedWidths, NormedHeads, NormedWidths
from quire.layers.latent import (
    HeadProducts,
    LatentAttention,
    LatentPairs,
    LatentParts,
    NarrowQueries,
)
from quire.layers.linear import Linear, Matrix
from quire.layers.norm import NoNorm, Norm, RMSNorm
from quire.layers.reading import ReadingAttention
from quire.models.layers import (
    Finish,
    FinishingLayer,
    HearingLayer,
    JoiningLayer,
    Layer,
    Mixer,
    MixingLayer,
    Mlp,
    ParallelLayer,
    PlainLayer,
)
from quire.models.long_parts import embedding_branch, long_layer
from quire.models.mlp_parts import feed_forward
from quire.models.state_parts import state_layer
from quire.models.stream_parts import StreamsLayer, joined, spread, streams_layer
from quire.models.weight_parts import WeightParts
from quire.spec import is_joined


class Parts(WeightParts):
    """Makes the layers of a model."""

    def embedding(self, table: Matrix | Rows) -> Embedding:
        made = self._embedding(table)
        if self.adapters is not None:
            sizes = self.spec.vocab_size, self.spec.hidden_size
            made.look_up = self.adapters.around_rows("embed", made.look_up, *sizes)
        return made

    def _embedding(self, table: Matrix | Rows) -> Embedding:
        spec, learned, scale = self.spec, self.spec.learned_positions, self.spec.embedding_scale
        if learned is not None and spec.waves is not None:
            raise UnsupportedModel("an embedding with two kinds of positions.")
        if spec.embed_norm is not None:
            if scale != 1.0 or learned is not None or spec.waves is not None:
                raise UnsupportedModel("an embedding that is normed, and scaled or placed.")
            norm = self.norm("embed_norm", spec.embed_norm, spec.hidden_size)
            return NormedEmbedding(self.kernels, table, norm)
        if learned is not None:
            rows = self.tensor("positions.weight", learned.count, spec.hidden_size)
            return PositionedEmbedding(self.kernels, table, rows, learned.offset, scale)
        if spec.waves is not None:
            rows = waves(spec.max_model_len, spec.hidden_size, spec.waves.offset).to(self.device)
            return PositionedEmbedding(self.kernels, table, rows, 0, scale)
        if scale != 1.0:
            return ScaledEmbedding(self.kernels, table, scale)
        return Embedding(self.kernels, table)

    def norm_before(self, index: int) -> Norm:
        """The norm before layer `index`, also the last step of the layer before; after all layers
        for index num_layers."""
        spec = self.spec
        if spec.streams is not None and index in (0, spec.num_layers):
            return (spread if index == 0 else joined)(self, spec.streams)
        if index == spec.num_layers:
            return self.norm("norm", spec.norm, spec.hidden_size)
        norms = spec.layers[index].norms
        if norms == "after" or is_joined(spec, index) or spec.streams is not None:
            return NoNorm()
        return self.layer_norm(index, "attn_norm")

    def layer(self, index: int, plan: LayerPlan, next_norm: Norm) -> Layer | StreamsLayer:
        attention = self.mixer(f"layers.{index}.attn", plan)
        scale, norms = plan.branch_scale, plan.norms
        if plan.mlp is None:
            if norms != "before" or plan.is_long or plan.cross is not None:
                raise UnsupportedModel(f"layers.{index}: no feed-forward beside other norms.")
            kind = JoiningLayer if plan.joins_next else MixingLayer
            return kind(attention, Finish(None, scale), next_norm)
        if plan.joins_next:
            raise UnsupportedModel(f"layers.{index}: a feed-forward beside the next layer.")
        mlp = feed_forward(self, f"layers.{index}.mlp", plan.mlp)
        if self.spec.streams is not None:
            branch = embedding_branch(self, index, plan.embedding)
            return streams_layer(self, index, plan, (attention, mlp), branch, next_norm)
        if plan.cross is not None:
            return self._hearing(index, plan, attention, mlp, next_norm)
        if norms in ("parallel", "parallel_two"):
            if plan.is_long or plan.mlp_scale is not None:
                raise UnsupportedModel(f"layers.{index}: more than two branches side by side.")
            own = self.layer_norm(index, "mlp_norm") if norms == "parallel_two" else None
            return ParallelLayer(attention, own, mlp, scale, next_norm)
        mlp_norm = NoNorm() if norms == "after" else self.layer_norm(index, "mlp_norm")
        if norms == "before":
            if scale == 1.0 and plan.mlp_scale in (None, 1.0) and not plan.is_long:
                return PlainLayer(attention, mlp_norm, mlp, next_norm)
            after: list[Norm | None] = [None, None]
        else:
            names = ("attn_post_norm", "mlp_post_norm")
            after = [self.layer_norm(index, name) for name in names]
        behind = scale if plan.mlp_scale is None else plan.mlp_scale
        first, second = Finish(after[0], scale), Finish(after[1], behind)
        if plan.is_long:
            branches = (attention, first), (mlp_norm, mlp, second)
            return long_layer(self, index, plan, *branches, next_norm)
        return FinishingLayer(attention, first, mlp_norm, mlp, second, next_norm)

    def mixer(self, name: str, plan: LayerPlan) -> Mixer:
        if plan.state is None:
            return self.attention(name, plan.attention)
        return state_layer(self, name, plan.state)

    def _hearing(
        self, index: int, plan: LayerPlan, attention: Mixer, mlp: Mlp, next_norm: Norm
    ) -> HearingLayer:
        if plan.norms != "before" or plan.branch_scale != 1.0:
            raise UnsupportedModel(f"layers.{index}: attention to a sound beside other norms.")
        heads, hidden = plan.attention, self.spec.hidden_size
        name, width = f"layers.{index}.cross", heads.num_heads * heads.head_dim
        cross = CrossAttention(
            self.shape,
            index,
            self.linear(f"{name}.q", width, hidden, bias=heads.qkv_bias),
            self.linear(f"{name}.o", hidden, width, bias=heads.o_bias),
            self.tp,
        )
        norms = (self.layer_norm(index, f"{one}_norm") for one in ("cross", "mlp"))
        return HearingLayer(attention, next(norms), cross, next(norms), mlp, next_norm)

    def attention(
        self, name: str, plan: AttentionPlan
    ) -> Attention | ReadingAttention | LatentAttention:
        if plan.latent is not None:
            return self.latent_attention(name, plan, plan.latent)
        if plan.kv_from is not None:
            return self._reading_attention(name, plan)
        hidden, width = self.spec.hidden_size, plan.head_dim
        num_all = plan.num_heads + (plan.num_parts - 1) * plan.num_kv_heads
        attended, bias = plan.num_heads * width, plan.qkv_bias
        norms = adapted = weights = None
        if plan.head_norm is not None:
            names, eps = [f"{name}.{x}_norm" for x in "qk"], plan.head_norm.eps
            q, k = (self.norm_weight(one, plan.head_norm, width) for one in names)
            norms = HeadNorms(q, k, eps)
            if plan.qk_norm_behind:
                # A rotation leaves the mean square as it is, so it may come behind the division.
                norms, weights = HeadNorms(torch.ones_like(q), torch.ones_like(k), eps), (q, k)
            elif self.adapters is not None:
                plain = [RMSNorm(self.kernels, one, eps) for one in (q, k)]
                adapted = self.adapters.around_heads(names, plain, self.shape_of(plan))
        return Attention(
            self.shape_of(plan),
            self.linear(f"{name}.qkv", num_all * width, hidden, bias=bias),
            self.linear(f"{name}.o", hidden, attended, bias=plan.o_bias),
            window=plan.window,
            rope=self.spec.rotations.index(plan.rotation),
            tp=self.tp,
            norms=norms,
            heads=self._clipped_heads(name, plan),
            growth=plan.query_growth,
            weights=weights,
            sinks=self.tensor(f"{name}.sinks.weight", plan.num_heads) if plan.sinks else None,
            gate=self.linear(f"{name}.gate", attended, hidden, bias=bias)
            if plan.output_gate
            else None,
            adapted=adapted,
            values=self._values(plan),
            inner=self.inner_norm(f"{name}.inner_norm", plan.inner_norm, attended) or unchanged,
            chunk=plan.chunk,
        )

    def _values(self, plan: AttentionPlan) -> Values:
        keys = plan.num_kv_heads
        norm: RowOp | None = None
        if plan.value_norm is not None:
            weight = torch.ones(plan.head_dim, dtype=self.shape.dtype, device=self.device)
            norm = RMSNorm(self.kernels, weight, plan.value_norm)
        if plan.clip is not None:
            norm = ClippedHeads(norm or unchanged, plan.clip)
        return Values(plan.num_heads + (0 if plan.values_are_keys else keys), keys, norm)

    def _reading_attention(self, name: str, plan: AttentionPlan) -> ReadingAttention:
        others = (plan.query_growth, plan.sinks, plan.output_gate, plan.qk_norm_behind, plan.clip)
        more = (plan.inner_norm, plan.chunk)
        if any(others) or plan.qk_norm_over == "width" or more != (None, None):
            raise UnsupportedModel(f"{name}: keys of another layer beside sinks, gates or growth.")
        hidden, width = self.spec.hidden_size, plan.num_heads * plan.head_dim
        norm: RowOp = unchanged
        if plan.qk_norm is not None:
            norm = self.norm(f"{name}.q_norm", plan.qk_norm, plan.head_dim)
        return ReadingAttention(
            self.shape_of(plan),
            self.linear(f"{name}.qkv", width, hidden, bias=plan.qkv_bias),
            norm,
            self.linear(f"{name}.o", hidden, width, bias=plan.o_bias),
            window=plan.window,
            rope=self.spec.rotations.index(plan.rotation),
            tp=self.tp,
        )

    def latent_attention(
        self, name: str, plan: AttentionPlan, latent: LatentPlan
    ) -> LatentAttention:
        if plan.inner_norm is not None:
            raise UnsupportedModel(f"{name}: a norm before the last product beside latents.")
        hidden, heads = self.spec.hidden_size, plan.num_heads
        pairs = self.tensor(f"{name}.kv_b.weight", heads * latent.pair_dims, latent.kv_rank)
        by_head = pairs.view(heads, latent.pair_dims, latent.kv_rank)
        keys, values = by_head[:, : latent.plain_dims], by_head[:, latent.plain_dims :]
        to_rows, to_values = (
            HeadProducts(self.kernels, [Linear(self.kernels, one.contiguous()) for one in weights])
            for weights in (keys.transpose(1, 2), values)
        )
        self.places[f"{name}.kv_b.weight"] = (LatentPairs(latent, to_rows, to_values),)
        ops: tuple[HeadsOp, HeadsOp] = (to_rows, to_values)
        if self.adapters is not None:
            sizes = heads, latent.plain_dims, latent.value_dims
            ops = self.adapters.around_pairs(f"{name}.kv_b", ops, sizes)
        rows = latent.kv_rank + latent.rope_dims
        parts = LatentParts(
            self._latent_queries(name, plan, latent),
            self.linear(f"{name}.kv_a", rows, hidden, bias=plan.qkv_bias),
            self.row_norm(f"{name}.kv_a_norm", latent.norm, latent.kv_rank),
            *ops,
            self.linear(f"{name}.o", hidden, heads * latent.value_dims, bias=plan.o_bias),
        )
        rope = self.spec.rotations.index(plan.rotation)
        shape = self.shape_of(plan)
        return LatentAttention(self.kernels, shape, latent, parts, rope=rope, tp=self.tp)

    def _latent_queries(self, name: str, plan: AttentionPlan, latent: LatentPlan) -> RowOp:
        hidden, rows = self.spec.hidden_size, plan.num_heads * latent.query_dims
        if latent.q_rank is None:
            return self.linear(f"{name}.q", rows, hidden, bias=False)
        return NarrowQueries(
            self.linear(f"{name}.q_a", latent.q_rank, hidden, bias=plan.qkv_bias),
            self.norm(f"{name}.q_a_norm", latent.norm, latent.q_rank),
            self.linear(f"{name}.q_b", rows, latent.q_rank, bias=False),
        )

    def _clipped_heads(self, name: str, plan: AttentionPlan) -> RowOp:
        heads = self._heads(name, plan)
        if plan.clip is None:
            return heads
        if plan.head_norm is not None:
            raise UnsupportedModel(f"{name}: limits of numbers behind norms of single heads.")
        return ClippedHeads(heads, plan.clip)

    def _heads(self, name: str, plan: AttentionPlan) -> RowOp:
        """What is applied to q and k before the kernel that rotates them."""
        if plan.qk_norm is None or plan.head_norm is not None:
            return unchanged
        if plan.qk_norm_behind:
            raise UnsupportedModel(f"{name}: norms behind a rotation that are not of single heads.")
        counts = (plan.num_heads, plan.num_kv_heads) if plan.qk_norm_over == "width" else (1, 1)
        sizes = tuple(count * plan.head_dim for count in counts)
        if plan.whole is not None:
            if plan.qk_norm.kind != "rms":
                raise UnsupportedModel(f"{name}: a LayerNorm over heads that ranks divide.")
            pairs = zip("qk", sizes, strict=True)
            q, k = (self.tensor(f"{name}.{x}_norm.weight", size) for x, size in pairs)
            norms = HeadNorms(q, k, plan.qk_norm.eps)
            return DividedWidths(self.shape_of(plan), plan.whole, norms, self.tp)
        q_norm, k_norm = (
            self.norm(f"{name}.{x}_norm", plan.qk_norm, size)
            for x, size in zip("qk", sizes, strict=True)
        )
        over = NormedWidths if plan.qk_norm_over == "width" else NormedHeads
        return over(self.shape_of(plan), q_norm, k_norm)
