"""Tensor maps, by which Hopper's copies find boxes of a tensor and arrange them in shared
memory."""

from __future__ import annotations

import ctypes
from functools import lru_cache

import torch

from quire.backends.cuda_c.launch import checked, driver_library

_BYTES, _ALIGNED = 128, 64
_TYPES = {torch.float16: 6, torch.bfloat16: 9}  # the driver's numbers
_SWIZZLED = 3  # rows of 128 bytes, as products of four warps read them
_FETCHED = 3  # 256 bytes at a time into the second-level cache


@lru_cache(maxsize=4096)  # cached: layers use the same maps again and again
def encode_map(
    address: int,
    dtype: torch.dtype,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...],
) -> bytes:
    """The map of a tensor at an address: sizes, and the box of a copy, innermost first; strides in
    bytes, but for the innermost. What a box has beyond the tensor is zeros."""
    room = ctypes.create_string_buffer(_BYTES + _ALIGNED)
    place = -(-ctypes.addressof(room) // _ALIGNED) * _ALIGNED
    rank = len(sizes)
    failed = driver_library().cuTensorMapEncodeTiled(
        *(ctypes.c_void_p(place), _TYPES[dtype], rank, ctypes.c_void_p(address)),
        *((ctypes.c_uint64 * rank)(*sizes), (ctypes.c_uint64 * (rank - 1))(*strides)),
        *((ctypes.c_uint32 * rank)(*box), (ctypes.c_uint32 * rank)(*(1,) * rank)),
        *(0, _SWIZZLED, _FETCHED, 0),
    )
    checked(failed, f"a map of {sizes} in boxes of {box}")
    return ctypes.string_at(place, _BYTES)
