"""Sliding windows in a GGUF file, and whether its family computes them. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.families.fields import Fields
from quire.spec import ModelSpec
from quire.weights.gguf_metadata import shortest


def read_window(fields: Fields, arch: str) -> int | None:
    """The window of layers; None if it covers all positions."""
    max_len = fields.count(f"{arch}.context_length")
    said = fields.values.get(key := f"{arch}.attention.sliding_window")
    if isinstance(said, int) and said == 0:
        return None
    window = fields.count(key, max_len)
    return window if window < max_len else None


def layer_types(fields: Fields, config: Mapping[str, Any]) -> dict[str, list[str]]:
    """Which layers have the window, if the file has it: a flag for each layer, or a period, whose
    last layer has none. Empty if the family decides."""
    arch, count = fields.word("general.architecture"), config["num_hidden_layers"]
    key = f"{arch}.attention.sliding_window_pattern"
    said = fields.values.get(key)
    if said is None:
        return {}
    if isinstance(said, bool):  # the same for all layers
        said = [said] * count
    if isinstance(said, int) and said > 1:
        said = [(i + 1) % said != 0 for i in range(count)]
    if not isinstance(said, list) or len(said) != count:
        raise fields.wrong(key, f"a number above 1, or a mark for each of {count} layers")
    return {"layer_types": ["sliding_attention" if one else "full_attention" for one in said]}


def check_windows(fields: Fields, config: Mapping[str, Any], spec: ModelSpec) -> None:
    """Refuse a file whose layers with windows are not as its family computes them."""
    arch = fields.word("general.architecture")
    kinds = ["full_attention" if w is None else "sliding_attention" for w in spec.windows]
    said = config.get("layer_types")
    if said is not None and {*said} <= {"full_attention", "sliding_attention"} and said != kinds:
        raise fields.unsupported(
            f"{arch}.attention.sliding_window_pattern", f"that of the family {spec.family}"
        )
    theta = fields.optional(key := f"{arch}.rope.freq_base_swa")
    turned = [one.attention.rope for one in spec.layers if one.attention.window is not None]
    if theta is not None and any(r is not None and r.theta != shortest(theta) for r in turned):
        raise fields.unsupported(key, f"that of all layers in the family {spec.family}")
