"""Cohere: one LayerNorm without bias before both branches, interleaved pairs in rope. No torch."""

from __future__ import annotations

from typing import Any

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.reading import read_heads, read_parallel, with_pairs_side_by_side
from quire.families.rope_config import read_rope
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    rope = read_rope(fields, read_heads(fields).head_dim, theta=500_000.0)
    return with_pairs_side_by_side(read_parallel(fields, rope=rope))


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    return {"logit_scale": fields.positive("command-r.logit_scale")}


FAMILY = Family(
    name="cohere",
    architectures=("CohereForCausalLM",),
    read=read,
    unsaid=sizes(256_000, 8192, 22_528, 40, 64, 8192),
    gguf="command-r",
    gguf_words=_gguf_words,
    gguf_reads=("logit_scale",),
    # Norms of q and k would have separate weights for each head, which quire does not have.
    only={"use_qk_norm": (False,)},
)
