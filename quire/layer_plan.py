"""LayerPlan: what one layer of a decoder computes, part by part. Knows nothing of torch.

Every field is a fact about the architecture; only quire/families has names of families.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from quire.layer_parts.norm import NormPlan as NormPlan
from quire.layer_parts.rope import Rope as Rope
from quire.layer_parts.state import StatePlan

# A rope (None: nothing rotates), and how many numbers of a head have an angle, which may be 0.
Rotation = tuple[Rope | None, int]


@dataclass(frozen=True, slots=True)
class WholeHeads:
    """The heads of the whole model, where a plan is one rank's share of it. `counts_kv`: this rank
    is the first of those that hold its KV heads, so it counts them in sums over ranks."""

    num_heads: int
    num_kv_heads: int
    counts_kv: bool


@dataclass(frozen=True, slots=True)
class QueryGrowth:
    """Queries are multiplied with 1 + beta * ln(1 + floor(position / original_max_len)). Positions
    count from `first`."""

    beta: float
    original_max_len: int
    first: int = 0


@dataclass(frozen=True, slots=True)
class LatentPlan:
    """Keys and values of all heads are computed from one row per token, and only that row is kept:
    `kv_rank` numbers, after a norm, then `rope_dims` numbers that are rotated.

    A head's key is a product of the first part (`plain_dims` numbers) followed by the second part;
    its value is another product of the first part (`value_dims` numbers). Queries have both parts
    of a key. They come from `q_rank` numbers after a norm, or directly if it is None. `norm` is for
    both."""

    kv_rank: int
    plain_dims: int
    rope_dims: int
    value_dims: int
    norm: NormPlan
    q_rank: int | None = None

    @property
    def query_dims(self) -> int:
        return self.plain_dims + self.rope_dims

    @property
    def pair_dims(self) -> int:
        """Numbers that a head computes from a token's row: first part of its key, and value."""
        return self.plain_dims + self.value_dims

    def weights(self, num_heads: int, hidden: int) -> int:
        """Weights in all of its products."""
        queries, inner = num_heads * self.query_dims, self.q_rank
        down = hidden * queries if inner is None else inner * (hidden + queries)
        kept = hidden * (self.kv_rank + self.rope_dims) + num_heads * self.pair_dims * self.kv_rank
        return down + kept + num_heads * self.value_dims * hidden


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Self-attention: products to heads, positions, what a query sees, and a product back.

    With `latent`, heads are given as they meet the row that is kept: one KV head of kv_rank +
    rope_dims numbers, whose first kv_rank are its value, too; `qkv_bias` then belongs to the
    products of hidden states that do not make queries.

    `kv_from`: a layer before this one, whose keys and values this one reads; it makes queries only.
    `values_are_keys`: values are the keys before their norm and rotation. `value_norm`: each head's
    values are divided by the root of their mean square, with this eps. `clip`: numbers of queries,
    of keys, behind their norms, and of values are limited to -clip .. clip. `inner_norm`: of what
    was attended, all heads as one row, before the product back."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float  # multiplied with every product of a query and a key
    rope: Rope | None  # None: nothing is rotated
    window: int | None = None  # how many tokens back a query sees, itself included; None = all
    chunk: int | None = None  # a text is cut into chunks of so many; a query sees its own; not both
    softcap: float | None = None  # scores become softcap * tanh(score / softcap)
    qkv_bias: bool = False
    k_bias: bool = True  # False: keys have no bias even with qkv_bias
    o_bias: bool = False
    # Norms of q and k before they are rotated: of each head, or of all heads as one row.
    qk_norm: NormPlan | None = None
    qk_norm_over: Literal["head", "width"] = "head"
    qk_norm_behind: bool = False  # True: of each head, after they are rotated
    whole: WholeHeads | None = None  # None: these are all heads
    sinks: bool = False  # every head has one more key: a learned score, with value 0
    # The attention's result is multiplied with sigmoids of a product, before the product back.
    output_gate: bool = False
    query_growth: QueryGrowth | None = None  # None: queries do not depend on the position
    latent: LatentPlan | None = None  # None: a key and a value are kept for each KV head
    kv_from: int | None = None
    values_are_keys: bool = False
    value_norm: float | None = None
    clip: float | None = None
    inner_norm: NormPlan | None = None

    @property
    def reach(self) -> int | None:
        """How many tokens back a query sees at most, itself included; None = all."""
        return self.window if self.chunk is None else self.chunk

    @property
    def num_parts(self) -> int:
        """What its first product makes: queries, keys and values, or only the first of these."""
        return 1 if self.kv_from is not None else 2 if self.values_are_keys else 3

    @property
    def heads(self) -> tuple[object, ...]:
        """What kernels are made for: layers that agree in this share them."""
        sizes = self.num_heads, self.num_kv_heads, self.head_dim, self.latent
        return (*sizes, self.scale, self.softcap, self.sinks)

    @property
    def kv_tensors(self) -> int:
        """Tensors kept for each KV head: its keys and its values, or one for both."""
        return 2 if self.latent is None else 1

    @property
    def kv_numbers(self) -> int:
        """Numbers of each of these tensors for one token."""
        return self.num_kv_heads * self.head_dim

    @property
    def angle_dims(self) -> int:
        """Numbers of a head that are rotated in pairs by an angle, which may be 0 everywhere."""
        return self.head_dim if self.latent is None else self.latent.rope_dims

    @property
    def rotation(self) -> Rotation:
        return self.rope, self.angle_dims

    @property
    def product_width(self) -> int:
        """The input width of the last of its products."""
        return self.num_heads * (self.head_dim if self.latent is None else self.latent.value_dims)

    def weights(self, hidden: int) -> int:
        """Weights in its products, for hidden states of this size."""
        if self.latent is not None:
            return self.latent.weights(self.num_heads, hidden)
        heads = (3 if self.output_gate else 2) * self.num_heads
        return (heads + (self.num_parts - 1) * self.num_kv_heads) * self.head_dim * hidden

    @property
    def head_norm(self) -> NormPlan | None:
        """The RMSNorm of single heads of q and k; kernels that rotate heads compute it, too."""
        norm = self.qk_norm
        known = norm is not None and norm.kind == "rms" and self.qk_norm_over == "head"
        return norm if known else None


