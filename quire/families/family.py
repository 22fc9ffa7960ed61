"""What a family's file says of it: its names, and how its config becomes a ModelSpec. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from quire.families.fields import Fields
from quire.layer_plan import NormPlaces
from quire.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Name:
    """What files call one tensor, without the layer before it and without `.weight`.

    GGUF files may have it `gguf_bare`, without `.weight`. Files of Hugging Face may have it
    otherwise: `bare`, without `.weight`, and its bias with `_bias`; `turned`, [in, out]; `stacked`,
    that of every expert in one tensor. Two parts with one name there are one tensor, one behind the
    other, or `alternating` row by row."""

    hf: str
    gguf: str
    bare: bool = False
    turned: bool = False
    stacked: bool = False
    alternating: bool = False
    gguf_bare: bool = False

    def stored(self, kind: str) -> tuple[str, str]:
        """What files of Hugging Face and GGUF files call its weight or bias."""
        ending = f".{kind}"
        if self.bare:
            ending = "" if kind == "weight" else "_bias"
        return self.hf + ending, self.gguf if self.gguf_bare else f"{self.gguf}.{kind}"


@dataclass(frozen=True, slots=True)
class ModelNames:
    """What files call the tensors around the layers, and what stands before those of layer {}."""

    layer: Name = Name("model.layers.{}", "blk.{}")
    embed: Name = Name("model.embed_tokens", "token_embd")
    positions: Name = Name("model.embed_positions", "position_embd")
    norm: Name = Name("model.norm", "output_norm")
    head: Name = Name("lm_head", "output")


@dataclass(frozen=True, slots=True)
class LatentNames:
    """What files call the tensors of attention whose keys and values are latent. Those of Hugging
    Face have the products of keys and of values as one, head by head."""

    q: Name = Name("self_attn.q_proj", "attn_q")
    q_a: Name = Name("self_attn.q_a_proj", "attn_q_a")
    q_a_norm: Name = Name("self_attn.q_a_layernorm", "attn_q_a_norm")
    q_b: Name = Name("self_attn.q_b_proj", "attn_q_b")
    kv_a: Name = Name("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa")
    kv_a_norm: Name = Name("self_attn.kv_a_layernorm", "attn_kv_a_norm")
    k_b: Name = Name("self_attn.kv_b_proj", "attn_k_b")
    v_b: Name = Name("self_attn.kv_b_proj", "attn_v_b")


@dataclass(frozen=True, slots=True)
class LayerNames:
    """What files call the tensors of a layer.

    `qkv` and `gate_up` are one tensor here: of these stored ones, from the top. A single `qkv` of
    files of Hugging Face may have them `by_group`: the queries of a KV head, its key, its value,
    then those of the next. A q whose heads have gates has those of each head behind it."""

    attn_norm: Name = Name("input_layernorm", "attn_norm")
    attn_post_norm: Name = Name("post_attention_layernorm", "post_attention_norm")
    qkv: tuple[Name, ...] = (
        Name("self_attn.q_proj", "attn_q"),
        Name("self_attn.k_proj", "attn_k"),
        Name("self_attn.v_proj", "attn_v"),
    )
    qkv_by_group: bool = False
    q_norm: Name = Name("self_attn.q_norm", "attn_q_norm")
    k_norm: Name = Name("self_attn.k_norm", "attn_k_norm")
    sinks: Name = Name("self_attn.sinks", "attn_sinks", bare=True)
    latent: LatentNames = LatentNames()
    o: Name = Name("self_attn.o_proj", "attn_output")
    # Of a layer that keeps a state: q, k, v and the gate; what makes rates and decays. Of Hugging
    # Face one tensor may have all of either, by head of k.
    qkvz: tuple[Name, ...] = (
        Name("linear_attn.in_proj_qkv", "attn_qkv"),
        Name("linear_attn.in_proj_z", "attn_gate"),
    )
    rates: tuple[Name, ...] = (
        Name("linear_attn.in_proj_b", "ssm_beta"),
        Name("linear_attn.in_proj_a", "ssm_alpha"),
    )
    convolution: Name = Name("linear_attn.conv1d", "ssm_conv1d")
    log_slopes: Name = Name("linear_attn.A_log", "ssm_a", bare=True, gguf_bare=True)
    shifts: Name = Name("linear_attn.dt", "ssm_dt", bare=True)  # a bias
    state_norm: Name = Name("linear_attn.norm", "ssm_norm")
    state_out: Name = Name("linear_attn.out_proj", "ssm_out")
    cross_norm: Name = Name("encoder_attn_layer_norm", "cross_attn_norm")
    cross_q: Name = Name("encoder_attn.q_proj", "cross_attn_q")
    cross_o: Name = Name("encoder_attn.out_proj", "cross_attn_o")
    mlp_norm: Name = Name("post_attention_layernorm", "ffn_norm")
    mlp_post_norm: Name = Name("post_feedforward_layernorm", "post_ffw_norm")
    gate_up: tuple[Name, ...] = (Name("mlp.gate_proj", "ffn_gate"), Name("mlp.up_proj", "ffn_up"))
    up: Name = Name("mlp.up_proj", "ffn_up")  # where there is no gate
    down: Name = Name("mlp.down_proj", "ffn_down")
    # Of expert {}; a GGUF file has those of all experts as one tensor.
    router: Name = Name("mlp.gate", "ffn_gate_inp")
    router_choice: Name = Name("mlp.gate.e_score_correction", "exp_probs_b", bare=True)
    expert_gate_up: tuple[Name, ...] = (
        Name("mlp.experts.{}.gate_proj", "ffn_gate_exps"),
        Name("mlp.experts.{}.up_proj", "ffn_up_exps"),
    )
    expert_down: Name = Name("mlp.experts.{}.down_proj", "ffn_down_exps")
    # What files call all of either that do not have them expert by expert: [experts, out, in].
    expert_stacks: tuple[str, str] | None = None
    shared_gate_up: tuple[Name, ...] = (
        Name("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
        Name("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    )
    shared_down: Name = Name("mlp.shared_expert.down_proj", "ffn_down_shexp")
    shared_gate: Name = Name("mlp.shared_expert_gate", "ffn_gate_inp_shexp")


def sizes(
    vocab: int, hidden: int, width: int, layers: int, heads: int, length: int
) -> dict[str, Any]:
    """By the words that most configs have for them."""
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": length,
    }


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    # What config.json calls it: one of these in `architectures`, one of these as `model_type` (by
    # default its name).
    architectures: tuple[str, ...]
    read: Callable[[Fields], ModelSpec]
    model_types: tuple[str, ...] = ()
    # What GGUF files call it (None: quire reads none of it yet), and whether a window is in there
    # for it. Of two families with one name the first that has what the file says is taken.
    gguf: str | None = None
    gguf_windows: bool = False
    # Whether the converter to GGUF puts the rows of a q or k head in another order: the first of
    # either half, then the second of either half, and so on.
    gguf_interleaved: bool = False
    # Whether a GGUF file of this name has experts: of two families with one name, who does.
    gguf_experts: bool = False
    # What its config would say that the metadata of a GGUF file says in words of its own, or not at
    # all: from those, and the config so far; and which of its keys are read there.
    gguf_words: Callable[[Fields, dict[str, Any]], dict[str, Any]] | None = None
    gguf_reads: tuple[str, ...] = ()
    # Whether only a part of each head may be turned, by its config.
    partial_rotary: bool = False
    names: LayerNames = LayerNames()
    # Those of layers whose norms stand in other places, where they are others.
    names_by_norms: Mapping[NormPlaces, LayerNames] = field(default_factory=dict)
    outer_names: ModelNames = ModelNames()
    # What its files hold beside weights, by how the names end.
    buffers: tuple[str, ...] = ()
    # Keys of its config that change nothing, and why; see weights/hf_config.py for those of all.
    without_effect: Mapping[str, str] = field(default_factory=dict)
    # Values of keys beyond which it would be another model; null and absent are fine.
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    # What its config means that does not say it, where that is no matter of other fields: files of
    # large models leave sizes out, and Transformers' class for them has these.
    unsaid: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "model_types", self.model_types or (self.name,))

    def spec(self, fields: Fields) -> ModelSpec:
        return replace(self.read(fields), family=self.name)
