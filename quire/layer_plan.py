"""LayerPlan: what one layer of a decoder computes, part by part. Knows nothing of torch.

Every field is a fact about the architecture; the names of families stand in quire/families alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class LinearRope:
    """Every rotary frequency divided by one factor."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Rope:
    """Fast frequencies kept, slow ones divided by `factor`, those between blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_len: int


@dataclass(frozen=True, slots=True)
class YarnRope:
    """The same idea with a ramp over the pairs, and cos and sin times `attention_factor`.

    A pair that turns `beta_fast` times or more within the original length is kept, one that
    turns `beta_slow` times or less is divided; `truncate` puts the ends of the ramp on pairs."""

    factor: float
    original_max_len: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class FactorRope:
    """Frequency i divided by factor i (head_dim / 2 of them), cos and sin times a factor.

    Some GGUF files carry their scaling this way, and longrope its short one: `long` are the
    factors of texts up to `long_len`."""

    factors: tuple[float, ...]
    attention_factor: float = 1.0
    long: tuple[float, ...] = ()
    long_len: int = 0


RopeScaling = LinearRope | Llama3Rope | YarnRope | FactorRope


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions: the first `dims` numbers of a head are turned, the others are not.

    Number i and number i + dims / 2 are a pair; in the files of a model whose pairs are
    `interleaved`, numbers 2 i and 2 i + 1 are, and loading puts them apart. `axes`: which of three
    coordinates turns pair i, where positions have three; none where they have one."""

    theta: float
    dims: int
    scaling: RopeScaling | None = None
    interleaved: bool = False
    axes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class NormPlan:
    """A norm over the last dimension: by the root of the mean square (rms), or by mean and
    variance (layer).

    `one_plus`: files of Hugging Face hold w where the factor is 1 + w; loading adds the 1.
    `rounds_last`: the weight is applied before the result is rounded to the activations' type,
    not after. Weights of such norms stay in float32 (`is_wide`), because 1 + w in 16 bits would
    have lost most of w."""

    eps: float
    kind: Literal["rms", "layer"] = "rms"
    bias: bool = False
    one_plus: bool = False
    rounds_last: bool = False

    @property
    def is_wide(self) -> bool:
        """Whether its weights are kept in float32 whatever the activations are."""
        return self.rounds_last or self.one_plus or self.kind == "layer"


@dataclass(frozen=True, slots=True)
class WholeHeads:
    """The heads of the whole model, where a plan is one rank's share of it. `counts_kv`: whether
    this rank is the first of those that have its KV heads."""

    num_heads: int
    num_kv_heads: int
    counts_kv: bool


@dataclass(frozen=True, slots=True)
class QueryGrowth:
    """Queries times 1 + beta * ln(1 + floor(position / original_max_len))."""

    beta: float
    original_max_len: int


@dataclass(frozen=True, slots=True)
class LatentPlan:
    """Keys and values of all heads are made of one row a token, which is kept in their place:
    `kv_rank` numbers, normed, and `rope_dims` that are turned.

    A head's key is a product of the former, `plain_dims` long, with the latter behind it; its value
    is another product, `value_dims` long. Queries have the key's two parts, and are made over
    `q_rank` numbers, normed, unless that is None. `norm` is of both."""

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
        """Of what one head makes of a token's row: the first part of its key, and its value."""
        return self.plain_dims + self.value_dims

    def weights(self, num_heads: int, hidden: int) -> int:
        """Numbers in all of its products."""
        queries, inner = num_heads * self.query_dims, self.q_rank
        down = hidden * queries if inner is None else inner * (hidden + queries)
        kept = hidden * (self.kv_rank + self.rope_dims) + num_heads * self.pair_dims * self.kv_rank
        return down + kept + num_heads * self.value_dims * hidden


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Self-attention: products to heads, positions, what a query sees, and a product back.

    Where keys and values are `latent`, its heads are as that row meets them: one KV head of
    kv_rank + rope_dims numbers, the first kv_rank of which are its value, too; `qkv_bias` is of the
    products that take hidden states and do not make queries."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float  # of every product of a query and a key
    rope: Rope | None  # None: nothing is turned
    window: int | None = None  # how many tokens back a query sees, itself included; None = all
    softcap: float | None = None  # scores become softcap * tanh(score / softcap)
    qkv_bias: bool = False
    k_bias: bool = True  # False: with qkv_bias, keys have none all the same
    o_bias: bool = False
    # Norms of q and k before they are turned: of each head, or of all heads as one row.
    qk_norm: NormPlan | None = None
    qk_norm_over: Literal["head", "width"] = "head"
    whole: WholeHeads | None = None  # None: these are all heads
    sinks: bool = False  # every head has one key more: a score that was learned, of value 0
    # What was attended is multiplied, before the product back, with sigmoids of a product.
    output_gate: bool = False
    query_growth: QueryGrowth | None = None  # None: queries are alike at every position
    latent: LatentPlan | None = None  # None: keys and values are kept, one of each for a KV head

    @property
    def kv_tensors(self) -> int:
        """How many numbers are kept for each of a KV head: a key's and a value's, or one."""
        return 2 if self.latent is None else 1

    @property
    def angle_dims(self) -> int:
        """Numbers of a head that stand in pairs with an angle, which may be 0 at every position."""
        return self.head_dim if self.latent is None else self.latent.rope_dims

    @property
    def product_width(self) -> int:
        """What the last of its products takes."""
        return self.num_heads * (self.head_dim if self.latent is None else self.latent.value_dims)

    def weights(self, hidden: int) -> int:
        """Numbers in its products with hidden states of this size."""
        if self.latent is not None:
            return self.latent.weights(self.num_heads, hidden)
        heads = (3 if self.output_gate else 2) * self.num_heads + 2 * self.num_kv_heads
        return heads * self.head_dim * hidden

    @property
    def head_norm(self) -> NormPlan | None:
        """The RMSNorm of single heads of q and k, which kernels that turn heads compute, too."""
        norm = self.qk_norm
        known = norm is not None and norm.kind == "rms" and self.qk_norm_over == "head"
        return norm if known else None


