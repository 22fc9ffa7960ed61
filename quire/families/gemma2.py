"""Gemma 2: norms of 1 + w before and after both branches, a gelu gate, softcapped scores and
logits, a window in every second layer, embeddings times the root of the hidden size. No torch."""

from __future__ import annotations

from typing import Any

from quire.families.family import Family, LayerNames, Name, sizes
from quire.families.fields import Fields
from quire.families.reading import read_one_plus, read_window, windows_in_turn
from quire.layer_plan import NormPlaces
from quire.spec import LogitsPlan, ModelSpec

PERIOD = 2  # one layer in each period has no window: its last


def read(fields: Fields, norms: NormPlaces = "both") -> ModelSpec:
    final = _softcap(fields, "final_logit_softcapping", 30.0)
    return read_one_plus(
        fields,
        kv_heads=4,
        windows=windows_in_turn(fields, read_window(fields), PERIOD),
        scale=fields.positive("query_pre_attn_scalar", 256) ** -0.5,
        softcap=_softcap(fields, "attn_logit_softcapping", 50.0),
        layer={"norms": norms},
        facts={"logits": LogitsPlan(softcap=final)},
    )


def _softcap(fields: Fields, key: str, unsaid: float) -> float | None:
    """Null means no softcap; if absent, the default."""
    return fields.optional(key) if key in fields.values else unsaid


# GGUF files do not have the scale. It follows from head_dim for all sizes but one, which is
# recognised by its number of layers.
LAYERS_SCALED_BY_WIDTH = 46


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    by_width = config["num_hidden_layers"] == LAYERS_SCALED_BY_WIDTH
    scalar = config["hidden_size"] // config["num_attention_heads"]
    return {
        "query_pre_attn_scalar": scalar if by_width else config["head_dim"],
        "sliding_window": fields.count("gemma2.attention.sliding_window", 4096),
        "attn_logit_softcapping": fields.positive("gemma2.attn_logit_softcapping", 50.0),
        "final_logit_softcapping": fields.positive("gemma2.final_logit_softcapping", 30.0),
    }


NAMES = LayerNames(mlp_norm=Name("pre_feedforward_layernorm", "ffn_norm"))
ACTIVATION = dict.fromkeys(("hidden_act", "hidden_activation"), ("gelu_pytorch_tanh",))
FAMILY = Family(
    name="gemma2",
    architectures=("Gemma2ForCausalLM",),
    read=read,
    unsaid=sizes(256_000, 2304, 9216, 26, 8, 8192),
    gguf="gemma2",
    gguf_windows=True,
    gguf_words=_gguf_words,
    gguf_reads=("attn_logit_softcapping", "final_logit_softcapping"),
    names=NAMES,
    only={**ACTIVATION, "use_bidirectional_attention": (False,)},
)
