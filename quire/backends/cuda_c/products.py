"""What products with plain weights on Hopper share, on the host's side of products.cuh."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from quire.backends.cuda_c.launch import CudaKernel
from quire.backends.cuda_c.nvrtc import NoCudaC
from quire.backends.cuda_c.tensor_map import encode_map

DEPTH = 64  # columns of a stage
EIGHT = 8  # numbers in 16 bytes
SHARED = 227 << 10  # bytes of shared memory of a block
CONTROL = 1 << 10
_THREADS = 8


def product_macros(lines: int) -> dict[str, int | str]:
    """The macros of products.cuh for tiles of so many lines."""
    sums = lines // 2  # of a thread
    return {
        "LINES": lines,
        "WIDTH": f'"{lines}"',
        "REGISTERS": '"' + ",".join(f"%{i}" for i in range(sums)) + '"',
        "SUMS": ",".join(f'"+f"(sums[{i}])' for i in range(sums)),
        "AFTER": f'"%{sums}, %{sums + 1}"',
        "LAST": f'"{sums + 2}"',
    }


def map_of(rows: Tensor, at_once: int) -> bytes:
    """The map of a matrix, in boxes of a stage's columns of so many rows."""
    count, width = rows.shape
    stride = width * rows.dtype.itemsize
    return encode_map(rows.data_ptr(), rows.dtype, (width, count), (stride,), (DEPTH, at_once))


def load_onto(
    device: torch.device,
    kernels: Iterable[Callable[[], CudaKernel]],
    note_missing: Callable[[str], None],
) -> bool:
    """Load kernels onto a device, compiled in parallel; whether that was possible. If not, why is
    noted."""

    def load(kernel: Callable[[], CudaKernel]) -> None:
        with torch.cuda.device(device):  # the current device is a thread's own
            kernel().load()

    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(load, kernels))
    except NoCudaC as missing:
        note_missing(str(missing))
        return False
    return True
