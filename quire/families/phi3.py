"""Phi-3 and Phi-4: q, k, v stored in one matrix, gate and up in another; rope may be on a part of
each head, and may be longrope. No torch."""

from __future__ import annotations

from quire.families.family import Family, LayerNames, Name, sizes
from quire.families.fields import Fields
from quire.families.reading import read_heads, read_plain_decoder, read_window
from quire.families.rope_config import read_rope
from quire.spec import ModelSpec

ORIGINAL_LEN = 4096  # default
# Older files say "su" or "yarn" for longrope.
ROPE_KINDS = {"longrope": "longrope", "su": "longrope", "yarn": "longrope"}


def read(fields: Fields) -> ModelSpec:
    heads = read_heads(fields)
    rope = read_rope(fields, heads.head_dim, kinds=ROPE_KINDS, original=ORIGINAL_LEN, partial=True)
    window = read_shorter_window(fields)
    return read_plain_decoder(fields, heads, rope=rope, norm_eps=1e-5, window=window)


def read_shorter_window(fields: Fields) -> int | None:
    """The window of all layers, None if it covers any text."""
    window = read_window(fields, unsaid=None)
    covers = window is not None and window >= fields.count("max_position_embeddings")
    return None if covers else window


FAMILY = Family(
    name="phi3",
    architectures=("Phi3ForCausalLM",),
    read=read,
    unsaid=sizes(32_064, 3072, 8192, 32, 32, 4096),
    gguf="phi3",
    gguf_windows=True,
    partial_rotary=True,
    names=LayerNames(
        qkv=(Name("self_attn.qkv_proj", "attn_qkv"),),
        gate_up=(Name("mlp.gate_up_proj", "ffn_up"),),
    ),
    without_effect={"resid_pdrop": "training", "embd_pdrop": "training"},
)
