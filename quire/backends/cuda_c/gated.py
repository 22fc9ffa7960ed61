"""Products of gate and up on Hopper with the gate inside, by gated.cu, for many rows.

The vendor's library multiplies as fast, but what it makes must be read and written once more. With
fewer rows than these tiles are good for, products of few rows (plain.py) or the library's are used.
A tile changes no bit of a row.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from quire.backends.cuda_c.launch import CudaKernel
from quire.backends.cuda_c.products import (
    CONTROL,
    DEPTH,
    EIGHT,
    SHARED,
    load_onto,
    map_of,
    product_macros,
)
from quire.backends.plain import PlainLinear
from quire.base.notes import note
from quire.layer_plan import Activation

ACTIVATIONS: tuple[Activation, ...] = ("silu", "gelu_tanh")
_DTYPES = (torch.bfloat16, torch.float16)
_PAIR = 256  # rows of the two tiles of a cluster
_ROWS = 128  # of a tile
_LINES = (256, 224, 192, 128)  # of a tile
_THREADS = 384
_GIVEN = struct.Struct("2Q3i4x")  # as gated.cu has it
# Measured by benchmarks/gpu_gated.py: a step of a tile takes as long as so many lines more, and
# below this share of what tiles of 256 lines would do on all cores a launch for the gate is faster.
_STEP_LINES, _WORTH = 27, 0.8
_MANY_PAIRS = 8  # with so many, the widest tile is best or nearly so


@dataclass(frozen=True, slots=True)
class GatedTile:
    """What a block computes at a time: so many lines, half of them gates, for 128 rows."""

    lines: int

    @property
    def stages(self) -> int:
        """As many as fit."""
        return (SHARED - CONTROL - self._left_bytes) // self._stage_bytes

    @property
    def shared_bytes(self) -> int:
        return CONTROL + self.stages * self._stage_bytes + self._left_bytes

    @property
    def _stage_bytes(self) -> int:
        return 2 * DEPTH * (_ROWS + self.lines)

    @property
    def _left_bytes(self) -> int:
        """Of sums that wait to be finished."""
        return _ROWS * (2 * self.lines + 16)

    def count(self, num_lines: int, num_rows: int) -> int:
        """The pairs of tiles that it takes."""
        return -(-num_rows // _PAIR) * -(-num_lines // self.lines)


@cache
def gated_tile(num_lines: int, num_rows: int, clusters: int) -> GatedTile | None:
    """The tile for a weight of so many lines, on a device with room for so many clusters of two
    blocks; None where a launch for the gate is faster, since too many clusters would be idle in the
    last round."""

    def cost(tile: GatedTile) -> int:
        rounds = -(-tile.count(num_lines, num_rows) // clusters)
        return rounds * (tile.lines + _STEP_LINES)

    widths = _LINES[:1] if num_rows > (_MANY_PAIRS - 1) * _PAIR else _LINES
    tile = min(map(GatedTile, widths), key=cost)
    widest = _LINES[0]
    least = num_rows * num_lines / (_PAIR * widest * clusters) * (widest + _STEP_LINES)
    return tile if least >= _WORTH * cost(tile) else None


@cache
def clusters_of(device: torch.device) -> int:
    """The clusters of two blocks that a device has room for."""
    return torch.cuda.get_device_properties(device).multi_processor_count // 2


@cache
def kernel_of(tile: GatedTile, dtype: torch.dtype, activation: Activation) -> CudaKernel:
    """The kernel, which is the same for all shapes."""
    return CudaKernel(
        "gated.cu",
        "multiply",
        {
            **product_macros(tile.lines),
            "STAGES": tile.stages,
            "HALF": int(dtype == torch.float16),
            "GELU": int(activation == "gelu_tanh"),
        },
        threads=_THREADS,
        shared=tile.shared_bytes,
        cluster=2,
        overlaps=True,
    )


@dataclass(frozen=True, slots=True)
class GatedKind:
    """A product of gate and up: lines and columns of its weight, and what opens the gate."""

    num_lines: int
    columns: int
    dtype: torch.dtype
    activation: Activation

    def is_tiled(self, device: torch.device) -> bool:
        """Whether gated.cu computes it: on Hopper, with sizes of whole eights."""
        if device.type != "cuda" or torch.cuda.get_device_capability(device) != (9, 0):
            return False
        whole = self.num_lines % (2 * EIGHT) == 0 and self.columns % EIGHT == 0
        return whole and self.dtype in _DTYPES and self.activation in ACTIVATIONS


def load_kernels(kinds: Iterable[GatedKind], device: torch.device) -> bool:
    """Load the kernels for these products, compiled in parallel; whether they could be loaded. If
    not, that is noted once."""
    wanted: dict[tuple[GatedTile, torch.dtype, Activation], None] = {}
    for kind in kinds:
        for pairs in range(1, _MANY_PAIRS + 1):
            tile = gated_tile(kind.num_lines, pairs * _PAIR, clusters_of(device))
            if tile is not None:
                wanted[tile, kind.dtype, kind.activation] = None
        wanted[GatedTile(_LINES[0]), kind.dtype, kind.activation] = None
    return load_onto(device, [partial(kernel_of, *one) for one in wanted], _note_missing)


@cache
def _note_missing(why: str) -> None:
    note(f"Gates of many rows have a launch of their own, which is slower: {why}")


def multiply_gated(
    weight: Tensor, x: Tensor, bias: Tensor | None, activation: Activation, tile: GatedTile
) -> Tensor:
    """activation(gate) * up, where x weight^T + bias is gate, then up."""
    x, (lines, columns), count = x.contiguous(), weight.shape, len(x)
    out = x.new_empty(count, lines // 2)
    given = _GIVEN.pack(
        0 if bias is None else bias.data_ptr(), out.data_ptr(), count, lines // 2, columns
    )
    blocks = 2 * min(clusters_of(x.device), tile.count(lines, count))
    maps = map_of(x, _ROWS), map_of(weight, tile.lines // 2)
    kernel_of(tile, x.dtype, activation)((blocks, 1, 1), *maps, given)
    return out


@dataclass(frozen=True, slots=True)
class GatedRows:
    """activation(gate) * up of a product with a plain weight, for any number of rows: in one launch
    where that is faster, and otherwise by `apart`."""

    product: PlainLinear
    activation: Activation
    apart: Callable[[Tensor], Tensor]

    @staticmethod
    def of(
        product: PlainLinear, activation: Activation, apart: Callable[[Tensor], Tensor]
    ) -> GatedRows | None:
        """None if this weight or activation has no such kernel."""
        weight, (lines, columns) = product.weight, product.weight.shape
        kind = GatedKind(lines, columns, weight.dtype, activation)
        return GatedRows(product, activation, apart) if _has_kernels(kind, weight.device) else None

    def __call__(self, x: Tensor) -> Tensor:
        weight, bias = self.product.weight, self.product.bias
        tile = gated_tile(len(weight), len(x), clusters_of(x.device))
        if tile is None:
            return self.apart(x)
        return multiply_gated(weight, x, bias, self.activation, tile)


@cache  # layers are alike
def _has_kernels(kind: GatedKind, device: torch.device) -> bool:
    return kind.is_tiled(device) and load_kernels([kind], device)