Activation = Literal["silu", "gelu_tanh", "gelu", "relu", "relu2", "clamped_silu", "xielu"]
CLAMP, CLAMPED_SLOPE = 7.0, 1.702  # of "clamped_silu"


@dataclass(frozen=True, slots=True)
class SparsePlan:
    """Gates below a cutoff become 0, and it is taken from the others: the mean of a token's gates
    plus `deviations` times their standard deviation. `width`: of the whole model's feed-forward,
    of which a rank has a part."""

    deviations: float
    width: int


@dataclass(frozen=True, slots=True)
class MlpPlan:
    """A feed-forward: down(activation(gate(x)) * up(x)), or down(activation(up(x))) without a gate.
    `gate_scale` is multiplied with gate(x). `sparse`: applied to gate(x). `inner_norm`: of what
    down reads.
    "clamped_silu" is for gated ones: with g = min(gate, CLAMP) and u = up within -CLAMP .. CLAMP it
    is down(g * sigmoid(CLAMPED_SLOPE * g) * (u + 1)). "xielu" is for those without gates: a curve
    made of four learned numbers (layers/mlp.py)."""

    width: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
    gate_scale: float = 1.0
    sparse: SparsePlan | None = None
    inner_norm: NormPlan | None = None

    @property
    def product_width(self) -> int:
        """The input width of the last of its products."""
        return self.width


@dataclass(frozen=True, slots=True)
class ExpertsPlan:
    """A mixture of experts: a router scores them, each token goes to the best `per_token`, and the
    results are added up, each multiplied with its score and `factor`, and with a learned number of
    its expert if it `has_factors`.

    `renormalise`: the scores of the chosen experts are scaled to add up to 1. `choice_bias`: a
    number per expert is added to its score for the choice, and only there. `groups`: experts are
    split into so many groups, and a token chooses from the best `groups_taken`; a group's score is
    that of its best expert, or the sum of its best two. `shared`: one more expert for every token;
    its result is multiplied with `shared_factor`, and with `shared_gate` with the sigmoid of a
    product of its own. `router_norm`: of what the router reads, which is then divided by the root
    of the hidden size. `apart`: experts are chosen one by one, and each one's score is its part of
    a softmax over those left that are close to it: whose product s is no more than `apart` *
    max(|s|, best) below the best one's.
    `scores_inputs`: scores are multiplied with what experts read, not with what they make."""

    count: int
    per_token: int
    expert: MlpPlan
    renormalise: bool = False
    shared: MlpPlan | None = None
    shared_gate: bool = True
    shared_factor: float = 1.0
    score: Literal["softmax", "sigmoid"] = "softmax"
    router_bias: bool = False
    choice_bias: bool = False
    groups: int = 1
    groups_taken: int = 1
    group_score: Literal["best", "best_two"] = "best_two"
    factor: float = 1.0
    has_factors: bool = False
    router_norm: NormPlan | None = None
    apart: float | None = None
    scores_inputs: bool = False

    @property
    def product_width(self) -> int:
        """The input width of the last product of one expert."""
        return self.expert.width


