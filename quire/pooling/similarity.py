"""Similarity of two embeddings. No torch, as comparing them needs no model."""

from __future__ import annotations

import numpy as np

from quire.step import Floats


def cosine(one: Floats, other: Floats) -> float:
    """The cosine of two vectors, in float64."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    return float(a @ b / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-12))


def max_sim(query: Floats, document: Floats) -> float:
    """The sum, over the query's tokens, of the best product with a token of the document."""
    products = query.astype(np.float64) @ document.astype(np.float64).T
    return float(products.max(axis=1).sum())
