"""Makes the layers of a decoder from named weights, as the plans of its spec say."""

from __future__ import annotations

from torch import Tensor

from quire.backends.linear import Gate, WeightRows
from quire.backends.ops import DeltaRule, HeadNorms, HeadShape, Kernels, RowNorm, RowOp
from quire.errors import CorruptModel, UnsupportedModel
from quire.layer_plan import (
    AttentionPlan,
    DeltaNetPlan,
    ExpertsPlan,
    LatentPlan,
    LayerPlan,
    MlpPlan,
    NormPlan,
)
from quire.layers.adapted import AdapterSites
from quire.layers.attention import Attention, unchanged
from quire.layers.cross import CrossAttention
from quire.layers.delta_net import DeltaNet, DeltaNetParts
from quire.layers.embedding import Embedding, PositionedEmbedding, Rows, ScaledEmbedding
from quire.layers.experts import Experts, Router, SharedExpert
from quire.layers.heads import DividedWidths, NormedHeads, NormedWidths
from quire.layers.latent import (
    HeadProducts,
    LatentAttention,
    LatentPairs,
    LatentParts,
    NarrowQueries,
)
from quire.layers.linear import Linear, Matrix, PlainRows
from quire.layers.mlp import GatedMLP, PlainMLP
from quire.layers.norm import LayerNorm, NoNorm, Norm, RMSNorm
from quire.layers.tp import TensorParallel
from quire.models.layers import (
    Finish,
    FinishingLayer,
    HearingLayer,
    Layer,
    Mixer,
    Mlp,
    ParallelLayer,
    PlainLayer,
)
from quire.spec import ModelSpec

# Where each weight of a built decoder is, by quire's name of it. With this a model can be given
# other weights, or leave its device, without building anything again.
Places = dict[str, tuple[WeightRows, ...]]
Weights = dict[str, Tensor] | dict[str, Matrix]


