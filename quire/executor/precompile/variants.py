"""A kernel and what it is compiled for, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SOME = 2  # stands for an integer that does not change the variant
A_FRACTION = 0.5  # the same for a float


@dataclass(frozen=True, slots=True)
class ElementType:
    """The part of torch.dtype that kernels use."""

    name: str

    @property
    def itemsize(self) -> int:
        return {"float32": 4, "bfloat16": 2, "float16": 2}[self.name]

    def __str__(self) -> str:
        return f"torch.{self.name}"


@dataclass(frozen=True, slots=True)
class Pointer:
    """A pointer to this dtype with 16-byte alignment: all that Triton reads of a tensor."""

    dtype: str

    def data_ptr(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel, arguments with the types of a real call, and its constants."""

    kernel: Any
    given: tuple[Pointer | int | float, ...]
    constants: dict[str, Any]

    def compile(self) -> Any:
        """Compile into Triton's cache, for its active driver's device. Returns the kernel."""
        return self.kernel.warmup(*self.given, grid=(1,), **self.constants)


I32, I64, F32, F64, U8 = (
    Pointer(name) for name in ("int32", "int64", "float32", "float64", "uint8")
)
