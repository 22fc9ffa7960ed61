"""Whether what an option says of a checkpoint's weights is what its files say."""

from __future__ import annotations

from quire.errors import InvalidOption, NotSupported
from quire.options import Options
from quire.options.checks import CHECKPOINTS
from quire.weights.source import ModelFiles


def stored_method(files: ModelFiles) -> str:
    """What a model's weights were rounded to before they came here; "": they were not."""
    if files.kind == "gguf":
        return "gguf"
    return "" if files.quantisation is None else files.quantisation.method


def all_fp8(files: ModelFiles) -> bool:
    """Whether whatever is quantised of a model is in fp8."""
    rules = () if files.quantisation is None else files.quantisation.rules
    kinds = {rule.layout.kind for rule in rules if rule.layout is not None}
    return kinds == {"fp8"}


def check_quantisation(files: ModelFiles, options: Options) -> None:
    """Refuse an option that names another layout than the checkpoint has."""
    if "quantization_config" in (options.hf_overrides or {}):
        raise NotSupported(
            "hf_overrides with a quantization_config: how the tensors were rounded is a fact about "
            "them. Leave it out."
        )
    stored, asked = stored_method(files), options.quantization
    if asked in CHECKPOINTS and asked != stored:
        is_ = f"is {stored}" if stored else "is not quantised"
        raise InvalidOption(
            f"quantization={asked!r}: the checkpoint {is_}, and weights are not rounded to "
            f"{asked} here. Leave it out.",
            parameter="quantization",
            value=asked,
        )
