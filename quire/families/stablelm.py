"""StableLM: LayerNorm, rope on a quarter of each head, branches parallel or not. No torch."""

from __future__ import annotations

from typing import Any

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.reading import read_heads, read_plain_decoder
from quire.families.rope_config import read_rope
from quire.layer_plan import NormPlan
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    heads = read_heads(fields, kv_heads=32)
    parallel = fields.flag("use_parallel_residual", False)
    return read_plain_decoder(
        fields,
        heads,
        rope=read_rope(fields, heads.head_dim, partial=True, factor=0.25),
        norm=NormPlan(fields.positive("layer_norm_eps", 1e-5), kind="layer", bias=True),
        qkv_bias=fields.flag("use_qkv_bias", False),
        layer={"norms": "parallel" if parallel else "before"},
    )


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    return {"use_parallel_residual": fields.flag("stablelm.use_parallel_residual", True)}


FAMILY = Family(
    name="stablelm",
    architectures=("StableLmForCausalLM",),
    read=read,
    unsaid=sizes(50_304, 2560, 6912, 32, 32, 4096),
    gguf="stablelm",
    gguf_words=_gguf_words,
    gguf_reads=("use_parallel_residual",),
    partial_rotary=True,
    without_effect={"hidden_dropout": "training"},
    # Norms of q and k would have separate weights for each head, which quire does not have.
    only={"qk_layernorm": (False,)},
)
