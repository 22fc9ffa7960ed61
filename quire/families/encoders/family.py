"""How a family's file describes an encoder: names of weights, and how its config is read. No
torch."""

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
# The names that configs use; of a class of torch only what is after the last dot.
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
    """A product of a classification head, by the name of its tensors without `.weight` and `.bias`
    (or its other name), and the activation after it."""

    name: str
    activation: Activation = "identity"
    also: str = ""


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """A norm of a classification head, by the name of its tensors."""

    name: str
    eps: float


HeadPart = Dense | LayerNorm


# The parts between the pooled state of a text (with `per_token`: each token's state) and the
# labels.
Classifier = Callable[[Fields, bool], tuple[HeadPart, ...]]


def pooled_classifier(*parts: HeadPart) -> Classifier:
    """These parts for the pooled state; for single tokens one product only."""

    def classifier(fields: Fields, per_token: bool) -> tuple[HeadPart, ...]:
        return (Dense("classifier"),) if per_token else parts

    return classifier


@dataclass(frozen=True, slots=True)
class EncoderNames:
    """Names of tensors in files, without `.weight`; those of a layer follow the prefix `layer`."""

    words: str
    embed_norm: str
    layer: str  # "encoder.layer.{}."
    qkv: tuple[str, ...]
    o: str
    attn_norm: str
    up: tuple[str, ...]  # if gated both, first the one with the activation
    down: str
    mlp_norm: str
    positions: str = ""
    types: str = ""
    embed_product: str = ""
    distances: str = ""
    norm: str = ""
    router: str = ""
    experts: str = ""  # of a layer: what comes before `mlp.w1`, `mlp.w2` and `bias`
    # Whether a stored tensor with both halves of a gated feed-forward has the gate second.
    gate_behind: bool = False
    # Names within a layer; empty if it has no such tensor.
    attn_post_norm: str = ""
    mlp_post_norm: str = ""
    q_norm: str = ""
    k_norm: str = ""


@dataclass(frozen=True, slots=True)
class EncoderFamily:
    """One family. `stems` are the beginnings of its architectures: BertModel, BertForMaskedLM
    ..."""

    name: str
    stems: tuple[str, ...]
    model_types: tuple[str, ...]
    prefix: str  # before every name, where the model has a head
    read: Callable[[Fields], EncoderSpec]
    names: EncoderNames
    classifier: Classifier
    # The only supported values of these keys; null or absent is always accepted.
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    # What a config must contain to be of this family: others with its names are decoders.
    needs: Mapping[str, Any] = field(default_factory=dict)
    # Keys that do not change results, and why.
    without_effect: Mapping[str, str] = field(default_factory=dict)
    # The words of `classifier_pooling` that its class in Transformers reads, the usual one first,
    # and the state of a text that they mean (late: the labels of all tokens are averaged). A family
    # without the key uses the first token's.
    label_pooling: Mapping[str, Literal["cls", "mean", "late"]] = field(
        default_factory=lambda: {"cls": "cls"}
    )
    mixture_names: EncoderNames | None = None  # for models with experts, if different

    def spec(self, fields: Fields) -> EncoderSpec:
        return replace(self.read(fields), family=self.name)

    def names_of(self, spec: EncoderSpec) -> EncoderNames:
        return self.mixture_names if self.mixture_names and spec.num_experts else self.names


def read_activation(fields: Fields, key: str, default: str) -> Activation:
    """The activation that a config names, also by a class of torch."""
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
    """The encoder with its config's rope in every layer. A scaled rope is refused."""
    rope = read_rope(fields, spec.head_dim, theta=unsaid_theta)
    if rope.scaling is not None:
        raise UnsupportedModel(f"{fields.source}: a scaled rope; quire has plain ones in encoders")
    return replace(spec, thetas=(rope.theta,) * spec.num_layers)


# The names of sizes in most configs.
KEYS: Mapping[str, str] = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
}


def read_encoder(fields: Fields, *, keys: Mapping[str, str] = KEYS, **facts: Any) -> EncoderSpec:
    """The spec of a config. `keys` are {our field: the config's name for it}, `facts` other fields
    of the spec. By default all heads have their own keys, and head_dim is hidden size / heads."""
    counts: dict[str, Any] = {ours: fields.count(theirs) for ours, theirs in keys.items()}
    hidden, heads = counts["hidden_size"], counts["num_heads"]
    if "head_dim" not in facts and hidden % heads:
        raise CorruptModel(
            f"{fields.source}: hidden size {hidden} does not divide among {heads} heads"
        )
    usual = {"num_kv_heads": heads, "head_dim": hidden // heads, "dtype": read_dtype(fields)}
    return EncoderSpec(family="", **{**usual, **counts, **facts})  # EncoderFamily.spec sets it
