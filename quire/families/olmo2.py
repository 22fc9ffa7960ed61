"""OLMo 2: norms only after the branches, q and k normed over all heads. No torch."""

from __future__ import annotations

from typing import Any

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.reading import read_biases, read_heads, read_plain_decoder
from quire.layer_plan import NormPlan
from quire.spec import ModelSpec

SIZES = sizes(50_304, 4096, 11_008, 32, 32, 2048)


def read(fields: Fields, *, norm_eps: float = 1e-5, **given: Any) -> ModelSpec:
    """`norm_eps` is a default, `given` more arguments of read_plain_decoder."""
    return read_plain_decoder(
        fields,
        read_heads(fields),
        norm=NormPlan(fields.positive("rms_norm_eps", norm_eps), rounds_last=True),
        qk_norm=True,
        qk_norm_over="width",
        **read_biases(fields),
        layer={"norms": "after"},
        **given,
    )


FAMILY = Family(
    name="olmo2",
    architectures=("Olmo2ForCausalLM",),
    read=read,
    unsaid=SIZES,
    gguf="olmo2",
)
