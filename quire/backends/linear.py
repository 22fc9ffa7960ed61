"""Products with a weight: the protocol on every device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from quire.errors import NotSupported
from quire.layer_plan import Activation

if TYPE_CHECKING:
    from torch import Tensor


class WeightRows(Protocol):
    """A weight that can be replaced in place."""

    def write_rows(self, first: int, rows: Tensor) -> None:
        """Overwrite rows first, first + 1, ... of the weight, from any dtype and device."""

    def read_rows(self, first: int, count: int) -> Tensor:
        """Rows first, first + 1, ... of the weight as it is used, in float32 on the host. They may
        be the weight's own memory: for reading alone."""

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that it keeps on its device: a single one if the weight is a plain tensor."""


class LinearOp(WeightRows, Protocol):
    """A product with a weight, which it stores in a layout of its own."""

    def __call__(self, x: Tensor, /) -> Tensor:
        """[T, K] -> [T, N]"""


@dataclass(frozen=True, slots=True)
class Gate:
    """What follows a product of gate and up: the activation, the op that computes
    activation(gate) * up (Kernels.gate), and what makes one op of both (Kernels.gated)."""

    activation: Activation
    opened: Callable[[Tensor], Tensor]
    behind: Callable[[LinearOp], Callable[[Tensor], Tensor]]


@dataclass(slots=True)
class GatedProduct:
    """A product of gate and up, followed by activation(gate) * up."""

    product: Callable[[Tensor], Tensor]
    opened: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        return self.opened(self.product(x))


KEPT = "weights that are kept quantised cannot be exchanged: make the LLM with quantization='none'."


def is_kept(op: object) -> bool:
    """Whether the weight of a product, or of a layer with one, stays quantised."""
    return bool(getattr(getattr(op, "multiply", op), "stays_quantised", False))


class KeptQuantised:
    """For products with quantised weights: replacing weights is refused."""

    stays_quantised = True

    def write_rows(self, first: int, rows: Tensor) -> None:
        raise NotSupported(KEPT)

    def read_rows(self, first: int, count: int) -> Tensor:
        raise NotSupported(KEPT)
