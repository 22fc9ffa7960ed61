"""FlexOlmo: the attention and norms of OLMo 2, and experts as feed-forwards. No torch."""

from __future__ import annotations

from quire.families import olmo2
from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.mixtures import ROUTER_KEYS, read_experts, with_experts
from quire.families.reading import read_heads
from quire.families.rope_config import read_rope
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    rope = read_rope(fields, read_heads(fields).head_dim, theta=500_000.0)
    spec = olmo2.read(fields.under({}, rms_norm_eps=1e-6), rope=rope)
    width, renormalise = fields.count("intermediate_size"), fields.flag("norm_topk_prob", False)
    experts = read_experts(fields, width, count=7, per_token=5, renormalise=renormalise)
    return with_experts(spec, fields, experts)


FAMILY = Family(
    name="flex_olmo",
    architectures=("FlexOlmoForCausalLM",),
    read=read,
    unsaid=sizes(100_352, 4096, 11_008, 32, 32, 4096),
    without_effect=ROUTER_KEYS,
)
