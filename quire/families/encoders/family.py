"""What an encoder's file says of it: names of weights, and how its config is read. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from quire.errors import CorruptModel, UnsupportedModel
from quire.families.fields import Fields
from quire.families.reading import read_dtype
from quire.families.rope_config import read_rope
from quire.spec import EncoderSpec

Activation = Literal["identity", "tanh", "relu", "gelu", "gelu_tanh", "silu", "sigmoid"]
# Names that configs have for them; the part behind the last dot where it is a class of torch.
ACTIVATIONS: Mapping[str, Activation] = {
    "identity": "identity",
    "linear": "identity",
    "tanh": "tanh",
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
    "sigmoid": "sigmoid",
}


@dataclass(frozen=True, slots=True)
class Dense:
    """A product of a head, by the name of its stored tensors without `.weight` and `.bias`, and
    the activation after it."""

    name: str
    activation: Activation = "identity"


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """A norm of a head, by the name of its stored tensors."""

    name: str
    eps: float


HeadPart = Dense | LayerNorm


# What stands between the pooled state of a text, or with `per_token` each state, and its labels.
Classifier = Callable[[Fields, bool], tuple[HeadPart, ...]]


def pooled_classifier(*parts: HeadPart) -> Classifier:
    """These parts behind the pooled state; behind each state one product alone."""

    def classifier(fields: Fields, per_token: bool) -> tuple[HeadPart, ...]:
        return (Dense("classifier"),) if per_token else parts

    return classifier


@dataclass(frozen=True, slots=True)
class EncoderNames:
    """What files call the tensors, without `.weight`; those of a layer behind `layer`."""

    words: str
    embed_norm: str
    layer: str  # "encoder.layer.{}."
    qkv: tuple[str, ...]
    o: str
    attn_norm: str
    up: tuple[str, ...]  # of a gated one both, what the activation is of first
    down: str
    mlp_norm: str
    positions: str = ""
    types: str = ""
    distances: str = ""
    norm: str = ""
    router: str = ""
    experts: str = ""  # of a layer: what comes before `mlp.w1`, `mlp.w2` and `bias`
    # Whether a stored tensor of both halves of a gated feed-forward has the gate behind.
    gate_behind: bool = False
    # Of a layer, where it has them.
    attn_post_norm: str = ""
    mlp_post_norm: str = ""
    q_norm: str = ""
    k_norm: str = ""


@dataclass(frozen=True, slots=True)
class EncoderFamily:
    """One family. `stem` begins its architectures: BertModel, BertForSequenceClassification ..."""

    name: str
    stems: tuple[str, ...]
    model_types: tuple[str, ...]
    prefix: str  # before every name, where the model has a head
    read: Callable[[Fields], EncoderSpec]
    names: EncoderNames
    classifier: Classifier
    # Values of keys beyond which it would be another model; null and absent are fine.
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    # What a config must say to be of this family: others of its name are decoders.
    needs: Mapping[str, Any] = field(default_factory=dict)
    # Other keys that change nothing, and why.
    without_effect: Mapping[str, str] = field(default_factory=dict)
    mixture_names: EncoderNames | None = None  # of its models with experts, where they are others

    def spec(self, fields: Fields) -> EncoderSpec:
        return replace(self.read(fields), family=self.name)

    def names_of(self, spec: EncoderSpec) -> EncoderNames:
        return self.mixture_names if self.mixture_names and spec.num_experts else self.names


def read_activation(fields: Fields, key: str, default: str) -> Activation:
    """What a config names as an activation, also as a class of torch."""
    named = fields.word(key, default)
    word = named.rsplit(".", 1)[-1].lower()
    if word not in ACTIVATIONS:
        raise UnsupportedModel(
            f"{fields.source}: {key} {named[:60]!r}; quire has {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[word]


def inner_activation(
    fields: Fields, key: str, default: str = "gelu"
) -> Literal["gelu", "gelu_tanh", "relu", "silu"]:
    """The activation of a feed-forward."""
    found = read_activation(fields, key, default)
    if found not in ("gelu", "gelu_tanh", "relu", "silu"):
        raise UnsupportedModel(
            f"{fields.source}: {key} {found!r}; a feed-forward has gelu, relu or silu"
        )
    return found


def with_rope(spec: EncoderSpec, fields: Fields, *, unsaid_theta: float) -> EncoderSpec:
    """The same encoder with its config's rope in every layer, which must not be scaled."""
    rope = read_rope(fields, spec.head_dim, theta=unsaid_theta)
    if rope.scaling is not None:
        raise UnsupportedModel(f"{fields.source}: a scaled rope; quire has plain ones in encoders")
    return replace(spec, thetas=(rope.theta,) * spec.num_layers)


# What most configs call the sizes of an encoder.
KEYS: Mapping[str, str] = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
}


def read_encoder(fields: Fields, *, keys: Mapping[str, str] = KEYS, **facts: Any) -> EncoderSpec:
    """The spec of a config whose `keys` are {our field: its name for it}; `facts` are others. Heads
    have keys of their own, and divide the hidden size among them, unless these say otherwise."""
    counts: dict[str, Any] = {ours: fields.count(theirs) for ours, theirs in keys.items()}
    hidden, heads = counts["hidden_size"], counts["num_heads"]
    if "head_dim" not in facts and hidden % heads:
        raise CorruptModel(
            f"{fields.source}: hidden size {hidden} does not divide among {heads} heads"
        )
    usual = {"num_kv_heads": heads, "head_dim": hidden // heads, "dtype": read_dtype(fields)}
    return EncoderSpec(family="", **{**usual, **counts, **facts})  # EncoderFamily.spec says it
