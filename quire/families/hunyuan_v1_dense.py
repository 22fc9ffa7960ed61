"""Hunyuan: q and k normed head by head after they are rotated; theta of rope may be stretched by a
number alpha. No torch."""

from __future__ import annotations

from typing import Any

from quire.families.family import Family, LayerNames, Name, sizes
from quire.families.fields import Fields
from quire.families.reading import read_biases, read_heads, read_plain_decoder
from quire.families.rope_config import DEFAULT_THETA, RopeSettings, read_rope, rope_fields
from quire.layer_parts.rope import FactorRope, YarnRope
from quire.spec import ModelSpec


def read(fields: Fields, **given: Any) -> ModelSpec:
    """`given`: more arguments of read_plain_decoder."""
    heads = read_heads(fields)
    return read_plain_decoder(
        fields,
        heads,
        rope=_rope(fields, heads.head_dim),
        norm_eps=1e-5,
        qk_norm=True,
        qk_norm_behind=True,
        **read_biases(fields),
        **given,
    )


def _rope(fields: Fields, head_dim: int) -> RopeSettings:
    said = rope_fields(fields)
    kind = said.word("rope_type", said.values.get("type") or "default")
    if kind == "dynamic" and said.values.get("alpha"):
        return _stretched(fields, said, head_dim)
    rope = read_rope(fields, head_dim)
    longer = isinstance(rope.scaling, YarnRope | FactorRope) and rope.scaling.attention_factor
    if longer not in (False, 1.0):
        raise said.unsupported("rope_type", "a rope that makes heads no longer: norms follow it")
    return rope


def _stretched(fields: Fields, said: Fields, head_dim: int) -> RopeSettings:
    if head_dim < 4:
        raise fields.wrong("head_dim", "4 or more beside alpha")
    theta = said.positive("rope_theta", fields.positive("rope_theta", DEFAULT_THETA))
    plain = {
        "rope_theta": theta * said.positive("alpha") ** (head_dim / (head_dim - 2)),
        "max_position_embeddings": fields.values.get("max_position_embeddings"),
    }
    return read_rope(Fields(plain, fields.source), head_dim)


NAMES = LayerNames(
    q_norm=Name("self_attn.query_layernorm", "attn_q_norm"),
    k_norm=Name("self_attn.key_layernorm", "attn_k_norm"),
)
WITHOUT_EFFECT = dict.fromkeys(("eod_token_id", "sep_token_id"), "ids that the class does not read")
FAMILY = Family(
    name="hunyuan_v1_dense",
    architectures=("HunYuanDenseV1ForCausalLM",),
    read=read,
    unsaid=sizes(290_943, 4096, 11_008, 32, 32, 2048),
    gguf="hunyuan-dense",
    names=NAMES,
    without_effect=WITHOUT_EFFECT,
)
