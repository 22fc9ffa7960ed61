"""What is done to the products of the output head."""

from __future__ import annotations

from torch import Tensor

from quire.backends.generic import softcapped
from quire.spec import LogitsPlan


class FinishedLogits:
    """Logits times a number, then bounded; their bias is a part of the product."""

    def __init__(self, plan: LogitsPlan) -> None:
        self.scale, self.softcap = plan.scale, plan.softcap

    def __call__(self, logits: Tensor) -> Tensor:
        return softcapped(logits.mul_(self.scale), self.softcap)


def unchanged(logits: Tensor) -> Tensor:
    return logits
