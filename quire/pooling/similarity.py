"""How near two embeddings are. No torch: whatever compares them needs no model."""

from __future__ import annotations

import numpy as np

from quire.step import Floats


def cosine(one: Floats, other: Floats) -> float:
    """Of two vectors, in float64."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    return float(a @ b / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-12))


def max_sim(query: Floats, document: Floats) -> float:
    """For each token of the query the nearest of the document, summed."""
    products = query.astype(np.float64) @ document.astype(np.float64).T
    return float(products.max(axis=1).sum())
