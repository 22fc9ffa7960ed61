"""The metadata of a GGUF file as plain values. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def plain_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata, where per-layer arrays of equal numbers become that number, and floats have the
    decimals with which they were written."""
    plain = {}
    for key, value in metadata.items():
        if isinstance(value, np.ndarray) and 0 < value.size <= 10_000:
            value = value.tolist()
            if len(set(value)) == 1:
                value = value[0]
        plain[key] = shortest(value) if isinstance(value, float) else value
    return plain


def shortest(value: float) -> float:
    """A float32's shortest decimal: 9.99999974e-06 was written as 1e-05 and means that."""
    return float(str(np.float32(value)))
