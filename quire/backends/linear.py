"""Products with a weight, as every device makes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from quire.errors import NotSupported
from quire.layer_plan import Activation

if TYPE_CHECKING:
    from torch import Tensor


class WeightRows(Protocol):
    """A weight that can be exchanged where it lies."""

    def write_rows(self, first: int, rows: Tensor) -> None:
        """Rows first, first + 1, ... of the weight become these, of any type and device."""

    def tensors(self) -> tuple[Tensor, ...]:
        """What it keeps on its device: one tensor where the weight lies there as it came."""


class LinearOp(WeightRows, Protocol):
    """A product with a weight, which it keeps in its own way."""

    def __call__(self, x: Tensor, /) -> Tensor:
        """[T, K] -> [T, N]"""


@dataclass(frozen=True, slots=True)
class Gate:
    """What stands behind a product of gate and up: its activation, and the op that has it
    (Kernels.gate)."""

    activation: Activation
    opened: Callable[[Tensor], Tensor]

    def behind(self, product: Callable[[Tensor], Tensor]) -> GatedProduct:
        return GatedProduct(product, self.opened)


@dataclass(slots=True)
class GatedProduct:
    """What a gate lets through of a product."""

    product: Callable[[Tensor], Tensor]
    opened: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        return self.opened(self.product(x))


class KeptQuantised:
    """What products with weights that stay quantised say of other weights."""

    def write_rows(self, first: int, rows: Tensor) -> None:
        raise NotSupported(
            "weights that are kept quantised cannot be exchanged: make the LLM with "
            "quantization='none'."
        )
