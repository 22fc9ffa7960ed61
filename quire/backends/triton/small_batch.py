"""Matrix products of few rows: the layers of a decode step in five launches.

With few rows a product costs as much as reading its weights, and launches cost as much as work. So
everything between two products is part of one of them. A product that adds to the residual stream
also writes the stream times the weight of the next norm, and the sums of squares of what it wrote,
tile by tile. The product that reads the stream adds up these sums while it multiplies, and then
norms its results (which float16 might not hold: only bfloat16 and float32). One program multiplies
with gate and up, and computes activation(gate) * up.

The stream of one step: `embed`, then per layer `normed` (qkv), attention, `add`, `gated`, `add`,
and `normed` for the logits. If the GPU supports it, each product is launched while the kernel
before it ends (jit.waiting). On Hopper most of these products are computed by cuda_c/plain.cu, for
more rows and faster.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import triton

from quire.backends.triton.jit import overlapping, power_of_two, precision, waiting
from quire.backends.triton.small_batch_kernels import embed_rows, multiply
from quire.layer_plan import mlps_of
from quire.spec import ModelSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Rows for which kernels are compiled, from the fewest that tensor cores take. With more, the
# vendor's library is faster.
ROWS = (16, 32)
MOST_ROWS = ROWS[-1]
LEAST_COLUMNS = 8
# Tiles were measured on a GPU with this number of cores (benchmarks/gpu_products.py).
_CORES = 132


@dataclass(frozen=True, slots=True)
class ThinTile:
    """`columns` of the product, `depth` of the sum at a time. Cutting the sum, too, to have more
    programs where columns are few, was slower: adding up the parts takes longer than it saves."""

    columns: int
    depth: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Product:
    """The constants of one kind of product."""

    rows: int
    outer: int  # columns of the result: half the lines of the weight, if gated
    inner: int
    dtype: torch.dtype
    normed: bool
    gated: bool
    has_bias: bool

    @property
    def num_lines(self) -> int:
        """Lines of the weight."""
        return 2 * self.outer if self.gated else self.outer

    def is_tiled(self, capability: tuple[int, int]) -> bool:
        """Whether cuda_c/plain.cu computes it on such a GPU: on Hopper, with sizes of whole eights,
        and no fewer columns than it copies at once."""
        whole = self.outer % 8 == 0 and self.inner % 8 == 0 and self.inner >= 64
        return capability == (9, 0) and self.dtype.itemsize == 2 and whole

    def num_tiles(self, tile: ThinTile) -> int:
        per_tile = tile.columns // 2 if self.gated else tile.columns
        return -(-self.outer // per_tile)

    def num_pieces(self, tile: ThinTile) -> int:
        """Of the sum, each for a warp of its own. One that had a few columns at full depth would
        wait for every product before the next, and all warps would read the same rows; of many
        columns adding up the pieces takes longer than that."""
        return tile.warps if tile.columns <= 16 else 1

    def num_bytes(self, tile: ThinTile) -> int:
        """Shared memory for the rows and weights that are being loaded."""
        return self._buffer_bytes(tile) * tile.stages

    def least_bytes(self, tile: ThinTile) -> int:
        """The least shared memory of a program, as one stage is in registers."""
        return self._buffer_bytes(tile) * (tile.stages - 1)

    def _buffer_bytes(self, tile: ThinTile) -> int:
        return (self.rows + tile.columns) * tile.depth * self.dtype.itemsize

    def constants(self, tile: ThinTile) -> dict[str, Any]:
        # The kernel that wrote the stream may have had smaller tiles.
        most_squares = triton.cdiv(self.inner, LEAST_COLUMNS)
        return {
            "INNER": self.inner,
            "OUTER": self.outer,
            "ROWS": self.rows,
            "COLUMNS": tile.columns,
            "DEPTH": tile.depth,
            "PIECES": self.num_pieces(tile),
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
    of_layers = layer_products(spec, dtype)
    head = Product(ROWS[0], spec.vocab_size, spec.hidden_size, dtype, True, False, False)
    made = (*of_layers, head) if of_layers else ()
    return tuple(replace(one, rows=rows) for rows in ROWS for one in made)


def layer_products(spec: ModelSpec, dtype: torch.dtype) -> tuple[Product, ...]:
    """Those of its layers, of the fewest rows: qkv, out, gate and up, down."""
    if str(dtype) == "torch.float16" or not spec.is_plain:
        return ()
    attention, (mlp,) = spec.layers[0].attention, mlps_of(spec.layers[0])
    hidden, attended = spec.hidden_size, spec.num_heads * spec.head_dim
    heads = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    rows = ROWS[0]
    return (
        Product(rows, heads, hidden, dtype, True, False, attention.qkv_bias),
        Product(rows, hidden, attended, dtype, False, False, attention.o_bias),
        Product(rows, mlp.width, hidden, dtype, True, True, mlp.bias),
        Product(rows, hidden, mlp.width, dtype, False, False, mlp.bias),
    )


@cache
def thin_tile(product: Product, room: int | None = None) -> ThinTile:
    """Columns so many that every core has one program, or a few if that takes over 64; then as
    much of the sum as keeps the memory busy, and fits into `room` bytes of shared memory."""
    room = _shared_memory() if room is None else room
    lines, size = product.num_lines, product.dtype.itemsize
    if lines <= 8 * _CORES:
        tile = ThinTile(8, 1024 if product.inner >= 3072 else 512, 4, 4)
    elif lines <= 16 * _CORES:
        tile = ThinTile(16, 512, 4, 3)
    elif lines <= 32 * _CORES:
        tile = ThinTile(32, 512 if product.inner >= 8192 else 256, 4, 4)
    elif lines <= 128 * _CORES:
        tile = ThinTile(64, 256, 4, 3)
    else:
        tile = ThinTile(128, 64, 4, 4) if product.gated else ThinTile(128, 128, 4, 3)
    tile = replace(tile, depth=max(2 * tile.depth // size, 16 * tile.warps))
    while product.num_bytes(tile) > room:
        fewer = replace(tile, stages=tile.stages - 1)
        tile = fewer if tile.stages > 2 else replace(tile, depth=tile.depth // 2)
    return spread_out(product, tile, room) if overlapping() else tile


def spread_out(product: Product, tile: ThinTile, room: int) -> ThinTile:
    """With so many stages, where one program is enough for a core, that it has no room for two.

    A kernel that overlaps with the one before is given to cores as they become free, each as
    many programs as it has room for: the first would have several, and the last none. Those of 8
    columns are so short that beginning early is worth more.
    """
    if product.num_tiles(tile) > _CORES or tile.columns == LEAST_COLUMNS:
        return tile
    while 2 * product.least_bytes(tile) <= room:
        more = replace(tile, stages=tile.stages + 1)
        if product.num_bytes(more) > room:
            break
        tile = more
    return tile


def _shared_memory() -> int:
    """Bytes of shared memory that one program may have."""
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
        *(own, own, own, own, wide, own, own, wide, 2, 1, 32, 1e-5),
        grid=(product.num_tiles(tile),),
        **product.constants(tile),
    )
    getattr(compiled, "run", None)  # asked for, it is loaded now and not in the first step


def embed_constants(width: int) -> dict[str, int]:
    """The constants of `embed_rows`."""
    block = power_of_two(width)
    return {"BLOCK": block, "num_warps": min(16, max(1, block // 512))}


@dataclass(frozen=True, slots=True)
class Norm:
    """An RMSNorm: its weight and epsilon."""

    weight: Tensor
    eps: float


@dataclass(slots=True)
class Stream:
    """The residual stream [rows, width], the stream times the weight of the norm that reads it
    next, and partial sums of squares of its rows."""

    residual: Tensor
    scaled: Tensor
    squares: Tensor
    eps: float


def embed(token_ids: Tensor, table: Tensor, norm: Norm) -> Stream:
    """token_ids int64 [rows] -> their lines of table [V, H], to be read by `norm`."""
    import torch

    count, width = token_ids.shape[0], table.shape[1]
    residual, squares = (
        table.new_empty(count, width),
        table.new_empty(count, 1, dtype=torch.float32),
    )
    made = Stream(residual, torch.empty_like(residual), squares, norm.eps)
    embed_rows[(count,)](
        *(token_ids, table, norm.weight, residual, made.scaled, squares, width),
        **embed_constants(width),
    )
    return made


class ThinProducts:
    """The products of steps of at most MOST_ROWS rows."""

    def __init__(self, tile: ThinTile | None = None) -> None:
        self._tile = tile

    def normed(self, stream: Stream, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """norm(residual) weight^T + bias."""
        out = weight.new_empty(stream.scaled.shape[0], weight.shape[0])
        self._multiply(stream.scaled, weight, bias, out, stream)
        return out

    def gated(self, stream: Stream, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """silu(gate) * up of norm(residual), for a weight of gate lines, then up lines."""
        out = weight.new_empty(stream.scaled.shape[0], weight.shape[0] // 2)
        self._multiply(stream.scaled, weight, bias, out, stream, gated=True)
        return out

    def add(
        self, stream: Stream, x: Tensor, weight: Tensor, bias: Tensor | None, norm: Norm
    ) -> None:
        """residual += x weight^T + bias, to be read by `norm`."""
        self._multiply(x.contiguous(), weight, bias, stream.residual, stream, norm=norm)

    def _multiply(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        out: Tensor,
        stream: Stream,
        *,
        norm: Norm | None = None,
        gated: bool = False,
    ) -> None:
        num_rows, (outer, inner) = x.shape[0], (out.shape[1], x.shape[1])
        rows = next(rows for rows in ROWS if num_rows <= rows)
        product = Product(rows, outer, inner, x.dtype, norm is None, gated, bias is not None)
        tile = self._tile or thin_tile(product)
        num_tiles, squares, eps = product.num_tiles(tile), stream.squares, stream.eps
        if norm is not None:  # what is there was read, and is written anew
            stream.squares, stream.eps = squares.new_empty(num_rows, num_tiles), norm.eps
        multiply[(num_tiles,)](
            *(x, weight, weight if bias is None else bias, norm.weight if norm else x),
            *(squares, out, stream.scaled, stream.squares),
            *(num_rows, squares.shape[1], inner, eps),
            **product.constants(tile),
        )