class Parts:
    """Takes weights out of a dict, checks their shapes, and makes the parts of layers from them."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        kernels: Kernels,
        shape: HeadShape,
        tp: TensorParallel,
        adapters: AdapterSites | None = None,
    ) -> None:
        """`shape`: the heads of the first layer. `adapters`: gives products slots for LoRA
        adapters; None if the model has no slots."""
        self.spec, self.weights, self.kernels = spec, weights, kernels
        self.shape, self.tp, self.adapters = shape, tp, adapters
        self.places: Places = {}  # of all weights that were taken so far

    def tensor(self, name: str, *shape: int) -> Tensor:
        """A weight that stays a plain tensor."""
        weight = self.matrix(name, *shape)
        if not isinstance(weight, Tensor):
            raise CorruptModel(f"the weight {name!r} is a packed matrix, not plain numbers.")
        self.places[name] = (PlainRows(weight),)
        return weight

    def matrix(self, name: str, *shape: int) -> Matrix:
        weight = self.weights.pop(name, None)
        if weight is None:
            raise CorruptModel(f"the weight {name!r} is missing.")
        if tuple(weight.shape) != shape:
            raise CorruptModel(
                f"the weight {name!r} has shape {list(weight.shape)}, not {list(shape)}."
            )
        return weight

    def linear(self, name: str, rows: int, columns: int, *, bias: bool) -> Linear:
        return self.adapted(name, self._linear(name, rows, columns, bias=bias))

    def _linear(self, name: str, rows: int, columns: int, *, bias: bool) -> Linear:
        weight = self.matrix(f"{name}.weight", rows, columns)
        made = Linear(self.kernels, weight, self.tensor(f"{name}.bias", rows) if bias else None)
        self.places[f"{name}.weight"] = (made,)
        return made

    def adapted(self, name: str, made: Linear) -> Linear:
        """The product, with slots for LoRA adapters if it may have some."""
        if self.adapters is not None:
            made.multiply = self.adapters.around(name, made.multiply, made.bias)
        return made

    def _opened(self, name: str, gate: Gate, product: Linear) -> RowOp:
        """The product followed by activation(gate) * up, with slots for LoRA adapters if it may
        have some."""
        if self.adapters is None:
            return gate.behind(product)
        return self.adapters.behind_gate(name, gate, product)

    def embedding(self, table: Matrix | Rows) -> Embedding:
        made = self._embedding(table)
        if self.adapters is not None:
            sizes = self.spec.vocab_size, self.spec.hidden_size
            made.look_up = self.adapters.around_rows("embed", made.look_up, *sizes)
        return made

    def _embedding(self, table: Matrix | Rows) -> Embedding:
        spec, learned = self.spec, self.spec.learned_positions
        if learned is not None:
            if spec.embedding_scale != 1.0:
                raise UnsupportedModel("learned positions beside a scaled embedding.")
            rows = self.tensor("positions.weight", learned.count, spec.hidden_size)
            return PositionedEmbedding(self.kernels, table, rows, learned.offset)
        if spec.embedding_scale != 1.0:
            return ScaledEmbedding(self.kernels, table, spec.embedding_scale)
        return Embedding(self.kernels, table)

    def norm(self, name: str, plan: NormPlan, size: int) -> Norm:
        weight = self.tensor(f"{name}.weight", size)
        bias = self.tensor(f"{name}.bias", size) if plan.bias else None
        if bias is not None and plan.kind != "layer":
            raise UnsupportedModel(f"{name}: an RMSNorm with a bias.")
        made: RMSNorm | LayerNorm = RMSNorm(self.kernels, weight, plan.eps)
        if plan.kind == "layer":
            made = LayerNorm(self.kernels, weight, bias, plan.eps)
        return made if self.adapters is None else self.adapters.around_norm(name, made)

    def row_norm(self, name: str, plan: NormPlan, size: int) -> RowNorm:
        if plan.kind != "rms" or plan.bias:
            raise UnsupportedModel(f"{name}: a norm of kept rows that is no plain RMSNorm.")
        return RowNorm(self.tensor(f"{name}.weight", size), plan.eps)

    def norm_before(self, index: int) -> Norm:
        """The norm before layer `index`, also the last step of the layer before; after all layers
        for index num_layers."""
        spec = self.spec
        if index == spec.num_layers:
            return self.norm("norm", spec.norm, spec.hidden_size)
        if spec.layers[index].norms == "after":
            return NoNorm()
        return self._layer_norm(index, "attn_norm")

    def _layer_norm(self, index: int, name: str) -> Norm:
        plan = self.spec.layers[index].norm
        return self.norm(f"layers.{index}.{name}", plan, self.spec.hidden_size)

    def layer(self, index: int, plan: LayerPlan, next_norm: Norm) -> Layer:
        attention = self.mixer(f"layers.{index}.attn", plan)
        mlp = self.mlp(f"layers.{index}.mlp", plan.mlp)
        scale, norms = plan.branch_scale, plan.norms
        if plan.cross is not None:
            return self._hearing(index, plan, attention, mlp, next_norm)
        if norms in ("parallel", "parallel_two"):
            own = self._layer_norm(index, "mlp_norm") if norms == "parallel_two" else None
            return ParallelLayer(attention, own, mlp, scale, next_norm)
        mlp_norm = NoNorm() if norms == "after" else self._layer_norm(index, "mlp_norm")
        if norms == "before":
            if scale == 1.0:
                return PlainLayer(attention, mlp_norm, mlp, next_norm)
            after: list[Norm | None] = [None, None]
        else:
            names = ("attn_post_norm", "mlp_post_norm")
            after = [self._layer_norm(index, name) for name in names]
        first, second = (Finish(norm, scale) for norm in after)
        return FinishingLayer(attention, first, mlp_norm, mlp, second, next_norm)

    def mixer(self, name: str, plan: LayerPlan) -> Mixer:
        if plan.state is None:
            return self.attention(name, plan.attention)
        return self.delta_net(name, plan.state)

    def delta_net(self, name: str, plan: DeltaNetPlan) -> DeltaNet:
        hidden, heads, width = self.spec.hidden_size, plan.num_heads, plan.value_width
        rule = DeltaRule(
            plan,
            self.tensor(f"{name}.convolution.weight", plan.channels, 1, plan.reach)[:, 0],
            self.tensor(f"{name}.log_slopes.weight", heads),
            self.tensor(f"{name}.shifts.bias", heads),
        )
        parts = DeltaNetParts(
            self.linear(f"{name}.qkvz", plan.channels + width, hidden, bias=False),
            self.linear(f"{name}.rates", 2 * heads, hidden, bias=False),
            self.norm(f"{name}.head_norm", plan.norm, plan.value_dim),
            self.linear(f"{name}.o", hidden, width, bias=False),
        )
        return DeltaNet(self.shape, rule, parts)

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
        norms = (self._layer_norm(index, f"{one}_norm") for one in ("cross", "mlp"))
        return HearingLayer(attention, next(norms), cross, next(norms), mlp, next_norm)

    def attention(self, name: str, plan: AttentionPlan) -> Attention | LatentAttention:
        if plan.latent is not None:
            return self.latent_attention(name, plan, plan.latent)
        hidden, width = self.spec.hidden_size, plan.head_dim
        num_all = plan.num_heads + 2 * plan.num_kv_heads
        attended, bias = plan.num_heads * width, plan.qkv_bias
        norms = adapted = None
        if plan.head_norm is not None:
            names, eps = [f"{name}.{x}_norm" for x in "qk"], plan.head_norm.eps
            q, k = (self.tensor(f"{one}.weight", width) for one in names)
            norms = HeadNorms(q, k, eps)
            if self.adapters is not None:
                plain = [RMSNorm(self.kernels, one, eps) for one in (q, k)]
                adapted = self.adapters.around_heads(names, plain, self._shape_of(plan))
        return Attention(
            self._shape_of(plan),
            self.linear(f"{name}.qkv", num_all * width, hidden, bias=bias),
            self.linear(f"{name}.o", hidden, attended, bias=plan.o_bias),
            window=plan.window,
            rope=self.spec.rotations.index(plan.rotation),
            tp=self.tp,
            norms=norms,
            heads=self._heads(name, plan),
            growth=plan.query_growth,
            sinks=self.tensor(f"{name}.sinks.weight", plan.num_heads) if plan.sinks else None,
            gate=self.linear(f"{name}.gate", attended, hidden, bias=bias)
            if plan.output_gate
            else None,
            adapted=adapted,
        )

    def _shape_of(self, plan: AttentionPlan) -> HeadShape:
        model = self.shape
        return HeadShape.of(plan, model.block_size, model.dtype, fp8_kv=model.fp8_kv)

    def latent_attention(
        self, name: str, plan: AttentionPlan, latent: LatentPlan
    ) -> LatentAttention:
        hidden, heads = self.spec.hidden_size, plan.num_heads
        pairs = self.tensor(f"{name}.kv_b.weight", heads * latent.pair_dims, latent.kv_rank)
        by_head = pairs.view(heads, latent.pair_dims, latent.kv_rank)
        keys, values = by_head[:, : latent.plain_dims], by_head[:, latent.plain_dims :]
        to_rows, to_values = (
            HeadProducts(self.kernels, [Linear(self.kernels, one.contiguous()) for one in weights])
            for weights in (keys.transpose(1, 2), values)
        )
        self.places[f"{name}.kv_b.weight"] = (LatentPairs(latent, to_rows, to_values),)
        rows = latent.kv_rank + latent.rope_dims
        parts = LatentParts(
            self._latent_queries(name, plan, latent),
            self.linear(f"{name}.kv_a", rows, hidden, bias=plan.qkv_bias),
            self.row_norm(f"{name}.kv_a_norm", latent.norm, latent.kv_rank),
            to_rows,
            to_values,
            self.linear(f"{name}.o", hidden, heads * latent.value_dims, bias=plan.o_bias),
        )
        rope = self.spec.rotations.index(plan.rotation)
        shape = self._shape_of(plan)
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

    def _heads(self, name: str, plan: AttentionPlan) -> RowOp:
        """What is applied to q and k before the kernel that rotates them."""
        if plan.qk_norm is None or plan.head_norm is not None:
            return unchanged
        counts = (plan.num_heads, plan.num_kv_heads) if plan.qk_norm_over == "width" else (1, 1)
        sizes = tuple(count * plan.head_dim for count in counts)
        if plan.whole is not None:
            if plan.qk_norm.kind != "rms":
                raise UnsupportedModel(f"{name}: a LayerNorm over heads that ranks divide.")
            pairs = zip("qk", sizes, strict=True)
            q, k = (self.tensor(f"{name}.{x}_norm.weight", size) for x, size in pairs)
            norms = HeadNorms(q, k, plan.qk_norm.eps)
            return DividedWidths(self._shape_of(plan), plan.whole, norms, self.tp)
        q_norm, k_norm = (
            self.norm(f"{name}.{x}_norm", plan.qk_norm, size)
            for x, size in zip("qk", sizes, strict=True)
        )
        over = NormedWidths if plan.qk_norm_over == "width" else NormedHeads
        return over(self._shape_of(plan), q_norm, k_norm)

    def mlp(self, name: str, plan: MlpPlan | ExpertsPlan) -> Mlp:
        if isinstance(plan, ExpertsPlan):
            return self.experts(name, plan)
        return self.feed_forward(name, plan)

    def experts(self, name: str, plan: ExpertsPlan) -> Experts:
        hidden, kernels, one = self.spec.hidden_size, self.kernels, plan.expert
        if not one.gated:
            raise UnsupportedModel("experts without a gate.")
        pairs = [
            (
                self._linear(f"{name}.experts.{i}.gate_up", 2 * one.width, hidden, bias=one.bias),
                self._linear(f"{name}.experts.{i}.down", hidden, one.width, bias=one.bias),
            )
            for i in range(plan.count)
        ]
        ups, downs = ([pair[side].multiply for pair in pairs] for side in (0, 1))
        shared = None
        if plan.shared is not None:
            is_gated = plan.shared_gate
            gate = self.linear(f"{name}.shared_gate", 1, hidden, bias=False) if is_gated else None
            shared = SharedExpert(self.feed_forward(f"{name}.shared", plan.shared), gate)
        op = kernels.make_experts(kernels.gate(one.activation), ups, downs)
        if self.adapters is not None:
            op = self.adapters.experts(f"{name}.experts", op, pairs)
        return Experts(self._router(name, plan), op, pairs[0], shared, self.tp)

    def _router(self, name: str, plan: ExpertsPlan) -> Router:
        """The kernels make its product, so that the choice does not depend on the batch."""
        hidden, biased = self.spec.hidden_size, plan.router_bias
        product = self.linear(f"{name}.router", plan.count, hidden, bias=biased)
        choice = self.tensor(f"{name}.choice.bias", plan.count) if plan.choice_bias else None
        return Router(product, self.kernels.make_choice(plan, choice))

    def feed_forward(self, name: str, plan: MlpPlan) -> GatedMLP | PlainMLP:
        hidden, inner, bias, kernels = self.spec.hidden_size, plan.width, plan.bias, self.kernels
        if plan.activation == "clamped_silu" and not plan.gated:
            raise UnsupportedModel(f"{name}: {plan.activation} without a gate.")
        first = "gate_up" if plan.gated else "up"
        up = self.linear(f"{name}.{first}", (1 + plan.gated) * inner, hidden, bias=bias)
        down = self.linear(f"{name}.down", hidden, inner, bias=bias)
        if plan.gated:
            gate = Gate(plan.activation, kernels.gate(plan.activation))
            return GatedMLP(self._opened(f"{name}.gate_up", gate, up), up, down, self.tp)
        return PlainMLP(kernels.activate(plan.activation), up, down, self.tp)
