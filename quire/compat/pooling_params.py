"""PoolingParams, under the name scripts know."""

from __future__ import annotations

from quire.params.pooling import PoolingParams

__all__ = ["PoolingParams"]
