"""EmbeddingGemma: the layers of Gemma 3, where a token also sees those after it. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quire.errors import UnsupportedModel
from quire.families import gemma3
from quire.families.encoders import eurobert
from quire.families.encoders.family import EncoderFamily, HeadPart, read_encoder
from quire.families.fields import Fields
from quire.families.reading import read_window
from quire.spec import EncoderSpec

FLAG = "use_bidirectional_attention"
WHOLE_NORMS = "norms_hold_one_plus"  # set for GGUF files: their weights contain the 1 of 1 + w
GGUF = "gemma-embedding"
GGUF_WORDS: Mapping[str, Any] = {
    "architectures": ["Gemma3TextModel"],
    "model_type": "gemma3_text",
    FLAG: True,
    WHOLE_NORMS: True,
}


def read(fields: Fields) -> EncoderSpec:
    decoder = gemma3.read(fields)
    attention = [layer.attention for layer in decoder.layers]
    ropes = [one.rope for one in attention if one.rope is not None]
    if any(rope.scaling is not None for rope in ropes):
        raise UnsupportedModel(f"{fields.source}: a scaled rope; quire has plain ones in encoders")
    half = (read_window(fields) or 0) // 2  # a window of 512 is 256 on each side
    first, norm = attention[0], decoder.norm
    return read_encoder(
        fields,
        max_model_len=decoder.max_model_len,
        norm_eps=norm.eps,
        activation="gelu_tanh",
        gated=True,
        norms="both",
        norm_kind="rms" if fields.flag(WHOLE_NORMS, False) else "rms_one_plus",
        embed_norm=False,
        norm_bias=False,
        attention_bias=first.qkv_bias,
        mlp_bias=False,
        thetas=tuple(rope.theta for rope in ropes),
        windows=tuple(None if one.window is None else half for one in attention),
        num_kv_heads=first.num_kv_heads,
        head_dim=first.head_dim,
        qk_norm=True,
        scale=first.scale,
        embedding_scale=decoder.embedding_scale,
    )


def classifier(fields: Fields, per_token: bool) -> tuple[HeadPart, ...]:
    raise UnsupportedModel(f"{fields.source}: classes beside {FLAG}; of these models quire embeds")


FAMILY = EncoderFamily(
    name="embeddinggemma",
    stems=("Gemma3Text",),
    model_types=("gemma3_text",),
    prefix="model.",
    read=read,
    names=replace(
        eurobert.NAMES,
        mlp_norm="pre_feedforward_layernorm",
        attn_post_norm="post_attention_layernorm",
        mlp_post_norm="post_feedforward_layernorm",
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
    ),
    classifier=classifier,
    only={key: allowed for key, allowed in gemma3.FAMILY.only.items() if key != FLAG},
    needs={FLAG: True},
    without_effect=gemma3.FAMILY.without_effect,
)
