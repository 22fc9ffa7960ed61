"""ModuleTower: encodes items with a module of Transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from quire.families.media.rules import ImageRules, MediaRules, Normalised
from quire.layers.host_arrays import on_device
from quire.step import Encode

MOST_TOGETHER = 16  # most items of one call


class ModuleTower:
    """Encodes items into rows of the model's dtype."""

    def __init__(
        self,
        module: nn.Module,
        call: EncodeItems,
        rules: Mapping[str, MediaRules],
        hidden_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        alone: bool,
    ) -> None:
        self.module, self._call, self._rules = module, call, rules
        self.hidden_size, self.dtype, self.device = hidden_size, dtype, device
        self._alone = alone
        vision = getattr(cast(Any, module).config, "vision_config", None)
        deeper = getattr(vision, "deepstack_visual_indexes", None) or ()
        self.row_width = (1 + len(deeper)) * hidden_size

    @torch.inference_mode()
    def encode(self, items: Sequence[Encode]) -> list[Tensor]:
        step = 1 if self._alone else MOST_TOGETHER
        seen = [item for item in items if "rows" not in item.arrays]
        made: dict[int, Tensor] = {}
        for first in range(0, len(seen), step):
            some = seen[first : first + step]
            made |= zip((one.serial for one in some), self._call(self, some), strict=True)
        return [
            made[item.serial] if item.serial in made else self.numbers(item.arrays["rows"])
            for item in items
        ]

    def numbers(self, given: np.ndarray) -> Tensor:
        """Prepared numbers, on the tower's device and in its dtype."""
        return on_device(given, self.device).to(self.dtype)

    def tensors(self, given: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
        """Prepared arrays by name, on the tower's device; floats in its dtype."""
        made = {name: on_device(of, self.device) for name, of in given.items()}
        return {
            name: of.to(self.dtype if of.is_floating_point() else of.dtype)
            for name, of in made.items()
        }

    @property
    def rules(self) -> ImageRules:
        return self.rules_of("image")

    def rules_of(self, kind: str) -> ImageRules:
        """The rules for images or for videos."""
        return cast(ImageRules, self._rules[kind])

    def pixels(self, bytes_: np.ndarray, normalised: Normalised) -> Tensor:
        """Bytes [..., 3, height, width] -> normalised numbers of the tower's dtype."""
        by = np.array([normalised.mean, normalised.std], np.float32).reshape(2, 3, 1, 1)
        mean, std = on_device(by, self.device)
        numbers = on_device(bytes_, self.device).float().mul_(normalised.factor)
        return numbers.sub_(mean).div_(std).to(self.dtype)


EncodeItems = Callable[[ModuleTower, Sequence[Encode]], list[Tensor]]
