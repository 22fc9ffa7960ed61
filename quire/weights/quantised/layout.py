"""How the quantised weights of a checkpoint are stored, as its config says. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quire.errors import UnsupportedModel
from quire.families.fields import Fields
from quire.weights.quantised.patterns import Names

# Each kind names what tensors a weight consists of; see stored.py and unpack.py.
Kind = Literal["awq", "gptq", "packed", "int", "fp8", "nf4", "mxfp4", "nvfp4"]
# For people: the methods that are read.
LAYOUTS = (
    "awq (gemm, 4 bits), gptq (2, 3, 4 or 8 bits), auto-round that packs as these, "
    "compressed-tensors, fp8, modelopt (FP8, MXFP8, NVFP4), mxfp4 and bitsandbytes"
)
WAY_OUT = (
    f"quire reads {LAYOUTS}; GGUF files; and weights that are not quantised. Take the same model "
    "in one of these."
)


@dataclass(frozen=True, slots=True)
class Layout:
    """How a module's weight is stored. `group` is how many columns share a scale: 0 means all of a
    row. `block`: rows and columns of fp8 that share one."""

    kind: Kind
    bits: int
    group: int = 0
    symmetric: bool = True
    zeros_less_one: bool = False  # GPTQ's first format keeps every zero point less one
    block: tuple[int, int] | None = None

    @property
    def has_product(self) -> bool:
        """Whether a GPU multiplies with it as it is stored; not in groups of 16."""
        return self.kind != "nvfp4"


@dataclass(frozen=True, slots=True)
class Rule:
    """The layout of the modules that `names` mean, of all where there are none; no layout: these
    are not quantised."""

    names: Names | None
    layout: Layout | None


@dataclass(frozen=True, slots=True)
class Quantisation:
    """What a checkpoint's config says of its weights: the first rule that takes a module holds."""

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
