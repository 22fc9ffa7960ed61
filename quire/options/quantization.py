"""In which form weights are multiplied: as asked for, or as suits checkpoint and device."""

from __future__ import annotations

from quire.errors import NotSupported
from quire.options.checks import CHECKPOINTS
from quire.options.facts import DeviceFacts, WeightFacts
from quire.options.options import Options


def quantization_for(
    options: Options, facts: DeviceFacts, weights: WeightFacts, notes: list[str]
) -> str | None:
    """ "int8", the name of a checkpoint whose weights stay as stored, or None: plain weights."""
    if options.quantization == "none":
        return None
    if options.quantization == "int8":
        _check_int8(options, facts)
        return "int8"
    if facts.device == "cpu":
        return _on_cpu(options, weights, notes)
    return _on_gpu(options, facts, weights, notes)


def _check_int8(options: Options, facts: DeviceFacts) -> None:
    if facts.device != "cpu":
        raise NotSupported(
            "quantization='int8' is built for CPUs. Leave it out, or set device='cpu'."
        )
    if options.dtype not in (None, "float32"):
        raise NotSupported(
            f"quantization='int8' with dtype={options.dtype!r}: what is not in bytes is "
            "computed in float32. Leave dtype out."
        )


def _on_cpu(options: Options, weights: WeightFacts, notes: list[str]) -> str | None:
    if weights.int8_fits and options.dtype is None:
        notes.append(f"8-bit arithmetic: {weights.int8_fits} (override with quantization='none')")
        return "int8"
    if weights.are_rounded:
        notes.append(f"{weights.stored}: the weights are dequantised when they are loaded")
    return None


def _on_gpu(
    options: Options, facts: DeviceFacts, weights: WeightFacts, notes: list[str]
) -> str | None:
    stored = weights.stored
    if options.quantization in CHECKPOINTS:
        return _as_asked(options, notes)
    if not weights.are_rounded:
        return None
    if facts.fast_quantised and weights.kept_as and not _wants_plain(options):
        notes.append(
            f"{stored}: the weights stay in {weights.kept_as} (override with quantization='none')"
        )
        return stored
    notes.append(
        f"{stored}: the weights are dequantised when they are loaded "
        f"(quantization={stored!r} keeps them as they are)"
    )
    return None


def _as_asked(options: Options, notes: list[str]) -> str | None:
    """The kind of checkpoint that was asked for by name, whose weights stay as stored."""
    if options.batch_invariant:
        raise NotSupported(
            f"batch_invariant=True with quantization={options.quantization!r}: products with "
            "quantised weights add up in another order for another batch size. Leave "
            "quantization out: the weights are then dequantised when they are loaded."
        )
    if options.dtype == "float32":
        notes.append("dtype float32: the weights are dequantised when they are loaded")
        return None
    return options.quantization


def _wants_plain(options: Options) -> bool:
    """Whether an option asks for something that quantised weights do not support."""
    is_divided = options.tensor_parallel_size > 1
    asks_more = options.dtype == "float32" or options.batch_invariant or options.enable_lora
    return bool(asks_more or is_divided)
