"""A product with a plain weight that few rows compute by plain.cu, in any model.

Where the columns are shared by several blocks (plain_tile), this is up to twice as fast as the
vendor's library; with so many lines that they are not, it is as fast, and is left to the library.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.cuda_c.plain import (
    PlainTile,
    kernel_of,
    multiply_plain,
    note_missing,
    plain_tile,
)
from quire.backends.cuda_c.products import load_onto
from quire.backends.plain import PlainLinear
from quire.backends.triton.small_batch import Product

MOST_ROWS = 64
_THREADS = 4


@dataclass(slots=True)
class FewRowsLinear(PlainLinear):
    """x weight^T + bias. `loaded`: whether there is a kernel for few rows, once it is known."""

    tile: PlainTile
    loaded: Future[bool]

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None) -> FewRowsLinear | None:
        """None if the library is as fast, or has to compute it."""
        if weight.dim() != 2 or not weight.is_cuda or not weight.is_contiguous():
            return None
        lines, columns = weight.shape
        tile = plain_tile((lines, columns), MOST_ROWS)
        product = Product(MOST_ROWS, lines, columns, weight.dtype, False, False, bias is not None)
        is_tiled = product.is_tiled(torch.cuda.get_device_capability(weight.device))
        if tile.splits == 1 or not is_tiled:
            return None
        return cls(weight, bias, tile, _loading(tile, weight.dtype, weight.device))

    def __call__(self, x: Tensor) -> Tensor:
        if not 0 < len(x) <= MOST_ROWS or x.dim() != 2 or not self.loaded.result():
            return F.linear(x, self.weight, self.bias)
        return multiply_plain(self.weight, x, self.bias, tile=self.tile)


def wait_until_loaded() -> None:
    """Before passes are captured, in which nothing can be loaded."""
    for one in list(_known.values()):
        one.result()


_known: dict[tuple[PlainTile, torch.dtype, torch.device], Future[bool]] = {}


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="quire-kernels")


def _loading(tile: PlainTile, dtype: torch.dtype, device: torch.device) -> Future[bool]:
    """Whether the kernel could be loaded. It is compiled while weights are still being read."""
    key = (tile, dtype, device)
    if key not in _known:
        kernel = partial(kernel_of, tile, dtype == torch.float16)
        _known[key] = _pool().submit(load_onto, device, [kernel], note_missing)
    return _known[key]
