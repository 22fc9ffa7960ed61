"""The config of ModelOpt: one algorithm for all modules, or one for each of a list. No torch."""

from __future__ import annotations

from quire.families.fields import Fields
from quire.weights.quantised.layout import Layout, Rule, refused
from quire.weights.quantised.patterns import Names

MIXED = "MIXED_PRECISION"
_FP8, _NVFP4 = Layout("fp8", 8), Layout("nvfp4", 4, 16)
# The format of activations does not matter: they are rounded while computing, or not.
ALGORITHMS = {
    "FP8": _FP8,
    "FP8_PER_CHANNEL_PER_TOKEN": _FP8,
    "MXFP8": Layout("fp8", 8, block=(1, 32)),
    **dict.fromkeys(("NVFP4", "W4A16_NVFP4", "W4A8_NVFP4_FP8"), _NVFP4),
}


def read_modelopt(fields: Fields) -> tuple[Rule, ...]:
    """The rules of a config. Excluded modules are stored as plain numbers."""
    if fields.word("quant_algo", "FP8").upper() != MIXED:
        return (Rule(None, _layout(fields)),)
    layers = fields.values.get("quantized_layers")
    if not isinstance(layers, dict) or not all(isinstance(one, dict) for one in layers.values()):
        raise refused(fields, "quantized_layers", "it must be an object of modules")
    named: dict[Layout, list[str]] = {}
    for name, said in layers.items():
        layout = _layout(Fields(said, f"{fields.source}: quantized_layers.{name[:100]}"))
        named.setdefault(layout, []).append(name)
    return tuple(Rule(Names(tuple(names)), layout) for layout, names in named.items())


def _layout(fields: Fields) -> Layout:
    layout = ALGORITHMS.get(fields.word("quant_algo", "FP8").upper())
    if layout is None:
        raise refused(fields, "quant_algo", f"of ModelOpt {', '.join(ALGORITHMS)} are read")
    if layout == _NVFP4 and fields.values.get("group_size") not in (None, 0, _NVFP4.group):
        raise refused(fields, "group_size", f"NVFP4 has groups of {_NVFP4.group}")
    return layout
