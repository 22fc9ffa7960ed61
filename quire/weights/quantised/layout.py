"""How the quantised weights of a checkpoint are stored, as its config says. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quire.errors import UnsupportedModel
from quire.families.fields import Fields
from quire.weights.quantised.patterns import Names

# A kind determines the tensors of a weight; see stored.py and unpack.py.
Kind = Literal["awq", "gptq", "packed", "int", "fp8", "nf4", "mxfp4", "nvfp4", "ternary"]
# The methods that are read, for messages.
LAYOUTS = (
    "awq (gemm, 4 bits), gptq (2, 3, 4 or 8 bits), auto-round that packs as these, "
    "compressed-tensors, fp8, modelopt (FP8, MXFP8, NVFP4), mxfp4, bitsandbytes and bitnet"
)
WAY_OUT = (
    f"quire reads {LAYOUTS}; GGUF files; and weights that are not quantised. Take the same model "
    "in one of these."
)


@dataclass(frozen=True, slots=True)
class Layout:
    """How a module's weight is stored. `group`: columns with one scale; 0 means a whole row.
    `block`: rows and columns of fp8 with one scale."""

    kind: Kind
    bits: int
    group: int = 0
    symmetric: bool = True
    zeros_less_one: bool = False  # GPTQ's first format stores zero points minus one
    block: tuple[int, int] | None = None
    divides: bool = False  # codes are divided by the scale

    @property
    def has_product(self) -> bool:
        """Whether a GPU has a product for it; not for groups of 16, nor for three values."""
        return self.kind not in ("nvfp4", "ternary")

    @property
    def has_four_bits(self) -> bool:
        """Whether codes have 4 bits, and are numbers as they are: whole ones, or floats."""
        return self.bits == 4 and self.kind in ("awq", "gptq", "packed", "mxfp4")

    @property
    def has_expert_product(self) -> bool:
        return self.has_four_bits or self.kind == "fp8"


@dataclass(frozen=True, slots=True)
class Rule:
    """The layout of the modules that match `names`, or of all if that is None. No layout: these
    modules are not quantised."""

    names: Names | None
    layout: Layout | None


@dataclass(frozen=True, slots=True)
class Quantisation:
    """A checkpoint's quantisation by its config: the first rule that matches a module holds."""

    method: str  # as the option `quantization` names it
    source: str  # the file that says so
    rules: tuple[Rule, ...]

    def layout_of(self, module: str) -> Layout | None:
        for rule in self.rules:
            if rule.names is None or rule.names.match(module):
                return rule.layout
        return None


def refused(fields: Fields, key: str, why: str) -> UnsupportedModel:
    """An error that names the file, the field, its value, and what works."""
    value = str(fields.values.get(key))[:100]
    return UnsupportedModel(f"{fields.source}: {key} {value!r}: {why}. {WAY_OUT}")