@dataclass(frozen=True, slots=True)
class CrossPlan:
    """Attention of every token to all `length` rows that an encoder made of a sound, with heads
    like those of the layer's self-attention. Keys and values are computed once per sound."""

    length: int


@dataclass(frozen=True, slots=True)
class EmbeddingBranchPlan:
    """A branch behind the feed-forward, which reads the stream without a norm, and the embedding
    that the model makes of each token for this layer (spec.LayerEmbeddingsPlan):
    out(activation(gate(stream)) * embedding), normed, is added to the stream."""

    width: int
    activation: Activation


# Where the norms of a layer stand: before both branches; after them, on what is added to the
# stream; before and after; or branches side by side, with one norm before both or one for each.
NormPlaces = Literal["before", "after", "both", "parallel", "parallel_two"]


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """Attention and feed-forward, each added to the stream, with norms around them.

    `state`: the layer keeps a state instead of attending; `attention` is then the plan of the
    other layers of the model, which do attend. If none does, its heads only say how much room a
    token has in a block. `beside`: experts that read the same stream as the
    feed-forward, through a norm of their own; both results are normed and added up before the norm
    behind the feed-forward."""

    attention: AttentionPlan
    mlp: MlpPlan | ExpertsPlan | None  # None: nothing follows attention or the state
    norm: NormPlan
    norms: NormPlaces = "before"
    branch_scale: float = 1.0  # multiplied with what each branch adds to the stream
    mlp_scale: float | None = None  # that of the feed-forward, if it is another
    state: StatePlan | None = None
    cross: CrossPlan | None = None  # a branch between these two, with a norm before it
    beside: ExpertsPlan | None = None
    embedding: EmbeddingBranchPlan | None = None
    is_scaled: bool = False  # the stream is multiplied with a learned number at the end
    joins_next: bool = False  # the next layer reads the norm that this one's only branch reads

    @property
    def is_long(self) -> bool:
        """Whether there is more than attention and a feed-forward."""
        return self.beside is not None or self.embedding is not None or self.is_scaled

    @property
    def mixed_width(self) -> int:
        """The input width of the last product of its attention, or of its state."""
        return self.attention.product_width if self.state is None else self.state.value_width


def mlps_of(layer: LayerPlan) -> tuple[MlpPlan, ...]:
    """The feed-forward of a layer, and what each token takes of its experts."""
    plans = (plan for plan in (layer.mlp, layer.beside) if plan is not None)
    return tuple(plan if isinstance(plan, MlpPlan) else _taken(plan) for plan in plans)


def _taken(experts: ExpertsPlan) -> MlpPlan:
    shared = 0 if experts.shared is None else experts.shared.width
    width = experts.per_token * experts.expert.width + shared
    return replace(experts.expert, width=width)


def dense_plans(layers: tuple[LayerPlan, ...]) -> tuple[MlpPlan, ...]:
    """The different feed-forwards of all tokens among these layers."""
    plans = (plan for layer in layers for plan in (layer.mlp, layer.beside))
    dense = (plan.shared if isinstance(plan, ExpertsPlan) else plan for plan in plans)
    return tuple(dict.fromkeys(plan for plan in dense if plan is not None))


def expert_plans(layers: tuple[LayerPlan, ...]) -> tuple[ExpertsPlan, ...]:
    """The different mixtures of experts among these layers."""
    plans = (plan for layer in layers for plan in (layer.mlp, layer.beside))
    return tuple(dict.fromkeys(plan for plan in plans if isinstance(plan, ExpertsPlan)))
