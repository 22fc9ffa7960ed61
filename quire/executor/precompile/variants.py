"""A kernel with what it is compiled for, written down without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SOME = 2  # of an integer that no variant goes by
A_FRACTION = 0.5  # nor by any fraction


@dataclass(frozen=True, slots=True)
class ElementType:
    """What kernels ask of a torch.dtype."""

    name: str

    @property
    def itemsize(self) -> int:
        return {"float32": 4, "bfloat16": 2, "float16": 2}[self.name]

    def __str__(self) -> str:
        return f"torch.{self.name}"


@dataclass(frozen=True, slots=True)
class Pointer:
    """To numbers of this type, at an address that 16 divides: what Triton asks of a tensor."""

    dtype: str

    def data_ptr(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel, arguments of the types it is called with, and its constants."""

    kernel: Any
    given: tuple[Pointer | int | float, ...]
    constants: dict[str, Any]

    def compile(self) -> Any:
        """Into Triton's cache, for the device of its active driver; what it made of the kernel."""
        return self.kernel.warmup(*self.given, grid=(1,), **self.constants)


I32, I64, F32, F64, BOOL, U8 = (
    Pointer(name) for name in ("int32", "int64", "float32", "float64", "bool", "uint8")
)
