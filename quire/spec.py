"""ModelSpec: a Hugging Face or GGUF config reduced to what quire uses. Knows nothing of torch.

Every field is a fact about the architecture, as the family's file in quire/families reads it.
`layers` says what each layer computes, which is how a model is built; layers may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import lcm
from typing import Any, ClassVar, Literal

from quire.layer_parts.embeddings import LayerEmbeddingsPlan as LayerEmbeddingsPlan
from quire.layer_parts.embeddings import Waves as Waves
from quire.layer_parts.state import StatePlan
from quire.layer_parts.streams import StreamsPlan
from quire.layer_plan import (
    AttentionPlan,
    LayerPlan,
    MlpPlan,
    NormPlan,
    Rope,
    Rotation,
    mlps_of,
)

Layers = Literal["all", "windowed"]  # windowed: those with a window


@dataclass(frozen=True, slots=True)
class LearnedPositions:
    """A table whose row `offset` + p is added to the embedding of the token at position p."""

    count: int  # rows of the table
    offset: int = 0


@dataclass(frozen=True, slots=True)
class LogitsPlan:
    """Applied to the head's products in this order: a bias, a factor (`scale`), a softcap."""

    scale: float = 1.0
    softcap: float | None = None
    bias: bool = False


@dataclass(frozen=True, slots=True)
class ModelSpec:
    family: str  # a name of families/registry.py: decides the names of weights, nothing else
    vocab_size: int
    hidden_size: int
    max_model_len: int
    layers: tuple[LayerPlan, ...]
    norm: NormPlan  # after the last layer
    tied_embeddings: bool = False
    embedding_scale: float = 1.0
    embed_norm: NormPlan | None = None  # of every token's embedding
    learned_positions: LearnedPositions | None = None
    waves: Waves | None = None
    layer_embeddings: LayerEmbeddingsPlan | None = None
    streams: StreamsPlan | None = None  # None: there is one
    # The layers in which tokens of an image see each other, if any of the model's do.
    two_way: Layers = "all"
    logits: LogitsPlan = LogitsPlan()
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    dtype: str = "float32"  # what the weights were stored in

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """One entry per layer: how many tokens back a query sees (itself included), None = all."""
        return tuple(layer.attention.window for layer in self.layers)

    @property
    def states(self) -> tuple[StatePlan | None, ...]:
        """One entry per layer: the plan of its state; None where it attends."""
        return tuple(layer.state for layer in self.layers)

    @property
    def keeps_states(self) -> bool:
        """Whether any layer keeps a state."""
        return any(state is not None for state in self.states)

    @property
    def rotations(self) -> tuple[Rotation, ...]:
        """The different rotary positions that layers have, in the order of their first layers."""
        return tuple(dict.fromkeys(one.rotation for one in self.attentions))

    @property
    def rope(self) -> Rope:
        """The first rope that rotates anything: the only one in most models."""
        ropes = (rope for rope, _ in self.rotations if rope is not None)
        return next(ropes, Rope(10_000.0, 0))

    @property
    def attentions(self) -> tuple[AttentionPlan, ...]:
        """The different plans of attention, in the order of their first layers, if any attend."""
        attending = (layer.attention for layer in self.layers if layer.state is None)
        return tuple(dict.fromkeys(attending))

    # The heads of the first layer, which name the model in reports; of a plain decoder, of all.
    @property
    def num_heads(self) -> int:
        return self.layers[0].attention.num_heads

    @property
    def num_kv_heads(self) -> int:
        return self.layers[0].attention.num_kv_heads

    @property
    def head_dim(self) -> int:
        return self.layers[0].attention.head_dim

    @property
    def intermediate_size(self) -> int:
        """The width of the widest feed-forward."""
        return max((mlp.width for one in self.layers for mlp in mlps_of(one)), default=0)

    @property
    def heard_rows(self) -> int:
        """Rows of an encoder that layers attend to beside a sequence's own tokens; 0: none."""
        return max(0 if layer.cross is None else layer.cross.length for layer in self.layers)

    @property
    def norm_eps(self) -> float:
        return self.norm.eps

    @property
    def kv_sources(self) -> tuple[int | None, ...]:
        """One entry per layer: the layer whose keys and values it reads, None for its own."""
        return tuple(layer.attention.kv_from for layer in self.layers)

    @property
    def kv_heads(self) -> tuple[tuple[int, int], ...]:
        """One entry per layer: its KV heads, and the numbers of one."""
        return tuple((one.attention.num_kv_heads, one.attention.head_dim) for one in self.layers)

    @property
    def place_numbers(self) -> int:
        """Numbers of keys of a token in a place of a block: a multiple of every layer's."""
        return lcm(*(count * width for count, width in self.kv_heads))

    @property
    def kv_values_per_token(self) -> int:
        """Numbers of KV that one token adds, over all layers."""
        attending = (layer.attention for layer in self.layers if layer.state is None)
        return sum(one.kv_tensors * one.kv_numbers for one in attending if one.kv_from is None)

    @property
    def body_weights(self) -> int:
        """Weights each token is multiplied with, without the output head."""
        total = 0
        for layer in self.layers:
            total += _mixer_weights(layer, self.hidden_size)
            for mlp in mlps_of(layer):
                total += (3 if mlp.gated else 2) * mlp.width * self.hidden_size
            if layer.embedding is not None:  # its two products, and its part of the model's
                total += 3 * layer.embedding.width * self.hidden_size
        if self.streams is not None:
            total += self.num_layers * self.streams.layer_weights(self.hidden_size)
            total += self.streams.outer_weights(self.hidden_size)
        return total

    @property
    def head_weights(self) -> int:
        return self.vocab_size * self.hidden_size

    def flops(self, *, tokens: int, context: int, sampled: int) -> int:
        """Multiply-adds x 2 of a step: `tokens` computed, `context` = the sum over these
        tokens of how many positions each attends to, `sampled` rows of logits."""
        heads = (one.attention for one in self.layers if one.state is None)
        attention = 4 * sum(one.num_heads * one.head_dim for one in heads)
        # A state is read twice and written once by every token.
        states = 6 * sum(state.matrix_numbers for state in self.states if state is not None)
        drawn = 2 * self.head_weights * sampled
        return (2 * self.body_weights + states) * tokens + attention * context + drawn

    @property
    def is_plain(self) -> bool:
        """Whether it equals a `plain_decoder`, for any rotary positions."""
        first, attention = self.layers[0], self.layers[0].attention
        if not isinstance(first.mlp, MlpPlan) or attention.rope is None:
            return False
        plain = plain_decoder(
            *(self.family, self.vocab_size, self.hidden_size, first.mlp.width, self.num_layers),
            *(self.num_heads, self.num_kv_heads, self.head_dim, self.max_model_len),
            *(self.norm_eps, attention.rope.theta),
            windows=self.windows,
            qkv_bias=attention.qkv_bias,
            o_bias=attention.o_bias,
            mlp_bias=first.mlp.bias,
            qk_norm=attention.qk_norm is not None,
            tied_embeddings=self.tied_embeddings,
            eos_ids=self.eos_ids,
            bos_id=self.bos_id,
            dtype=self.dtype,
        )
        return self == plain.with_attention(lambda one: replace(one, rope=attention.rope))

    def with_attention(self, change: Callable[[AttentionPlan], AttentionPlan]) -> ModelSpec:
        """The same model with the attention of every layer changed."""
        layers = tuple(replace(one, attention=change(one.attention)) for one in self.layers)
        return replace(self, layers=layers)

    def by_heads(self) -> tuple[ModelSpec, ...]:
        """A spec for each kind of heads that attend, with only the layers that have them."""
        if not self.attentions:
            return ()
        heads: dict[tuple[object, ...], list[LayerPlan]] = {}
        for layer in self.layers:
            heads.setdefault(layer.attention.heads, []).append(layer)
        if len(heads) == 1:
            return (self,)
        return tuple(replace(self, layers=tuple(layers)) for layers in heads.values())

    def with_windows(self, *windows: int | None) -> ModelSpec:
        """The same model with these windows, one per layer."""
        pairs = zip(self.layers, windows, strict=True)
        layers = (replace(o, attention=replace(o.attention, window=w)) for o, w in pairs)
        return replace(self, layers=tuple(layers))


