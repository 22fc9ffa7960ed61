"""Checks the option `quantization` against how a checkpoint's weights are stored."""

from __future__ import annotations

from quire.backends.quantised import SMALL_GROUPS, WIDE_GROUP
from quire.errors import InvalidOption, NotSupported
from quire.options import Options, WeightFacts
from quire.options.checks import CHECKPOINTS
from quire.weights.quantised.layout import Layout, Quantisation
from quire.weights.source import ModelFiles


def weight_facts(files: ModelFiles) -> WeightFacts:
    """How a model's weights are quantised in its files, and the form that they can stay in."""
    if files.kind == "gguf":
        return WeightFacts("gguf")
    said = files.quantisation
    return WeightFacts() if said is None else WeightFacts(said.method, _kept_as(said))


def _kept_as(said: Quantisation) -> str:
    """ "fp8", "4 bits" if the kernels of backends/cuda_c can multiply with all, else ""."""
    layouts = [rule.layout for rule in said.rules if rule.layout is not None]
    if layouts and all(layout.kind == "fp8" for layout in layouts):
        return "fp8"
    return "4 bits" if layouts and all(map(_is_packed, layouts)) else ""


def _is_packed(layout: Layout) -> bool:
    known = layout.group in (*SMALL_GROUPS, 0) or layout.group % WIDE_GROUP == 0
    return layout.has_four_bits and known


def check_quantisation(files: ModelFiles, options: Options) -> None:
    """Refuse an option that names another format than the checkpoint's."""
    if "quantization_config" in (options.hf_overrides or {}):
        raise NotSupported(
            "hf_overrides with a quantization_config: how the tensors were rounded is a fact about "
            "them. Leave it out."
        )
    stored, asked = weight_facts(files).stored, options.quantization
    if asked in CHECKPOINTS and asked != stored:
        is_ = f"is {stored}" if stored else "is not quantised"
        raise InvalidOption(
            f"quantization={asked!r}: the checkpoint {is_}, and weights are not rounded to "
            f"{asked} here. Leave it out.",
            parameter="quantization",
            value=asked,
        )
