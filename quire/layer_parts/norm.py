"""NormPlan: a norm over the last dimension. Knows nothing of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class NormPlan:
    """A norm over the last dimension: by the root of the mean square (rms), or by mean and
    variance (layer).

    `one_plus`: files of Hugging Face hold w where the factor is 1 + w; loading adds the 1.
    `learned`: whether there is a weight; without one it is 1.
    `rounds_last`: the weight is applied before the result is rounded to the activations' type,
    not after. Weights of both kinds stay in float32 (`is_wide`), because 1 + w in 16 bits would
    lose most of w."""

    eps: float
    kind: Literal["rms", "layer"] = "rms"
    bias: bool = False
    one_plus: bool = False
    rounds_last: bool = False
    learned: bool = True

    @property
    def is_wide(self) -> bool:
        """Whether its weights are kept in float32 whatever the activations are."""
        return self.rounds_last or self.one_plus or self.kind == "layer"
