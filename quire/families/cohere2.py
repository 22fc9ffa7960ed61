"""Cohere2: one LayerNorm before both branches; three of four layers have a window and rope (with
interleaved pairs), the fourth has neither. No torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.reading import (
    read_parallel,
    read_window,
    windows_in_turn,
    with_pairs_side_by_side,
)
from quire.spec import ModelSpec

PERIOD = 4


def read(fields: Fields) -> ModelSpec:
    period = fields.count("sliding_window_pattern", PERIOD)
    windows = windows_in_turn(fields, read_window(fields), period)
    spec = read_parallel(fields, windows=windows)
    spec = spec.with_attention(lambda one: one if one.window else replace(one, rope=None))
    return with_pairs_side_by_side(spec)


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    return {
        "logit_scale": fields.positive("cohere2.logit_scale"),
        "sliding_window": fields.count("cohere2.attention.sliding_window"),
    }


FAMILY = Family(
    name="cohere2",
    architectures=("Cohere2ForCausalLM",),
    read=read,
    unsaid=sizes(256_000, 8192, 22_528, 40, 64, 8192),
    gguf="cohere2",
    gguf_windows=True,
    gguf_words=_gguf_words,
    gguf_reads=("logit_scale",),
)
