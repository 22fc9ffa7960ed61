"""The result of loading a model that Transformers computes."""

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
    """A linear part of a module, which LoRA adapters may change."""

    name: str
    rows: int
    columns: int
    has_bias: bool


def products_of(module: nn.Module) -> Iterator[Product]:
    """All linear parts but those of experts: these get some lines, in another order."""
    from torch import nn

    for name, part in module.named_modules():
        if isinstance(part, nn.Linear) and not _OF_EXPERT.search(name):
            yield Product(name, part.out_features, part.in_features, part.bias is not None)


@dataclass(frozen=True, slots=True)
class LoadedModule:
    """A module with its weights, and what the dry pass recorded. On one of several ranks it is that
    rank's share, and `expected` are the whole model's logits for the texts of the trial.
    `whole_texts`: every text may be computed anew for each of its tokens. `is_tried`: a trial on
    this device has shown that its sequences can be computed side by side."""

    module: nn.Module
    call: BodyCall
    seen: Seen
    expected: tuple[Tensor, ...] = ()
    whole_texts: bool = False
    is_tried: bool = False
