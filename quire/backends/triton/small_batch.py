"""Matrix products of few rows: the layers of a decode step in five launches.

With few rows a product costs what reading its weights costs, and launches weigh as much as
work. So whatever stands between two products belongs to one of them. What adds to the residual
stream leaves the sums of squares of what it wrote, a tile at a time; whoever reads the stream
adds those up while it multiplies, and norms its sums (which float16 might not hold: bfloat16 and
float32 only). Gate and up are multiplied by one program, which opens the one with the other.

The stream of one step: `embed`, then per layer `normed` (qkv), attention, `add`, `gated`, `add`,
and `normed` for the logits. Where the GPU can, each product is launched while the kernel before it
ends (jit.waiting).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import triton

from quire.backends.triton.jit import overlapping, power_of_two, precision, waiting
from quire.backends.triton.small_batch_kernels import embed_rows, multiply
from quire.layer_plan import mlp_of
from quire.spec import ModelSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Rows that kernels are compiled for: as many as tl.dot takes at least. With more, the vendor's
# library is faster.
MOST_ROWS = 16
LEAST_COLUMNS = 16
# Tiles were measured on a GPU of so many cores (benchmarks/gpu_products.py).
_CORES = 132


@dataclass(frozen=True, slots=True)
class ThinTile:
    """`columns` of the product, `depth` of the sum at a time. Cutting the sum, too, to have more
    programs where columns are few, was slower: adding up the parts takes longer than it saves."""

    columns: int
    depth: int
    warps: int
    stages: int

    def num_bytes(self, dtype: torch.dtype) -> int:
        """Shared memory that the rows and weights on their way take."""
        return self._buffer_bytes(dtype) * self.stages

    def least_bytes(self, dtype: torch.dtype) -> int:
        """What a program is sure to take of it: one stage is in registers."""
        return self._buffer_bytes(dtype) * (self.stages - 1)

    def _buffer_bytes(self, dtype: torch.dtype) -> int:
        return (MOST_ROWS + self.columns) * self.depth * dtype.itemsize


@dataclass(frozen=True, slots=True)
class Product:
    """What one kind of product is compiled for."""

    outer: int  # columns that come out: half the lines of the weight, if gated
    inner: int
    dtype: torch.dtype
    normed: bool
    gated: bool
    has_bias: bool

    @property
    def num_lines(self) -> int:
        """Of the weight."""
        return 2 * self.outer if self.gated else self.outer

    def num_tiles(self, tile: ThinTile) -> int:
        per_tile = tile.columns // 2 if self.gated else tile.columns
        return -(-self.outer // per_tile)

    def constants(self, tile: ThinTile) -> dict[str, Any]:
        # Whoever wrote the stream may have had smaller tiles than this product.
        most_squares = triton.cdiv(self.inner, LEAST_COLUMNS)
        return {
            "INNER": self.inner,
            "OUTER": self.outer,
            "ROWS": MOST_ROWS,
            "COLUMNS": tile.columns,
            "DEPTH": tile.depth,
            "SQUARES": power_of_two(most_squares) if self.normed else 1,
            "EVEN": self.inner % tile.depth == 0,
            "NORMED": self.normed,
            "GATED": self.gated,
            "ADDS": not self.normed,
            "HAS_BIAS": self.has_bias,
            "PRECISION": precision(self.dtype),
            "num_warps": tile.warps,
            "num_stages": tile.stages,
            **waiting(),
        }


def products_of(spec: ModelSpec, dtype: torch.dtype) -> tuple[Product, ...]:
    """The kinds of products that a pass of this model consists of; none in float16, which might
    not hold the sums that are normed only afterwards, and none of a model with other parts."""
    if str(dtype) == "torch.float16" or not spec.is_plain:
        return ()
    attention, mlp = spec.layers[0].attention, mlp_of(spec.layers[0])
    hidden, attended = spec.hidden_size, spec.num_heads * spec.head_dim
    heads = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    inner, bias = mlp.width, mlp.bias
    return (
        Product(heads, hidden, dtype, normed=True, gated=False, has_bias=attention.qkv_bias),
        Product(hidden, attended, dtype, normed=False, gated=False, has_bias=attention.o_bias),
        Product(inner, hidden, dtype, normed=True, gated=True, has_bias=bias),
        Product(hidden, inner, dtype, normed=False, gated=False, has_bias=bias),
        Product(spec.vocab_size, hidden, dtype, normed=True, gated=False, has_bias=False),
    )


@cache
def thin_tile(product: Product, room: int | None = None) -> ThinTile:
    """Columns so many that every core has one program, or a few if that takes over 64; then as
    much of the sum as keeps the memory busy, and fits into `room` bytes of shared memory."""
    room = _shared_memory() if room is None else room
    lines = product.num_lines
    if lines <= 16 * _CORES:
        tile = ThinTile(16, 512, 4, 3)
    elif lines <= 32 * _CORES:
        tile = ThinTile(32, 512 if product.inner >= 8192 else 256, 4, 4)
    elif lines <= 128 * _CORES:
        tile = ThinTile(64, 256, 4, 3)
    else:
        tile = ThinTile(128, 64, 4, 4) if product.gated else ThinTile(128, 128, 4, 3)
    tile = replace(tile, depth=2 * tile.depth // product.dtype.itemsize)
    while tile.num_bytes(product.dtype) > room and tile.stages > 2:
        tile = replace(tile, stages=tile.stages - 1)
    return spread_out(product, tile, room) if overlapping() else tile


def spread_out(product: Product, tile: ThinTile, room: int) -> ThinTile:
    """With so many stages, where one program is enough for a core, that it has no room for two.

    A kernel that overlaps with the one before is given to cores as they become free, each as
    many programs as it has room for: the first would have several, and the last none.
    """
    if product.num_tiles(tile) > _CORES:
        return tile
    while 2 * tile.least_bytes(product.dtype) <= room:
        more = replace(tile, stages=tile.stages + 1)
        if more.num_bytes(product.dtype) > room:
            break
        tile = more
    return tile


def _shared_memory() -> int:
    """Bytes that one program may have."""
    import torch

    if not torch.cuda.is_available():
        return 1 << 30  # interpreted: there is no limit
    from triton.runtime import driver

    asked: Any = driver.active.utils
    found: int = asked.get_device_properties(torch.cuda.current_device())["max_shared_mem"]
    return found


def compile_product(product: Product, tile: ThinTile | None = None) -> None:
    """Compile a kind of product, without computing anything."""
    import torch

    tile, own, wide = tile or thin_tile(product), product.dtype, torch.float32
    compiled = multiply.warmup(
        *(own, own, own, own, wide, own, wide, 2, 1, 32, 1e-5),
        grid=(product.num_tiles(tile),),
        **product.constants(tile),
    )
    getattr(compiled, "run", None)  # asked for, it is loaded now and not in the first step


def embed_constants(width: int) -> dict[str, int]:
    """What `embed_rows` is compiled for."""
    block = power_of_two(width)
    return {"BLOCK": block, "num_warps": min(16, max(1, block // 512))}


@dataclass(slots=True)
class Stream:
    """The residual stream [rows, width] and the partial sums of squares of its rows."""

    residual: Tensor
    squares: Tensor


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMSNorm: its weight and what keeps it from dividing by nothing."""

    weight: Tensor
    eps: float