def is_joined(spec: ModelSpec, index: int) -> bool:
    """Whether layer `index` reads the norm of the layer before it."""
    return index > 0 and spec.layers[index - 1].joins_next


def _mixer_weights(layer: LayerPlan, hidden: int) -> int:
    """Weights in the products of a layer's attention or state."""
    return (layer.attention if layer.state is None else layer.state).weights(hidden)


def for_kernels(spec: ModelSpec) -> ModelSpec:
    """The part of a spec that kernels are compiled for: each kind of layer once, and no scaling of
    ropes."""
    bare = spec.with_attention(
        lambda one: replace(one, rope=one.rope and replace(one.rope, scaling=None))
    )
    return replace(bare, layers=tuple(dict.fromkeys(bare.layers)))


def plain_decoder(
    family: str,
    vocab_size: int,
    hidden_size: int,
    intermediate_size: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    max_model_len: int,
    norm_eps: float,
    rope_theta: float,
    *,
    windows: tuple[int | None, ...] = (),
    qkv_bias: bool = False,
    o_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    **facts: Any,
) -> ModelSpec:
    """A decoder whose layers differ only in their windows: RMSNorm before both branches, silu
    gates, whole heads rotated. `facts` are other fields of the spec."""
    norm = NormPlan(norm_eps)
    attention = AttentionPlan(
        num_heads,
        num_kv_heads,
        head_dim,
        head_dim**-0.5,
        Rope(rope_theta, head_dim),
        qkv_bias=qkv_bias,
        o_bias=o_bias,
        qk_norm=norm if qk_norm else None,
    )
    layer = LayerPlan(attention, MlpPlan(intermediate_size, bias=mlp_bias), norm)
    spec = ModelSpec(
        family, vocab_size, hidden_size, max_model_len, (layer,) * num_layers, norm, **facts
    )
    return spec.with_windows(*windows) if windows else spec


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """An encoder: every token of a text sees every other, and there is no KV cache."""

    family: str  # a name of families/encoders/registry.py
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int
    norm_eps: float
    activation: Literal["gelu", "gelu_tanh", "relu", "silu"] = "gelu"
    gated: bool = False  # activation(first half) * second half of one product
    # Where norms stand around branches; "before" and "both" have one more after the last layer.
    norms: Literal["after", "before", "both"] = "after"
    norm_kind: Literal["layer", "rms", "rms_one_plus"] = "layer"  # the last's factor is 1 + w
    embed_norm: bool = True  # of embeddings; with it the first norm before attention is left out
    norm_bias: bool = True
    attention_bias: bool = True
    mlp_bias: bool = True
    up_bias: bool = True  # False: of a feed-forward with biases only the last product has one
    num_positions: int = 0  # learned positions; 0: others (rotary, ALiBi, distances), or none
    alibi: bool = False  # scores fall with the distance of two tokens, by head
    num_distances: int = 0  # learned scores of distances by head, same in all layers; 0: none
    first_position: int = 0  # the row of the learned table for a text's first token
    num_types: int = 0  # learned token types (first text, second text); 0: none
    thetas: tuple[float, ...] = ()  # of each layer's rotary positions; empty: not rotary
    windows: tuple[int | None, ...] = ()  # how far a token sees to each side; None: all
    qk_norm: bool = False  # of each head of q and k
    scale: float | None = None  # of scores; None: 1 / sqrt(head_dim)
    embedding_scale: float = 1.0
    embedding_width: int = 0  # of embeddings and their norm, before a product; 0: the hidden size
    num_experts: int = 0  # feed-forwards of a layer that `has_experts`
    num_chosen: int = 0  # how many of them compute each token
    expert_period: int = 0
    eos_ids: tuple[int, ...] = ()
    dtype: str = "float32"
    keeps_states: ClassVar[bool] = False
    head_weights: ClassVar[int] = 0

    def has_experts(self, layer: int) -> bool:
        return self.expert_period > 0 and layer % self.expert_period == 1

    @property
    def body_weights(self) -> int:
        heads = 2 * (self.num_heads + self.num_kv_heads) * self.head_dim
        inner = (3 if self.gated else 2) * self.intermediate_size
        mixtures = sum(map(self.has_experts, range(self.num_layers)))
        inner *= self.num_layers + mixtures * (self.num_chosen - 1)
        return (self.num_layers * heads + inner + self.embedding_width) * self.hidden_size

    def flops(self, *, tokens: int, context: int, sampled: int) -> int:
        """Multiply-adds x 2 of a step, as in ModelSpec; but each token sees its whole text."""
        seen = self.num_layers * self.num_heads * self.head_dim * context
        return 2 * self.body_weights * tokens + 8 * seen


AnySpec = ModelSpec | EncoderSpec
