"""OLMo 1: LayerNorm without a weight, and numbers of q, k and v that may be limited. No torch."""

from __future__ import annotations

from typing import Any

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.reading import read_biases, read_heads, read_plain_decoder
from quire.layer_plan import NormPlan
from quire.spec import ModelSpec

EPS = 1e-5  # configs do not have it


def read(fields: Fields) -> ModelSpec:
    return read_plain_decoder(
        fields,
        read_heads(fields),
        norm=NormPlan(EPS, kind="layer", learned=False),
        clip=fields.optional("clip_qkv"),
        **read_biases(fields),
    )


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    if config["layer_norm_eps"] != EPS:
        raise fields.unsupported("olmo.attention.layer_norm_epsilon", f"{EPS}")
    return {"clip_qkv": fields.values.get(f"olmo.{CLIP}")}


CLIP = "attention.clamp_kqv"
FAMILY = Family(
    name="olmo",
    architectures=("OlmoForCausalLM",),
    read=read,
    unsaid=sizes(50_304, 4096, 11_008, 32, 32, 2048),
    gguf="olmo",
    gguf_interleaved=True,
    gguf_words=_gguf_words,
    gguf_reads=(CLIP,),
)
