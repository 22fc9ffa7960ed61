"""Stored tensors that nothing was made of: which of them a model can do without. No torch.

A tensor in one of a model's layers is a part of what the layer computes. Where quire has nothing to
do with it, the files are of another model than their config says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# model.layers.3. of model.layers.3.mlp.experts.7.up_proj.weight
_LAYER = re.compile(r".+?\.\d+\.")
# What files hold that was computed from the config: frequencies, positions and masks.
COMPUTED = (
    *("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached"),
    *("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"),
    *(".position_ids", ".masked_bias"),
)


def parts_left_out(unread: Iterable[str], read: Iterable[str]) -> list[str]:
    """Those unread tensors that belong to a layer which others were `read` of, or to a module
    beside the layers (`model.norm.bias`). Layers behind the last, which guess ahead, are none."""
    known = {_whole(name) for name in read}
    return sorted(n for n in unread if _whole(n) in known and not n.endswith(COMPUTED))


def _whole(name: str) -> str:
    """The layer that a tensor is of, outside of layers its module."""
    layer = _LAYER.match(name)
    return name.rpartition(".")[0] if layer is None else layer[0]
