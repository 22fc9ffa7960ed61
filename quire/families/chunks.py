"""Attention within chunks of a text, which mean nothing to a text that is no longer than one. No
torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from quire.errors import UnsupportedModel
from quire.families.fields import Fields
from quire.families.reading import num_layers
from quire.spec import ModelSpec

CHUNKED, FULL = "chunked_attention", "full_attention"


def with_chunks(spec: ModelSpec, fields: Fields, usual: Sequence[bool]) -> ModelSpec:
    """The spec with the chunks of its layers. `usual`: whether each layer is one with chunks, where
    the config does not list the kinds of layers."""
    kinds = fields.values.get("layer_types") or [CHUNKED if one else FULL for one in usual]
    if not isinstance(kinds, list) or len(kinds) != num_layers(fields):
        raise fields.wrong("layer_types", f"a list of {num_layers(fields)} names")
    for kind in kinds:
        if kind not in (CHUNKED, FULL):
            raise UnsupportedModel(f"{fields.source}: layer type {str(kind)[:40]!r}")
    fields.refuse_null("attention_chunk_size")
    chunk = fields.count("attention_chunk_size", 8192)
    if spec.max_model_len <= chunk:
        return spec
    own = (chunk if kind == CHUNKED else None for kind in kinds)
    pairs = zip(spec.layers, own, strict=True)
    layers = (replace(o, attention=replace(o.attention, chunk=c)) for o, c in pairs)
    return replace(spec, layers=tuple(layers))


def chunk_of(spec: ModelSpec) -> int:
    """The size of the chunks in which some layers see a text; 0 if there are none."""
    return next((one.chunk for one in spec.attentions if one.chunk is not None), 0)


def within_a_chunk(spec: ModelSpec) -> ModelSpec:
    """The spec for texts in which every token is in the first chunk."""
    bare = spec.with_attention(lambda one: replace(one, chunk=None))
    return replace(bare, max_model_len=chunk_of(spec))


_PERIOD, _WINDOW = "interleave_moe_layer_step", "attention.sliding_window"
_BARE = 128  # experts: the one size whose heads are not normed


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    """What GGUF metadata say of these models. They leave out chunks, growth and norms, which the
    programs that run them know by heart, and say a window of 0 for others without chunks."""
    arch = fields.word("general.architecture")
    if fields.values.get(f"{arch}.{_WINDOW}") is not None:
        raise fields.unsupported(f"{arch}.{_WINDOW}", "left out, as models with chunks have it")
    return {
        "intermediate_size_mlp": config["intermediate_size"],
        "intermediate_size": config["moe_intermediate_size"],
        "interleave_moe_layer_step": fields.count(f"{arch}.{_PERIOD}", 1),
        "use_qk_norm": config["num_experts"] != _BARE,
    }


# What a Family says of these files.
IN_GGUF: dict[str, Any] = {
    "gguf_experts": True,
    "gguf_words": _gguf_words,
    "gguf_reads": (_PERIOD,),
}
