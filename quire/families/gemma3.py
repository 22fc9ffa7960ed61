"""Gemma 3, its text: norms of 1 + w before and behind both branches and on each head of q and k, a
gate of gelu, its own scale of scores, five layers with a window and a rope of their own to one
without, an embedding times the root of its width. No torch."""

from __future__ import annotations

from typing import Any

from quire.families.family import Family, LayerNames, Name
from quire.families.fields import Fields
from quire.families.reading import (
    Heads,
    num_layers,
    read_biases,
    read_decoder,
    read_heads,
    read_window,
    windows_by_kind,
)
from quire.families.rope_config import read_ropes_by_kind
from quire.layer_plan import AttentionPlan, LayerPlan, MlpPlan, NormPlan, Rope
from quire.spec import LogitsPlan, ModelSpec

PERIOD = 6  # the last of so many layers sees everything
THETAS = {"full_attention": 1e6, "sliding_attention": 1e4}  # of a config that does not say them
# GGUF says neither the scale nor the period. Of the one size whose scale is not by head_dim, the
# number of layers is known.
LAYERS_SCALED_BY_WIDTH = 62


def read(fields: Fields) -> ModelSpec:
    heads, window = read_heads(fields, head_dim=256), read_window(fields)
    windows = windows_by_kind(fields, window) or _windows(fields, window)
    local = fields.positive("rope_local_base_freq", THETAS["sliding_attention"])
    thetas = THETAS | {"sliding_attention": local}
    ropes = read_ropes_by_kind(fields, heads.head_dim, thetas, scaled="full_attention")
    norm = NormPlan(fields.positive("rms_norm_eps", 1e-6), one_plus=True)
    mlp = MlpPlan(fields.count("intermediate_size"), "gelu_tanh")
    layers = []
    for seen in windows:
        kind = "full_attention" if seen is None else "sliding_attention"
        attention = _attention(fields, heads, norm, ropes[kind].rope, seen)
        layers.append(LayerPlan(attention, mlp, norm, "both"))
    return read_decoder(
        "gemma3",
        fields,
        layers,
        max_len=ropes["full_attention"].max_len,
        embedding_scale=fields.count("hidden_size") ** 0.5,
        logits=LogitsPlan(softcap=fields.optional("final_logit_softcapping")),
        tied_embeddings=fields.flag("tie_word_embeddings", True),
    )


def _attention(
    fields: Fields, heads: Heads, norm: NormPlan, rope: Rope, window: int | None
) -> AttentionPlan:
    return AttentionPlan(
        *(heads.heads, heads.kv_heads, heads.head_dim),
        scale=fields.positive("query_pre_attn_scalar", 256) ** -0.5,
        rope=rope,
        window=window,
        **read_biases(fields),
        qk_norm=norm,
    )


def _windows(fields: Fields, window: int | None) -> tuple[int | None, ...]:
    period = fields.count("sliding_window_pattern", PERIOD)
    return tuple(window if (i + 1) % period else None for i in range(num_layers(fields)))


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    by_width = config["num_hidden_layers"] == LAYERS_SCALED_BY_WIDTH
    scalar = config["hidden_size"] // config["num_attention_heads"]
    return {
        "query_pre_attn_scalar": scalar if by_width else config["head_dim"],
        "sliding_window": fields.count("gemma3.attention.sliding_window"),
        "rope_local_base_freq": fields.positive("gemma3.rope.freq_base_swa", 1e4),
    }


FAMILY = Family(
    name="gemma3",
    architectures=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    model_types=("gemma3_text", "gemma3"),
    read=read,
    gguf="gemma3",
    gguf_windows=True,
    gguf_words=_gguf_words,
    names=LayerNames(mlp_norm=Name("pre_feedforward_layernorm", "ffn_norm")),
    without_effect={"attn_logit_softcapping": "Transformers reads it and computes without it"},
    only={
        "hidden_act": ("gelu_pytorch_tanh",),
        "hidden_activation": ("gelu_pytorch_tanh",),
        "use_bidirectional_attention": (False,),
    },
)
