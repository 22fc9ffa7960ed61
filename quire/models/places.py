"""Where each weight of a built decoder lies, by quire's names for them: so that a model can be
given other weights, or leave its device, while everything that was made around it stays."""

from __future__ import annotations

from quire.backends.linear import WeightRows

Places = dict[str, tuple[WeightRows, ...]]
