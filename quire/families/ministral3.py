"""Ministral 3: YaRN, and queries that grow with their position. No torch."""

from __future__ import annotations

from typing import Any

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.reading import read_heads, read_plain_decoder, read_window
from quire.families.rope_config import read_rope, rope_fields, yarn_scale
from quire.layer_parts.rope import Llama3Rope, RopeScaling, YarnRope
from quire.layer_plan import QueryGrowth
from quire.spec import ModelSpec

THETA = 1_000_000.0
GGUF = "mistral3"
_GGUF_BETA = "attention.temperature_scale"
_GGUF_MSCALE = "rope.scaling.yarn_log_multiplier"
# Used if a config has no rope settings.
ROPE: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": THETA,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def read(fields: Fields) -> ModelSpec:
    said = fields.values.get("rope_scaling") or fields.values.get("rope_parameters")
    fields = fields if said else fields.under({}, rope_parameters=ROPE)
    heads = read_heads(fields, kv_heads=8, head_dim=128)
    rope = read_rope(fields, heads.head_dim, theta=THETA)
    return read_plain_decoder(
        fields,
        heads,
        rope=rope,
        window=read_window(fields, unsaid=None),
        norm_eps=1e-5,
        query_growth=_growth(rope_fields(fields), rope.scaling),
    )


def _growth(rope: Fields, scaling: RopeScaling | None) -> QueryGrowth | None:
    beta = rope.not_negative("llama_4_scaling_beta", 0.0)
    if not beta:
        return None
    # The original length of the scaling wins over the one in the settings.
    known = scaling.original_max_len if isinstance(scaling, YarnRope | Llama3Rope) else None
    return QueryGrowth(beta, known or rope.count("original_max_position_embeddings"))


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    """Config values from a GGUF file's metadata, which does not write plain rope settings."""
    said = {"rope_type": "default", **(config["rope_scaling"] or {})}
    beta = fields.not_negative(f"{GGUF}.{_GGUF_BETA}", 0.0)
    weight = fields.not_negative(f"{GGUF}.{_GGUF_MSCALE}", 0.0)
    if weight and f"{GGUF}.rope.scaling.yarn_attn_factor" not in fields.values:
        factor = said.get("factor", 1.0)  # with this, mscale is 1
        said["attention_factor"] = yarn_scale(factor, 1.0) / yarn_scale(factor, weight)
    return {"rope_scaling": {**said, "llama_4_scaling_beta": beta}}


FAMILY = Family(
    name="ministral3",
    # The second is of a model that also sees; its text may be of an older family, which then
    # counts.
    architectures=("Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"),
    model_types=("ministral3", "mistral3"),
    read=read,
    unsaid=sizes(131_072, 4096, 14_336, 34, 32, 262_144),
    gguf=GGUF,
    gguf_interleaved=True,
    gguf_words=_gguf_words,
    gguf_reads=(_GGUF_BETA, _GGUF_MSCALE),
)
