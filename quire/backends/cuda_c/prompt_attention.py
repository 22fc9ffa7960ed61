"""Attention of prompts on Hopper, by prompt_attention.cu: its tiles, its maps and its launch.

The kernel's tiles hold all query heads of one KV head for a few neighbouring tokens. The device
computes once per pass which tile belongs to which sequence, also in a captured pass. The tiles that
see the most keys come first, so that none of them is started late.

Worked example, tiles of 4 tokens: query_starts [0, 6, 7], contexts [6, 3] make the tiles
    tokens 4..6 of sequence 0 (6 keys), tokens 0..4 of sequence 0 (4), token 6 of sequence 1 (3)
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from quire.backends.cuda_c.launch import CudaKernel
from quire.backends.cuda_c.nvrtc import NoCudaC
from quire.backends.cuda_c.tensor_map import encode_map
from quire.backends.ops import AttentionInputs, HeadShape
from quire.base.notes import note

_ROWS = 128  # of a tile: tokens times query heads of a KV head
_KEYS = 128  # keys that are multiplied at a time, in whole blocks
_PANEL = 64  # contiguous columns in shared memory
_STAGES = {64: 12, 128: 6}  # by head_dim: as many as fit
_CONTROL = 1024  # bytes
_THREADS = 384
_CAPABILITY = (9, 0)  # only Hopper has these instructions


def serves(shape: HeadShape, device: torch.device) -> bool:
    """Whether the kernel supports these heads on this device."""
    plain = shape.softcap is None and not shape.values_in_keys and not shape.fp8_kv
    if not plain or shape.dtype.itemsize != 2 or shape.head_dim not in _STAGES:
        return False
    if shape.group > _ROWS or shape.block_size < 8 or _KEYS % shape.block_size:
        return False
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == _CAPABILITY


@cache
def kernel_of(shape: HeadShape, windowed: bool, device: torch.device) -> CudaKernel | None:
    """The kernel, compiled if needed; None if it is not available, which is noted once."""
    if not serves(shape, device):
        return None
    kernel = CudaKernel(
        "prompt_attention.cu",
        "attend_prompts",
        {
            "WIDTH": shape.head_dim,
            "GROUP": shape.group,
            "KV_HEADS": shape.num_kv_heads,
            "SLOTS": shape.block_size,
            "STAGES": _STAGES[shape.head_dim],
            "HALF": int(shape.dtype == torch.float16),
            "WINDOW": int(windowed),
            "SINKS": int(shape.sinks),
        },
        threads=_THREADS,
        shared=_CONTROL + (1 + _STAGES[shape.head_dim]) * _ROWS * shape.head_dim * 2,
    )
    try:
        kernel.load()
    except NoCudaC as missing:
        note(f"Attention of prompts is Triton's, which is slower: {missing}")
        return None
    return kernel


def prompt_attention(
    shape: HeadShape, inputs: AttentionInputs, num_tokens: int, window: int | None
) -> PromptAttention | None:
    """Attention of the slices of a pass, with so many tokens; None if the kernel does not support
    them."""
    kernel = kernel_of(shape, window is not None, inputs.tables.device)
    return None if kernel is None else PromptAttention(kernel, shape, inputs, num_tokens, window)


class PromptAttention:
    """The slices of one pass, for every layer with the same window."""

    def __init__(
        self,
        kernel: CudaKernel,
        shape: HeadShape,
        inputs: AttentionInputs,
        num_tokens: int,
        window: int | None,
    ) -> None:
        """`num_tokens`: of all slices."""
        self._kernel, self._shape, self._window = kernel, shape, window
        count, device = inputs.num_prefill, inputs.tables.device
        self._tables = inputs.tables[:count].to(torch.int32)
        self._tiles, self._num_tiles = list_tiles(
            inputs.query_starts[: count + 1],
            inputs.context_lens[:count],
            num_tokens,
            _ROWS // shape.group,
        )
        # The number of the next tile, and how many blocks are done; the kernel resets both.
        self._counters = torch.zeros(2, dtype=torch.int32, device=device)
        properties = torch.cuda.get_device_properties(device)
        self._num_blocks: int = properties.multi_processor_count

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, out: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        """q [T, heads, D] -> out [T, heads * D], for the tokens of the slices."""
        shape = self._shape
        self._kernel(
            (self._num_blocks, 1, 1),
            *(_map_of_queries(q, shape), _map_of_cache(keys, shape), _map_of_cache(values, shape)),
            *(out, out if sinks is None else sinks, self._tiles, self._num_tiles, self._tables),
            *(self._counters, self._tables.stride(0), self._window or 0),
            shape.scale * math.log2(math.e),
        )
        return out


def list_tiles(
    query_starts: Tensor, context_lens: Tensor, num_tokens: int, per_tile: int
) -> tuple[Tensor, Tensor]:
    """int32 [most, 4]: a tile's first token, the end of its sequence's, the tokens of its context,
    its sequence, those with the most keys first; and int32 [1], how many of them are real."""
    count, device = context_lens.shape[0], context_lens.device
    starts, ends = query_starts[:-1], query_starts[1:]
    tiles = (ends - starts + per_tile - 1) // per_tile
    last = tiles.cumsum(0)
    number = torch.arange(num_tokens // per_tile + count, device=device)
    owner = torch.searchsorted(last, number, right=True).clamp(max=count - 1)
    first = starts[owner] + (number - (last - tiles)[owner]) * per_tile
    end, context = ends[owner], context_lens[owner]
    seen = context - end + torch.minimum(first + per_tile, end)
    order = torch.where(number < last[-1], seen, -1).argsort(descending=True)
    made = torch.stack([first, end, context, owner], 1)[order]
    return made.to(torch.int32), last[-1:].to(torch.int32)


def _map_of_queries(q: Tensor, shape: HeadShape) -> bytes:
    """The map of queries, in boxes of a tile's heads and tokens, a panel wide; lines after the last
    are 0."""
    width, size = shape.head_dim, q.dtype.itemsize
    sizes = (width, shape.num_heads, q.shape[0])
    box = (_PANEL, shape.group, _ROWS // shape.group)
    return encode_map(q.data_ptr(), q.dtype, sizes, (width * size, q.stride(0) * size), box)


def _map_of_cache(cache: Tensor, shape: HeadShape) -> bytes:
    """The map of the cache, in boxes of a block's slots of one head, a panel wide."""
    width = shape.head_dim
    sizes = (width, cache.numel() // width)
    row_bytes = width * cache.dtype.itemsize
    return encode_map(
        cache.data_ptr(), cache.dtype, sizes, (row_bytes,), (_PANEL, shape.block_size)
    )