@dataclass(frozen=True, slots=True)
class DeltaNetPlan:
    """Gated DeltaNet, in the place of attention: what came before a token is kept as a state of
    one size, however long the text is.

    q, k and v go through a convolution over the last `reach` tokens and silu. Every head of v has a
    matrix [key_dim, value_dim], which each token decays and corrects towards its v at its k, and
    then reads at its q (backends/delta_rule.py). What was read is normed head by head by `norm`,
    and gated by silu. Heads of v share heads of q and k: so many in a row, or, `in_turn`, one of
    each before the first comes again."""

    num_heads: int
    num_key_heads: int
    key_dim: int
    value_dim: int
    reach: int
    norm: NormPlan
    in_turn: bool = False

    @property
    def value_width(self) -> int:
        """Numbers of v, of all heads."""
        return self.num_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Numbers of q, k and v."""
        return 2 * self.num_key_heads * self.key_dim + self.value_width

    @property
    def matrix_numbers(self) -> int:
        return self.num_heads * self.key_dim * self.value_dim

    @property
    def state_numbers(self) -> int:
        """What a row keeps: the matrices, and what the convolution still sees."""
        return self.matrix_numbers + (self.reach - 1) * self.channels


Activation = Literal["silu", "gelu_tanh", "gelu", "relu", "relu2", "clamped_silu"]
CLAMP, CLAMPED_SLOPE = 7.0, 1.702  # of "clamped_silu"


@dataclass(frozen=True, slots=True)
class MlpPlan:
    """A feed-forward: down(activation(gate(x)) * up(x)), or down(activation(up(x))) if it has no
    gate. With "clamped_silu", gates alone: g = min(gate, CLAMP), u = up in -CLAMP .. CLAMP, and
    down(g * sigmoid(CLAMPED_SLOPE * g) * (u + 1))."""

    width: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False

    @property
    def product_width(self) -> int:
        """What the last of its products takes."""
        return self.width


@dataclass(frozen=True, slots=True)
class ExpertsPlan:
    """A mixture of experts: a router scores them, each token takes the best `per_token`, and what
    they make is added up, each times its score and `factor`.

    `renormalise`: the scores of those taken are made to add up to 1. `choice_bias`: a number for
    each expert is added to its score where the best are chosen, and only there. `groups`: experts
    stand in so many groups, and a token takes them from the best `groups_taken`, where a group
    counts as much as the best expert of it, or the best two. `shared`: one more expert, which every
    token takes; `shared_gate`: times the sigmoid of a product of its own."""

    count: int
    per_token: int
    expert: MlpPlan
    renormalise: bool = False
    shared: MlpPlan | None = None
    shared_gate: bool = True
    score: Literal["softmax", "sigmoid"] = "softmax"
    router_bias: bool = False
    choice_bias: bool = False
    groups: int = 1
    groups_taken: int = 1
    group_score: Literal["best", "best_two"] = "best_two"
    factor: float = 1.0

    @property
    def product_width(self) -> int:
        """What the last product of one expert takes."""
        return self.expert.width


@dataclass(frozen=True, slots=True)
class CrossPlan:
    """Attention of every token to all `length` rows that an encoder made of a sound, by heads like
    those of the layer's self-attention. Keys and values are made once, with the encoder's rows."""

    length: int


# Where the norms of a layer stand: before both branches; after them, on what is added to the
# stream; before and after; or branches side by side, with one norm before both or one for each.
NormPlaces = Literal["before", "after", "both", "parallel", "parallel_two"]


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """Attention and feed-forward, each added to the stream, with norms around them.

    `state`: the layer keeps a state, and has that in the place of attention; `attention` is then
    the plan of the layers beside it that attend."""

    attention: AttentionPlan
    mlp: MlpPlan | ExpertsPlan
    norm: NormPlan
    norms: NormPlaces = "before"
    branch_scale: float = 1.0  # of what either branch adds to the stream
    state: DeltaNetPlan | None = None
    cross: CrossPlan | None = None  # a branch between the two, with a norm before it

    @property
    def mixed_width(self) -> int:
        """What the last product of its attention, or of what it has in that place, takes."""
        return self.attention.product_width if self.state is None else self.state.value_width


def mlp_of(layer: LayerPlan) -> MlpPlan:
    """The feed-forward of a layer; of one with experts, the part that each token takes."""
    if isinstance(layer.mlp, MlpPlan):
        return layer.mlp
    expert, shared = layer.mlp.expert, layer.mlp.shared
    width = layer.mlp.per_token * expert.width + (0 if shared is None else shared.width)
    return replace(expert, width=width)


def expert_plans(layers: tuple[LayerPlan, ...]) -> tuple[ExpertsPlan, ...]:
    """The mixtures among feed-forwards, each kind once."""
    return tuple(dict.fromkeys(one.mlp for one in layers if isinstance(one.mlp, ExpertsPlan)))
