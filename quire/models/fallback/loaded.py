"""What loading hands to an executor for a model that Transformers computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from quire.models.fallback.body import BodyCall
    from quire.models.fallback.seen import Seen


@dataclass(frozen=True, slots=True)
class LoadedModule:
    """A module with its weights, and what the dry pass saw of it."""

    module: nn.Module
    call: BodyCall
    seen: Seen
