"""Logits processors of single requests, under the name that scripts know."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# (output ids, logits) -> logits, or (prompt ids, output ids, logits) -> logits.
LogitsProcessor = (
    Callable[[list[int], "Tensor"], "Tensor"] | Callable[[list[int], list[int], "Tensor"], "Tensor"]
)
