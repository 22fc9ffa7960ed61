"""The text model of Gemma 3: norms of 1 + w before and after both branches and on each head of q
and k, a gelu gate, a scale of its own, five layers with a window and their own rope to one without,
embeddings times the root of the hidden size. No torch."""

from __future__ import annotations

from typing import Any

from quire.families.family import Family, LayerNames, Name, sizes
from quire.families.fields import Fields
from quire.families.reading import (
    read_heads,
    read_one_plus,
    read_window,
    windows_in_turn,
    with_rope_of_windows,
)
from quire.families.rope_config import read_ropes_by_kind
from quire.spec import LogitsPlan, ModelSpec

PERIOD = 6  # one layer in each period has no window: its last
THETAS = {"full_attention": 1e6, "sliding_attention": 1e4}  # defaults
# GGUF files have neither the scale nor the period. The scale follows from head_dim for all sizes
# but one, which is recognised by its number of layers.
LAYERS_SCALED_BY_WIDTH = 62


def read(fields: Fields) -> ModelSpec:
    head_dim = read_heads(fields, kv_heads=4, head_dim=256).head_dim
    period = fields.count("sliding_window_pattern", PERIOD)
    local = fields.positive("rope_local_base_freq", THETAS["sliding_attention"])
    thetas = THETAS | {"sliding_attention": local}
    ropes = read_ropes_by_kind(fields, head_dim, thetas, scaled="full_attention")
    spec = read_one_plus(
        fields,
        kv_heads=4,
        rope=ropes["full_attention"],
        windows=windows_in_turn(fields, read_window(fields), period),
        qk_norm=True,
        scale=fields.positive("query_pre_attn_scalar", 256) ** -0.5,
        layer={"norms": "both"},
        facts={"logits": LogitsPlan(softcap=fields.optional("final_logit_softcapping"))},
    )
    return with_rope_of_windows(spec, ropes["sliding_attention"])


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
    unsaid=sizes(262_208, 2304, 9216, 26, 8, 131_072),
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
