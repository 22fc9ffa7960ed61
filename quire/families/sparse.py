"""Reads feed-forwards whose gates have a cutoff. No torch."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

from quire.families.fields import Fields
from quire.families.reading import num_layers
from quire.layer_plan import Activation, MlpPlan, SparsePlan

SPARSE_LAYERS, SPARSE_SHARE = 10, 0.95  # without a pattern, of models with more layers


def read_sparse(fields: Fields, activation: Activation) -> list[MlpPlan]:
    """The feed-forwards of all layers; numbers of a config are for all, or a list has each's."""
    count, said = num_layers(fields), fields.values.get("intermediate_size")
    widths = said if isinstance(said, list) else [said] * count
    shares = fields.values.get("activation_sparsity_pattern")
    if shares is None:
        sparse = SPARSE_LAYERS if count > SPARSE_LAYERS else 0
        shares = [SPARSE_SHARE] * sparse + [0.0] * (count - sparse)
    for key, given in (("intermediate_size", widths), ("activation_sparsity_pattern", shares)):
        if not isinstance(given, list) or len(given) != count:
            raise fields.wrong(key, f"a list of {count} numbers")
    return [_feed_forward(fields, activation, *of) for of in zip(widths, shares, strict=True)]


def _feed_forward(fields: Fields, activation: Activation, width: Any, share: Any) -> MlpPlan:
    """`share`: of gates that the cutoff is above, if they are spread normally."""
    given = Fields({"intermediate_size": width, "share": share}, fields.source)
    inner, below = given.count("intermediate_size"), given.not_negative("share", 0.0)
    if below >= 1:
        raise fields.wrong("activation_sparsity_pattern", "a list of numbers from 0 to below 1")
    sparse = SparsePlan(NormalDist().inv_cdf(below), inner) if below else None
    return MlpPlan(inner, activation, sparse=sparse)
