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


def _joined(made: Any) -> Tensor:
    """The rows of all images, in the versions that give them apart or together."""
    return made if isinstance(made, Tensor) else torch.cat(list(made))


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
        rows.append(_joined(_features(made)))
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


def _patches(tower: ModuleTower, items: Sequence[Encode]) -> list[Tensor]:
    """Images of any shape as patches, those that become one row together; what the tower makes for
    deeper layers stands beside the rows."""
    module: Any = tower.module
    about = module.config.vision_config
    size, merge, times = about.patch_size, about.spatial_merge_size, about.temporal_patch_size
    rows: list[Tensor] = []
    for item in items:
        pixels = tower.pixels(item.arrays["pixels"], tower.rules.normalised)
        _, height, width = pixels.shape
        high, wide = height // size, width // size
        cut = pixels.view(3, high // merge, merge, size, wide // merge, merge, size)
        cut = cut.permute(1, 4, 2, 5, 0, 3, 6)[:, :, :, :, :, None]
        cut = cut.expand(*cut.shape[:5], times, size, size).reshape(high * wide, -1)
        grid = torch.tensor([[1, high, wide]], device=tower.device)
        made = module.get_image_features(pixel_values=cut, image_grid_thw=grid)
        deeper = getattr(made, "deepstack_features", None) or ()
        rows.append(torch.cat([_joined(one) for one in (_features(made), *deeper)], 1))
    return rows


CALLS: dict[str, EncodeItems] = {
    "llava": _squares,
    "llava_next": _grids,
    "idefics3": _tiles,
    "smolvlm": _tiles,
    "qwen2_vl": _patches,
    "qwen2_5_vl": _patches,
    "qwen3_vl": _patches,
}
