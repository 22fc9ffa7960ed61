"""Ministral 3: YaRN, and queries that grow with their position. No torch."""

from __future__ import annotations

from typing import Any

from quire.families.family import Family
from quire.families.fields import Fields
from quire.families.reading import num_layers, read_heads, read_plain_decoder, read_window
from quire.families.rope_config import read_rope, rope_fields
from quire.layer_plan import QueryGrowth
from quire.spec import ModelSpec

THETA = 1_000_000.0
# Of a config that says nothing of positions.
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
    return read_plain_decoder(
        "ministral3",
        fields,
        heads,
        rope=read_rope(fields, heads.head_dim, theta=THETA),
        windows=(read_window(fields, unsaid=None),) * num_layers(fields),
        norm_eps=1e-5,
        query_growth=_growth(fields),
    )


def _growth(fields: Fields) -> QueryGrowth | None:
    rope = rope_fields(fields)
    beta = rope.not_negative("llama_4_scaling_beta", 0.0)
    return QueryGrowth(beta, rope.count("original_max_position_embeddings")) if beta else None


FAMILY = Family(
    name="ministral3",
    # Of a model that also sees, whose text may be of an older kind, which then counts.
    architectures=("Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"),
    model_types=("ministral3", "mistral3"),
    read=read,
)
