"""A decoder whose matrices are in fp8, with norms and gates that round."""

from __future__ import annotations

from quire.layers.fp8 import RoundingMLP, RoundingNorm, takes_fp8
from quire.models.decoder import Decoder
from quire.models.fusing import fuse


def round_early(model: Decoder) -> None:
    """Let whatever stands before a product in fp8 hand its rows on rounded."""
    fuse(model, takes=takes_fp8, norm=RoundingNorm, mlp=RoundingMLP)
