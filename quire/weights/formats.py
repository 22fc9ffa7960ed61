"""How weights are stored in files: the formats, and where one tensor's bytes are. No torch.

A format packs `block` weights into `block_bytes` bytes; plain numbers are blocks of one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from quire.errors import CorruptModel


@dataclass(frozen=True, slots=True)
class StorageFormat:
    """One way to store weights. Q4_1: 32 weights in 20 bytes."""

    name: str
    block: int
    block_bytes: int


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor is: `num_bytes` at `offset` of the file `path`; `shape` has rows first.

    The bytes may hold more than the tensor: its rows are every `step`-th from `first` on. If
    `transposed`, the file has it transposed. `scales`: factors of its numbers, one for all or one
    for each index of the first dimension; empty means 1."""

    name: str
    shape: tuple[int, ...]
    format: StorageFormat
    path: Path
    offset: int
    num_bytes: int
    transposed: bool = False
    first: int = 0
    step: int = 1
    scales: tuple[float, ...] = ()

    @property
    def row_bytes(self) -> int:
        """Bytes of one index of the first dimension."""
        if self.is_scattered:
            return math.prod(self.shape[1:]) // self.format.block * self.format.block_bytes
        return self.num_bytes // self.shape[0]

    def rows(self, first: int, count: int, step: int = 1) -> StoredTensor:
        """Some rows of the tensor: every `step`-th from `first` on."""
        shape = (count, *self.shape[1:])
        if self.is_scattered or step > 1:
            at = self.first + first * self.step
            return replace(self, shape=shape, first=at, step=self.step * step)
        size = self.row_bytes
        return replace(self, shape=shape, offset=self.offset + first * size, num_bytes=count * size)

    @property
    def is_scattered(self) -> bool:
        """Whether its rows are not contiguous in the file."""
        return self.transposed or self.step > 1


def _formats(*sizes: tuple[str, int, int]) -> dict[str, StorageFormat]:
    return {name: StorageFormat(name, block, size) for name, block, size in sizes}


# The formats in which weights are read.
READABLE = _formats(
    ("F64", 1, 8),
    ("F32", 1, 4),
    ("F16", 1, 2),
    ("BF16", 1, 2),
    ("Q4_0", 32, 18),
    ("Q4_1", 32, 20),
    ("Q5_0", 32, 22),
    ("Q5_1", 32, 24),
    ("Q8_0", 32, 34),
    ("Q2_K", 256, 84),
    ("Q3_K", 256, 110),
    ("Q4_K", 256, 144),
    ("Q5_K", 256, 176),
    ("Q6_K", 256, 210),
    ("IQ4_NL", 32, 18),
    ("IQ4_XS", 256, 136),
    ("MXFP4", 32, 17),
    ("TQ1_0", 256, 54),
    ("TQ2_0", 256, 66),
    ("IQ1_S", 256, 50),
    ("IQ1_M", 256, 56),
    ("IQ2_XXS", 256, 66),
    ("IQ2_XS", 256, 74),
    ("IQ2_S", 256, 82),
    ("IQ3_XXS", 256, 98),
    ("IQ3_S", 256, 110),
    ("NVFP4", 64, 36),
    ("Q1_0", 128, 18),
)

# GGUF numbers its formats. Those without an entry in READABLE are refused by name; some are
# obsolete but still in old files. Q2_0 has blocks of 64 or 128, depending on the tool that wrote
# it.
_GGUF_NAMES = (
    "F32 F16 Q4_0 Q4_1 Q4_2 Q4_3 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K "
    "IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 "
    "Q4_0_4_4 Q4_0_4_8 Q4_0_8_8 TQ1_0 TQ2_0 IQ4_NL_4_4 IQ4_NL_4_8 IQ4_NL_8_8 MXFP4 NVFP4 Q1_0 "
    "Q2_0"
)
GGUF_TYPES = dict(enumerate(_GGUF_NAMES.split()))

# safetensors also has integers and other types in which no weight may be stored.
SAFETENSORS_DTYPES = {
    **{name: READABLE[name] for name in ("F64", "F32", "F16", "BF16")},
    **_formats(("BOOL", 1, 1), ("U8", 1, 1), ("I8", 1, 1), ("U16", 1, 2), ("I16", 1, 2)),
    **_formats(("U32", 1, 4), ("I32", 1, 4), ("U64", 1, 8), ("I64", 1, 8), ("C64", 1, 8)),
    **_formats(("F8_E5M2", 1, 1), ("F8_E4M3", 1, 1), ("F8_E8M0", 1, 1)),
    **_formats(("F8_E4M3FNUZ", 1, 1), ("F8_E5M2FNUZ", 1, 1)),
    **_formats(("F4", 2, 1), ("F6_E2M3", 4, 3), ("F6_E3M2", 4, 3)),
}


def num_bytes_of(shape: tuple[int, ...], format: StorageFormat, *, row: int, what: str) -> int:
    """The bytes of a tensor in a format; `row` contiguous weights must be whole blocks."""
    if row % format.block:
        raise CorruptModel(
            f"{what} {shape}: {row:,} weights do not divide into {format.name} blocks "
            f"of {format.block}"
        )
    return math.prod(shape) // format.block * format.block_bytes


def check_no_overlap(tensors: list[StoredTensor]) -> None:
    """Refuse a file in which two tensors claim the same bytes."""
    ordered = sorted(tensors, key=lambda tensor: (tensor.offset, tensor.num_bytes))
    for before, after in zip(ordered, ordered[1:], strict=False):
        if before.offset + before.num_bytes > after.offset:
            raise CorruptModel(
                f"{after.path.name}: tensors {before.name!r} and {after.name!r} overlap: one ends "
                f"at byte {before.offset + before.num_bytes}, the other begins at {after.offset}"
            )