class ThinProducts:
    """The products of steps of at most MOST_ROWS rows."""

    def __init__(self, tile: ThinTile | None = None) -> None:
        self._tile = tile

    def embed(self, token_ids: Tensor, table: Tensor) -> Stream:
        """token_ids int64 [rows] -> their lines of table [V, H]."""
        import torch

        count, width = token_ids.shape[0], table.shape[1]
        made = Stream(table.new_empty(count, width), table.new_empty(count, 1, dtype=torch.float32))
        embed_rows[(count,)](
            *(token_ids, table, made.residual, made.squares, width), **embed_constants(width)
        )
        return made

    def normed(
        self, stream: Stream, norm: Norm, weight: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """norm(residual) weight^T + bias."""
        out = weight.new_empty(stream.residual.shape[0], weight.shape[0])
        self._multiply(stream.residual, weight, bias, out, stream=stream, norm=norm)
        return out

    def gated(
        self, stream: Stream, norm: Norm, weight: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """silu(gate) * up of norm(residual), for a weight of gate lines, then up lines."""
        out = weight.new_empty(stream.residual.shape[0], weight.shape[0] // 2)
        self._multiply(stream.residual, weight, bias, out, stream=stream, norm=norm, gated=True)
        return out

    def add(self, stream: Stream, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
        """residual += x weight^T + bias."""
        self._multiply(x, weight, bias, stream.residual, stream=stream)

    def _multiply(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        out: Tensor,
        *,
        stream: Stream,
        norm: Norm | None = None,
        gated: bool = False,
    ) -> None:
        x, num_rows = x.contiguous(), x.shape[0]
        product = Product(
            out.shape[1], x.shape[1], x.dtype, norm is not None, gated, bias is not None
        )
        tile = self._tile or thin_tile(product)
        num_tiles, squares = product.num_tiles(tile), stream.squares
        if norm is None:
            stream.squares = squares.new_empty(num_rows, num_tiles)
        multiply[(num_tiles,)](
            *(x, weight, weight if bias is None else bias, norm.weight if norm else x),
            *(squares, out, stream.squares),
            *(num_rows, squares.shape[1], x.shape[1], norm.eps if norm else 0.0),
            **product.constants(tile),
        )
