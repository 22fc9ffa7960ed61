"""How fast the kernels of fp8 are, beside those of bf16; sections of gpu_fp8.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from quire.backends.ops import HeadShape
    from quire.backends.triton.tiles import Tile

Line = dict[str, Any]
THREADS = 12


def decode() -> Iterator[Line]:
    """Microseconds and TB/s (scales counted) of attention, by tile."""
    import torch

    from benchmarks.gpu_attention import copy_bandwidth
    from quire.backends.ops import HeadShape
    from quire.backends.triton.tiles import Tile

    yield {"copy TB/s": round(copy_bandwidth(), 3)}
    sizes = ((128, 4, 3), (128, 2, 3), (64, 1, 4), (64, 2, 4), (32, 1, 5), (64, 4, 4))
    tiles = [Tile(8, *size) for size in sizes]
    for heads, width in ((32, 128), (16, 128), (32, 64)):
        plain = HeadShape(heads, 8, width, 16, torch.bfloat16)
        narrow = HeadShape(heads, 8, width, 16, torch.bfloat16, True)
        settings = ((256, 1024), (256, 300)) if heads == 32 and width == 128 else ((256, 1024),)
        if heads == 16:
            settings = (*settings, (1024, 768), (16, 1024))
        with ThreadPoolExecutor(THREADS) as pool:  # to compile them
            list(pool.map(partial(run_decode, narrow, 16, 256), tiles))
        for rows, context in settings:
            wide_us, wide_tb = time_decode(plain, rows, context)
            found: Line = {"decode": f"{rows} x {context} {heads}/8x{width}"}
            found["bf16 us, TB/s"] = (wide_us, wide_tb)
            found |= {
                f"{tile.keys}/{tile.warps}/{tile.stages}": time_decode(narrow, rows, context, tile)
                for tile in tiles
            }
            yield found


def time_decode(
    shape: HeadShape, rows: int, context: int, tile: Tile | None = None
) -> tuple[float, float]:
    """(microseconds, TB/s)"""
    from benchmarks.gpu_attention import milliseconds

    run, moved = run_decode(shape, rows, context, tile)
    spent = milliseconds(run, rep=20)
    return round(spent * 1e3, 1), round(moved / spent / 1e9, 3)


def run_decode(
    shape: HeadShape, rows: int, context: int, tile: Tile | None
) -> tuple[Callable[[], object], int]:
    """A step's attention that has run once, and the bytes it reads."""
    import torch

    from quire.backends.fp8 import block_shape
    from quire.backends.triton.decode import DecodeAttention, DecodeBuffers

    cuda, blocks = torch.device("cuda"), rows * -(-context // 16)
    block = block_shape(shape.num_kv_heads, 16, shape.head_dim, shape.kv_dtype)
    keys, values = (make_random(shape, (blocks, *block)) for _ in range(2))
    tables = torch.randperm(blocks, dtype=torch.int32, device=cuda).view(rows, -1)
    lengths = torch.full((rows,), context, dtype=torch.int32, device=cuda)
    buffers = DecodeBuffers.make(shape, rows, cuda)
    attention = DecodeAttention(shape, buffers, rows, tile=tile)
    attention.plan(lengths, tables)
    q = torch.randn(rows, shape.num_heads, shape.head_dim, device=cuda, dtype=shape.dtype)
    out = torch.empty(rows, q[0].numel(), device=cuda, dtype=shape.dtype)
    run = partial(attention.attend, q, keys, values, out)
    run()
    return run, 2 * keys.nbytes


def make_random(shape: HeadShape, size: Sequence[int]) -> Tensor:
    """A cache of finite numbers and scales near 2^-6."""
    import torch

    cuda = torch.device("cuda")
    if not shape.fp8_kv:
        return torch.randn(size, device=cuda, dtype=shape.dtype)
    made = torch.randint(0, 120, tuple(size), dtype=torch.uint8, device=cuda)
    made.view(torch.float32)[..., -shape.block_size :] = -6.0
    return made.view(shape.kv_dtype)


def prompts() -> Iterator[Line]:
    """Prompts and storing, in microseconds; by tile in fp8."""
    import torch

    from benchmarks.gpu_attention import milliseconds
    from quire.backends.fp8 import block_shape
    from quire.backends.ops import HeadShape
    from quire.backends.triton.heads import norm_rope_store
    from quire.backends.triton.prefill import PrefillAttention
    from quire.backends.triton.tiles import Tile

    cuda, count, new = torch.device("cuda"), 16, 1024
    tables = torch.arange(count * new // 16, dtype=torch.int32, device=cuda).view(count, -1)
    lengths = torch.full((count,), new, device=cuda)
    starts = torch.arange(count + 1, device=cuda) * new
    q = torch.randn(count * new, 16, 128, device=cuda, dtype=torch.bfloat16)
    out = torch.empty(count * new, 2048, device=cuda, dtype=torch.bfloat16)
    qkv = torch.randn(count * new, 32, 128, device=cuda, dtype=torch.bfloat16)
    turn, slots = torch.rand(count * new, 64, device=cuda), torch.arange(count * new, device=cuda)
    sizes = ((128, 64, 8, 3), (64, 64, 4, 3))
    for fp8_kv in (False, True):
        shape = HeadShape(16, 8, 128, 16, torch.bfloat16, fp8_kv)
        block = block_shape(8, 16, 128, shape.kv_dtype)
        keys, values = (make_random(shape, (count * new // 16, *block)) for _ in range(2))
        found: Line = {"16 x 1024 prompts": "fp8" if fp8_kv else "bf16"}
        store = partial(norm_rope_store, qkv, turn, turn, slots, keys, values, shape)
        found["rope and store us"] = round(milliseconds(store, rep=10) * 1e3, 1)
        tiles = [None, *(Tile(*size) for size in sizes)] if fp8_kv else [None]
        passes = [
            PrefillAttention(shape, starts, lengths, tables, count * new, tile=tile)
            for tile in tiles
        ]
        with ThreadPoolExecutor(THREADS) as pool:  # to compile them
            list(pool.map(lambda one: one.attend(q, keys, values, out), passes))  # noqa: B023
        for tile, attention in zip(tiles, passes, strict=True):
            spent = milliseconds(partial(attention.attend, q, keys, values, out), rep=20)
            rate = 4 * count * 16 * 128 * new * (new + 1) / 2 / spent / 1e9
            found[str(tile)] = f"{spent * 1e3:.1f} us, {rate:.0f} TFLOP/s"
        yield found
