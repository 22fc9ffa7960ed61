"""Which stored tensors may stay unused when a model is loaded. No torch.

A tensor of one of a model's layers changes what the layer computes. If quire does not use it, the
files are of another model than the config says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# model.layers.3. of model.layers.3.mlp.experts.7.up_proj.weight
_LAYER = re.compile(r".+?\.\d+\.")
# Stored tensors that were computed from the config: frequencies, positions and masks.
COMPUTED = (
    *("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached"),
    *("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"),
    *(".position_ids", ".masked_bias"),
)


def parts_left_out(unread: Iterable[str], read: Iterable[str]) -> list[str]:
    """The unread tensors that belong to a layer of which others were `read`, or to a module outside
    of layers (`model.norm.bias`). Extra layers after the last, which predict later tokens, do not
    count."""
    known = {_whole(name) for name in read}
    return sorted(n for n in unread if _whole(n) in known and not n.endswith(COMPUTED))


def _whole(name: str) -> str:
    """The layer of a tensor; outside of layers its module."""
    layer = _LAYER.match(name)
    return name.rpartition(".")[0] if layer is None else layer[0]
