"""How a family's file describes it: names, and how its config becomes a ModelSpec. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from quire.families.fields import Fields
from quire.layer_plan import NormPlaces
from quire.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Name:
    """The name of a tensor in files, without the layer's prefix and without `.weight`.

    In GGUF files `gguf_bare` means that the name has no `.weight`. In files of Hugging Face:
    `bare`: no `.weight`, and the bias ends with `_bias`; `transposed`: stored as [in, out];
    `stacked`: the tensors of all experts in one; `piled`: in one matrix, each below the one before
    (and `transposed` by itself). If two parts have the same name there, one tensor holds both, one
    after the other, or `alternating` row by row. `hf_also`: another name there, as that of the
    module of Transformers, by which adapters call it."""

    hf: str
    gguf: str
    bare: bool = False
    transposed: bool = False
    stacked: bool = False
    piled: bool = False
    alternating: bool = False
    gguf_bare: bool = False
    hf_also: str = ""

    def stored(self, kind: str) -> tuple[str, str]:
        """The names of its weight or bias in files of Hugging Face and in GGUF files."""
        ending = f".{kind}"
        if self.bare:
            ending = "" if kind == "weight" else "_bias"
        return self.hf + ending, self.gguf if self.gguf_bare else f"{self.gguf}.{kind}"


@dataclass(frozen=True, slots=True)
class ModelNames:
    """Names of the tensors around the layers, and the prefix of layer {}."""

    layer: Name = Name("model.layers.{}", "blk.{}")
    embed: Name = Name("model.embed_tokens", "token_embd")
    embed_norm: Name = Name("model.embed_norm", "token_embd_norm")
    positions: Name = Name("model.embed_positions", "position_embd")
    norm: Name = Name("model.norm", "output_norm")
    head: Name = Name("lm_head", "output")
    layer_embed: Name = Name("model.embed_tokens_per_layer", "per_layer_token_embd")
    layer_embed_product: Name = Name("model.per_layer_model_projection", "per_layer_model_proj")
    layer_embed_norm: Name = Name("model.per_layer_projection_norm", "per_layer_proj_norm")
    # Stream {} + 1 before the first layer, and behind the last; GGUF files have all in one tensor.
    spread: Name = Name("model.altup_projections.{}", "altup_proj")
    joined: Name = Name("model.altup_unembed_projections.{}", "altup_unembd_proj")


@dataclass(frozen=True, slots=True)
class LatentNames:
    """Names of the tensors of latent attention. In files of Hugging Face one tensor holds the
    products of keys and of values, head by head."""

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
    """Names of the tensors of a layer.

    `qkv` and `gate_up` are one tensor in quire, made of the stored tensors named here, in this
    order. A single stored `qkv` may be ordered `by_group`: the queries of a KV head, its key, its
    value, then the next KV head. It may be in `qvk_blocks`: the queries of some heads, their
    values, their keys, then the next block. With output gates, each head of q is followed by its
    gate, unless `attn_gate` names them."""

    attn_norm: Name = Name("input_layernorm", "attn_norm")
    attn_post_norm: Name = Name("post_attention_layernorm", "post_attention_norm")
    qkv: tuple[Name, ...] = (
        Name("self_attn.q_proj", "attn_q"),
        Name("self_attn.k_proj", "attn_k"),
        Name("self_attn.v_proj", "attn_v"),
    )
    qkv_by_group: bool = False
    qvk_blocks: int = 0
    attn_gate: Name | None = None  # the product of output gates, where these are apart from q
    q_norm: Name = Name("self_attn.q_norm", "attn_q_norm")
    k_norm: Name = Name("self_attn.k_norm", "attn_k_norm")
    sinks: Name = Name("self_attn.sinks", "attn_sinks", bare=True)
    latent: LatentNames = LatentNames()
    attn_inner_norm: Name = Name("self_attn.attn_sub_norm", "attn_sub_norm")
    o: Name = Name("self_attn.o_proj", "attn_output")
    # Of a layer that keeps a state: q, k, v and the gate; rates and decays. In files of Hugging
    # Face one tensor may hold all of `qkvz` or of `rates`, ordered by head of k, or q, k and v.
    qkvz: tuple[Name, ...] = (
        Name("linear_attn.in_proj_qkv", "attn_qkv"),
        Name("linear_attn.in_proj_z", "attn_gate"),
    )
    rates: tuple[Name, ...] = (
        Name("linear_attn.in_proj_b", "ssm_beta"),
        Name("linear_attn.in_proj_a", "ssm_alpha"),
    )
    # Of Mamba: the gate, x, B, C and steps.
    state_in: Name = Name("mamba.in_proj", "ssm_in")
    skips: Name = Name("mamba.D", "ssm_d", bare=True, gguf_bare=True)
    # Of a convolution by itself: both gates and x.
    gated: Name = Name("conv.in_proj", "shortconv.in_proj")
    convolution: Name = Name("linear_attn.conv1d", "ssm_conv1d")
    convolutions: tuple[Name, ...] = ()  # of q, of k and of v, where these are apart
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
    up: Name = Name("mlp.up_proj", "ffn_up")  # in a layer without gate
    mlp_inner_norm: Name = Name("mlp.ffn_sub_norm", "ffn_sub_norm")
    down: Name = Name("mlp.down_proj", "ffn_down")
    # The numbers of a learned activation, one behind the other.
    curve: tuple[Name, ...] = tuple(
        Name(f"mlp.act_fn.{one}", f"act_fn.{one}", bare=True)
        for one in ("alpha_p", "alpha_n", "beta", "eps")
    )
    # Of expert {}; in GGUF files one tensor holds all experts.
    router: Name = Name("mlp.gate", "ffn_gate_inp")
    router_choice: Name = Name("mlp.gate.e_score_correction", "exp_probs_b", bare=True)
    expert_gate_up: tuple[Name, ...] = (
        Name("mlp.experts.{}.gate_proj", "ffn_gate_exps"),
        Name("mlp.experts.{}.up_proj", "ffn_up_exps"),
    )
    expert_down: Name = Name("mlp.experts.{}.down_proj", "ffn_down_exps")
    # Names of the two tensors [experts, out, in] that hold all experts, in some files and in
    # Transformers' modules (None: the usual ones, where files have each expert by itself); and
    # whether some files have them as [experts, in, out].
    expert_stacks: tuple[str, str] | None = None
    stacks_either_way: bool = False
    shared_gate_up: tuple[Name, ...] = (
        Name("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
        Name("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    )
    shared_down: Name = Name("mlp.shared_expert.down_proj", "ffn_down_shexp")
    shared_gate: Name = Name("mlp.shared_expert_gate", "ffn_gate_inp_shexp")
    router_norm: Name = Name("router.scale", "ffn_gate_inp.scale", bare=True, gguf_bare=True)
    expert_factors: Name = Name(
        "router.per_expert_scale", "ffn_down_exps.scale", bare=True, gguf_bare=True
    )
    # Where experts are beside a feed-forward: norms of its result, before them, and of theirs.
    mlp_own_norm: Name = Name("post_feedforward_layernorm_1", "post_ffw_norm_1")
    beside_norm: Name = Name("pre_feedforward_layernorm_2", "pre_ffw_norm_2")
    beside_post_norm: Name = Name("post_feedforward_layernorm_2", "post_ffw_norm_2")
    embedding_gate: Name = Name("per_layer_input_gate", "inp_gate")
    embedding_out: Name = Name("per_layer_projection", "proj")
    embedding_post_norm: Name = Name("post_per_layer_input_norm", "post_norm")
    scale: Name = Name("layer_scalar", "layer_output_scale", bare=True)
    # Where there are several streams; and what stands beside attention then.
    stream_norm: Name = Name("altup.router_norm", "altup_router_norm")
    stream_router: Name = Name("altup.modality_router", "altup_router")
    predicting: Name = Name("altup.prediction_coefs", "altup_predict_coef")
    correcting: Name = Name("altup.correction_coefs", "altup_correct_coef")
    stream_scale: Name = Name("altup.correct_output_scale", "altup_correct_scale", bare=True)
    side_narrow: Name = Name("laurel.linear_left", "laurel_l")
    side_wide: Name = Name("laurel.linear_right", "laurel_r")
    side_norm: Name = Name("laurel.post_laurel_norm", "laurel_post_norm")


def sizes(
    vocab: int, hidden: int, width: int, layers: int, heads: int, length: int
) -> dict[str, Any]:
    """A config's default sizes, by the names that most configs use."""
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
    # Names in config.json: one of these in `architectures`, or as `model_type` (by default the
    # family's name).
    architectures: tuple[str, ...]
    read: Callable[[Fields], ModelSpec]
    model_types: tuple[str, ...] = ()
    # The architecture in GGUF files (None: quire reads none yet), and whether the file must say a
    # window. Of several families with one GGUF name, the first whose properties the file has is
    # taken.
    gguf: str | None = None
    gguf_also: tuple[str, ...] = ()  # more such names
    gguf_windows: bool = False
    # Whether the converter to GGUF reorders the rows of a head of q or k: the first of each half,
    # then the second of each half, and so on.
    gguf_interleaved: bool = False
    # Whether its GGUF files have experts, which decides between families with one GGUF name; None:
    # they may.
    gguf_experts: bool | None = False
    # Metadata keys that may be arrays with a number for each layer. The config gets the first ones.
    gguf_by_layer: tuple[str, ...] = ()
    # A kind of tokenizer in its GGUF files: SentencePiece's BPE with its merges written out.
    gguf_merged: str = ""
    # Makes config values from a GGUF file's metadata (and the config so far) that GGUF writes in
    # other words or not at all; and the metadata keys that it reads.
    gguf_words: Callable[[Fields, dict[str, Any]], dict[str, Any]] | None = None
    gguf_reads: tuple[str, ...] = ()
    # Whether a config may rotate only a part of each head.
    partial_rotary: bool = False
    names: LayerNames = LayerNames()
    # Names for layers with norms at these places, if different from `names`.
    names_by_norms: Mapping[NormPlaces, LayerNames] = field(default_factory=dict)
    outer_names: ModelNames = ModelNames()
    # Whether in files the branches of a layer, each with its norm, are layers of their own.
    branches_apart: bool = False
    # Whether no layer has attention or a feed-forward.
    has_states_alone: bool = False
    # Stored tensors that are no weights, by the ends of their names.
    buffers: tuple[str, ...] = ()
    # Keys of its config that do not change results, and why. weights/hf_config.py has those of all
    # families.
    without_effect: Mapping[str, str] = field(default_factory=dict)
    # The only supported values of these keys; null or absent is always accepted.
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    # Keys that its `read` reads and that are otherwise refused for every family.
    reads: tuple[str, ...] = ()
    # Values of keys that a config leaves out, as in Transformers' class: files of large models
    # leave out sizes.
    unsaid: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "model_types", self.model_types or (self.name,))

    def spec(self, fields: Fields) -> ModelSpec:
        return replace(self.read(fields), family=self.name)
