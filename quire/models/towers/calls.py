"""How each family's module is called: what was prepared of items in, their rows out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.models.towers.tower import EncodeItems, ModuleTower
from quire.step import Encode


def _features(made: Any) -> Any:
    """What a call gave, in the versions of Transformers that return it bare or in an object."""
    return getattr(made, "pooler_output", made)


def _squares(tower: ModuleTower, items: Sequence[Encode]) -> list[Tensor]:
    """Images of one size, one each."""
    pixels = np.stack([item.arrays["pixels"] for item in items])
    module: Any = tower.module
    made = module.get_image_features(pixel_values=tower.pixels(pixels, tower.rules.normalised))
    return list(_features(made))


def _grids(tower: ModuleTower, items: Sequence[Encode]) -> list[Tensor]:
    """Images as the whole and the tiles of a grid, each with the size it came in."""
    module: Any = tower.module
    rows: list[Tensor] = []
    for item in items:
        pixels = tower.pixels(item.arrays["pixels"], tower.rules.normalised)
        sizes = torch.from_numpy(item.arrays["size"])[None]
        made = module.get_image_features(pixel_values=pixels, image_sizes=sizes)
        rows.append(torch.cat(list(_features(made))))
    return rows


def _tiles(tower: ModuleTower, items: Sequence[Encode]) -> list[Tensor]:
    """Images as tiles that are all of one size and full, so that no mask is needed."""
    module: Any = tower.module
    rows: list[Tensor] = []
    for item in items:
        pixels = tower.pixels(item.arrays["pixels"], tower.rules.normalised)
        size = module.config.vision_config.patch_size
        shape = (len(pixels), pixels.shape[2] // size, pixels.shape[3] // size)
        full = torch.ones(shape, dtype=torch.bool, device=tower.device)
        seen = module.vision_model(pixel_values=pixels, patch_attention_mask=full)
        made = module.connector(seen.last_hidden_state)
        rows.append(made.reshape(-1, made.shape[-1]))
    return rows


CALLS: dict[str, EncodeItems] = {
    "llava": _squares,
    "llava_next": _grids,
    "idefics3": _tiles,
    "smolvlm": _tiles,
}
