"""Rotary positions in a GGUF file, as a config says them. No torch."""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np

from quire.errors import CorruptModel, UnsupportedModel
from quire.families.by_kind import STILL_PAIRS
from quire.families.family import Family
from quire.families.fields import Fields
from quire.spec import ModelSpec
from quire.weights.gguf_file import GgufFile

_FREQS = "rope_freqs.weight"
_STILL = 1e29  # a factor from here on leaves a pair as it is


def still_pairs(file: GgufFile) -> dict[str, int]:
    """How many pairs of a head do not rotate in some layers: files divide their frequencies by a
    number so large that no angle is left."""
    if _FREQS not in file.tensors:
        return {}
    still = [factor >= _STILL for factor in _factors(file, _FREQS)]
    return {f"{file.metadata.get('general.architecture')}.{STILL_PAIRS}": sum(still)}


def rope_scaling(
    file: GgufFile, fields: Fields, arch: str, family: Family
) -> dict[str, Any] | None:
    said = Fields(
        {
            key.removeprefix(f"{arch}.rope.scaling."): value
            for key, value in fields.values.items()
            if key.startswith(f"{arch}.rope.scaling.")
        },
        f"{fields.source}, {arch}.rope.scaling",
    )
    kind = said.word("type", "linear")
    if "rope_factors_short.weight" in file.tensors:
        return _longrope(file, said)
    if kind == "yarn":
        return _yarn(said, family)
    if said.positive("attn_factor", 1.0) != 1.0:
        raise UnsupportedModel(f"{said.source}: attn_factor without YaRN is not supported")
    if kind not in ("none", "linear"):
        return {"rope_type": kind, "factor": said.positive("factor")}
    # Older files have another key for it; zero means that it is not set.
    older = fields.not_negative(f"{arch}.rope.scale_linear", 1.0)
    factor = said.not_negative("factor", older) or 1.0
    return None if kind == "none" or factor == 1.0 else {"rope_type": kind, "factor": factor}


def _longrope(file: GgufFile, said: Fields) -> dict[str, Any]:
    short, long = (_factors(file, f"rope_factors_{one}.weight") for one in ("short", "long"))
    return {
        "rope_type": "longrope",
        "short_factor": list(short),
        "long_factor": list(long),
        "original_max_position_embeddings": said.values.get("original_context_length"),
        # If missing, Transformers computes it from the lengths; converters write the result.
        "attention_factor": said.values.get("attn_factor"),
    }


def _yarn(said: Fields, family: Family) -> dict[str, Any]:
    for key, neutral in {"yarn_ext_factor": 1.0, "yarn_log_multiplier": 0.0}.items():
        if f"rope.scaling.{key}" in family.gguf_reads:
            continue  # the family reads it
        if said.not_negative(key, neutral) != neutral:
            raise UnsupportedModel(f"{said.source}: {key} other than {neutral:g} is not supported")
    factor = said.positive("factor")
    # Converters write Transformers' attention_factor; llama.cpp's own factor multiplies it.
    usual = 1.0 if factor <= 1 else 0.1 * log(factor) + 1.0
    attention = said.positive("yarn_attn_factor", usual) * said.positive("attn_factor", 1.0)
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": said.values.get("original_context_length"),
        "attention_factor": attention,
        "beta_fast": said.values.get("yarn_beta_fast"),
        "beta_slow": said.values.get("yarn_beta_slow"),
    }


def freq_factors(file: GgufFile, spec: ModelSpec) -> tuple[float, ...] | None:
    if _FREQS not in file.tensors:
        return None
    factors, pairs = _factors(file, _FREQS), spec.rope.dims // 2
    if any(factor >= _STILL for factor in factors):  # which the family has read
        if set(factors) - {1.0, max(factors)} or sorted(factors) != list(factors):
            raise UnsupportedModel(f"{file.path.name}: {_FREQS} has factors besides pairs at rest")
        return None
    if len(factors) != pairs:
        raise CorruptModel(
            f"{file.path.name}: rope_freqs.weight has {len(factors)} factors; expected {pairs}"
        )
    return factors


def _factors(file: GgufFile, name: str) -> tuple[float, ...]:
    """The divisors of the frequencies of pairs."""
    stored = file.tensors.get(name)
    if stored is None or stored.format.name != "F32" or len(stored.shape) != 1:
        found = "missing" if stored is None else f"{stored.shape} in {stored.format.name}"
        raise CorruptModel(f"{file.path.name}: {name} is {found}; expected a vector in F32")
    factors = file.raw(name).view("<f4")
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        raise CorruptModel(f"{file.path.name}: {name} holds factors that are not > 0")
    return tuple(float(factor) for factor in factors)
