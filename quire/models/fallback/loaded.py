"""What loading hands to an executor for a model that Transformers computes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

_OF_EXPERT = re.compile(r"\bexperts\.\d")

if TYPE_CHECKING:
    from torch import Tensor, nn

    from quire.models.fallback.body import BodyCall
    from quire.models.fallback.seen import Seen


@dataclass(frozen=True, slots=True)
class Product:
    """A linear part of a module by its name, which LoRA adapters may change."""

    name: str
    rows: int
    columns: int
    has_bias: bool


def products_of(module: nn.Module) -> Iterator[Product]:
    """Other parts with weights, such as embeddings, are none of them; nor are those of experts,
    which get some of the lines of a pass in another order."""
    from torch import nn

    for name, part in module.named_modules():
        if isinstance(part, nn.Linear) and not _OF_EXPERT.search(name):
            yield Product(name, part.out_features, part.in_features, part.bias is not None)


@dataclass(frozen=True, slots=True)
class LoadedModule:
    """A module with its weights, and what the dry pass saw of it. Of one of several ranks it is a
    part; `expected` are then the logits that the whole has for the texts of the trial.
    `whole_texts`: it may compute every text anew for each of its tokens. `is_tried`: on this device
    its sequences go side by side, as a trial has shown."""

    module: nn.Module
    call: BodyCall
    seen: Seen
    expected: tuple[Tensor, ...] = ()
    whole_texts: bool = False
    is_tried: bool = False
