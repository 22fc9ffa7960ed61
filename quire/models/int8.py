"""A decoder whose matrices are in bytes, with products that norm and gate the rows they round."""

from __future__ import annotations

from quire.kernels.native.kernels import NativeOps
from quire.layers.int8 import LateMLP, LateNorm, takes_late_rows
from quire.models.decoder import Decoder
from quire.models.fusing import fuse


def norm_late(model: Decoder) -> None:
    """Let 8-bit products in C work out what stands before them: one pass of the threads instead
    of two, and rows that are rounded while they are still in the cache. The bits are the same."""
    if isinstance(model.kernels, NativeOps):
        fuse(model, takes=takes_late_rows, norm=LateNorm, mlp=LateMLP)
