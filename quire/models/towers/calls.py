"""How each family's module is called: prepared items in, their rows out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from quire.models.towers.tower import MOST_TOGETHER, EncodeItems, ModuleTower
from quire.step import Encode

MOST_ROWS = 4096  # rows of images of any shape per call; one large image has so many


def _features(made: Any) -> Any:
    """The features: versions of Transformers return them bare or in an object."""
    return getattr(made, "pooler_output", made)


def _joined(made: Any) -> Tensor:
    """The rows of all images: some versions return them apart, others together."""
    return made if isinstance(made, Tensor) else torch.cat(list(made))


def _in_batches(
    tower: ModuleTower, items: Sequence[Encode], encode: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """Images as squares or tiles, one or several per item. Those of one size share a call."""
    by_size: dict[tuple[int, ...], list[Encode]] = {}
    for item in items:
        by_size.setdefault(item.arrays["pixels"].shape[1:], []).append(item)
    made: dict[int, Tensor] = {}
    for some in by_size.values():
        pixels = np.concatenate([item.arrays["pixels"] for item in some])
        firsts = range(0, len(pixels), MOST_TOGETHER)
        cut = (pixels[first : first + MOST_TOGETHER] for first in firsts)
        rows = [encode(tower.pixels(part, tower.rules.normalised)).flatten(0, -2) for part in cut]
        split = torch.split(torch.cat(rows), [item.count for item in some])
        made |= zip((item.serial for item in some), split, strict=True)
    return [made[item.serial] for item in items]


def _squares(tower: ModuleTower, items: Sequence[Encode]) -> list[Tensor]:
    module: Any = tower.module

    def encode(pixels: Tensor) -> Tensor:
        return _joined(_features(module.get_image_features(pixel_values=pixels)))

    return _in_batches(tower, items, encode)


def _sized(
    tower: ModuleTower, items: Sequence[Encode], *, may_be_beside: bool = False
) -> list[Tensor]:
    """Each image by itself, with its size: an image of any shape, or an overview and the tiles of a
    grid. `may_be_beside`: an overview alone means that the prompt has other images, and the module
    must know that. Videos are frames of one size."""
    module: Any = tower.module
    rows: list[Tensor] = []
    for item in items:
        pixels = tower.pixels(item.arrays["pixels"], tower.rules_of(item.kind).normalised)
        if item.kind == "video":
            made = module.get_video_features(pixel_values_videos=pixels[None])
            rows.append(_joined(_features(made)).reshape(-1, tower.hidden_size))
            continue
        sizes = torch.from_numpy(item.arrays["size"])[None]
        if item.count == 1:  # Transformers reads a single row as a batch (Mistral 3)
            pixels, sizes = pixels.expand(2, -1, -1, -1), sizes.expand(2, -1)
        more = {"batch_num_images": [2]} if may_be_beside and len(pixels) == 1 else {}
        made = module.get_image_features(pixel_values=pixels, image_sizes=sizes, **more)
        rows.append(_joined(_features(made))[: item.count])
    return rows


def _tiles(tower: ModuleTower, items: Sequence[Encode]) -> list[Tensor]:
    """Tiles have no padding, so the mask is all True."""
    module: Any = tower.module
    size = module.config.vision_config.patch_size

    def encode(pixels: Tensor) -> Tensor:
        shape = (len(pixels), pixels.shape[2] // size, pixels.shape[3] // size)
        full = torch.ones(shape, dtype=torch.bool, device=tower.device)
        seen = module.vision_model(pixel_values=pixels, patch_attention_mask=full)
        made: Tensor = module.connector(seen.last_hidden_state)
        return made

    return _in_batches(tower, items, encode)


# The patches of an item, and their numbers in time, height and width, all of them or in parts.
Cut = tuple[Tensor, list[tuple[int, int, int]]]


def _cut(tower: ModuleTower, item: Encode) -> Cut:
    """Of an image or a video, those that become one row next to each other. An image is a video of
    one frame. The last frame is repeated up to a multiple of the frames that one patch covers."""
    about = cast(Any, tower.module).config.vision_config
    size, merge, times = about.patch_size, about.spatial_merge_size, about.temporal_patch_size
    pixels = tower.pixels(item.arrays["pixels"], tower.rules_of(item.kind).normalised)
    frames = pixels.view(-1, *pixels.shape[-3:])
    missing = -len(frames) % times
    frames = torch.cat([frames, frames[-1:].expand(missing, -1, -1, -1)])
    long, high, wide = len(frames) // times, frames.shape[2] // size, frames.shape[3] // size
    cut = frames.view(long, times, 3, high // merge, merge, size, wide // merge, merge, size)
    cut = cut.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(long * high * wide, -1)
    return cut, [(long, high, wide)]


def _group_by_group(tower: ModuleTower, item: Encode) -> Cut:
    """The same, each group of frames like an image of its own."""
    cut, [(long, high, wide)] = _cut(tower, item)
    return cut, [(1, high, wide)] * long


def _line_by_line(tower: ModuleTower, item: Encode) -> Cut:
    """Patches of an image as images, line by line."""
    size = cast(Any, tower.module).config.vision_config.patch_size
    pixels = tower.pixels(item.arrays["pixels"], tower.rules_of(item.kind).normalised)
    high, wide = pixels.shape[1] // size, pixels.shape[2] // size
    cut = pixels.view(3, high, size, wide, size).permute(1, 3, 0, 2, 4)
    return cut.reshape(high * wide, 3, size, size), [(1, high, wide)]


def _patches(
    tower: ModuleTower,
    items: Sequence[Encode],
    *,
    cut_up: Callable[[ModuleTower, Encode], Cut] = _cut,
) -> list[Tensor]:
    """Images of any shape, and videos, as patches; patches that become one row are next to each
    other. Rows for deeper layers are joined to each row. Small items share a call, since each patch
    attends only to its own frame."""
    module: Any = tower.module
    rows: list[Tensor] = []
    while some := _first_rows(items[len(rows) :]):
        cut, grids = zip(*(cut_up(tower, item) for item in some), strict=True)
        grid = torch.tensor([one for some in grids for one in some], device=tower.device)
        made = module.get_image_features(pixel_values=torch.cat(cut), image_grid_thw=grid)
        deeper = getattr(made, "deepstack_features", None) or ()
        beside = torch.cat([_joined(one) for one in (_features(made), *deeper)], 1)
        rows += torch.split(beside, [item.count for item in some])
    return rows


def _first_rows(items: Sequence[Encode]) -> Sequence[Encode]:
    """The first items that fit into one call; at least one."""
    ends = np.cumsum([item.count for item in items])
    return items[: max(1, int((ends <= MOST_ROWS).sum()))]


def _pooled(tower: ModuleTower, items: Sequence[Encode], *, at_once: bool = False) -> list[Tensor]:
    """Images of any shape as patches with their places; squares of patches become one row, or are
    taken `at_once` as one patch."""
    module: Any = tower.module
    about = module.config.vision_config
    size = about.patch_size * (about.pooling_kernel_size if at_once else 1)

    def encode(pixels: Tensor) -> Tensor:
        count, high, wide = len(pixels), pixels.shape[2] // size, pixels.shape[3] // size
        cut = pixels.view(count, 3, high, size, wide, size).permute(0, 2, 4, 3, 5, 1)
        down, across = torch.meshgrid(torch.arange(high), torch.arange(wide), indexing="ij")
        places = torch.stack([across, down], -1).view(1, -1, 2).expand(count, -1, -1)
        made = module.get_image_features(
            pixel_values=cut.reshape(count, high * wide, -1),
            image_position_ids=places.to(tower.device),
        )
        return _joined(_features(made)).view(count, -1, tower.hidden_size)

    return _in_batches(tower, items, encode)


def _clips(tower: ModuleTower, items: Sequence[Encode]) -> list[Tensor]:
    """Sounds of one clip each. The silence after a sound is masked."""
    module: Any = tower.module
    heard = tower.numbers(np.concatenate([item.arrays["mel"] for item in items]))
    steps = torch.tensor([(int(item.arrays["frames"]) - 1) // 2 + 1 for item in items])
    silent = torch.arange(heard.shape[2] // 2) >= steps[:, None]
    mask = torch.zeros(silent.shape, dtype=tower.dtype)
    mask.masked_fill_(silent, torch.finfo(tower.dtype).min)
    wide = mask[:, None, None].expand(-1, 1, silent.shape[1], -1).to(tower.device)
    made = module.audio_tower(heard, attention_mask=wide).last_hidden_state
    rows = module.multi_modal_projector(made)
    return [one[: item.count] for one, item in zip(rows, items, strict=True)]


def _filled_clips(tower: ModuleTower, items: Sequence[Encode]) -> list[Tensor]:
    """Sounds of several clips. Silence is not masked. Some steps become one row."""
    module: Any = tower.module
    rows: list[Tensor] = []
    for item in items:
        made = module.audio_tower(tower.numbers(item.arrays["mel"])).last_hidden_state
        joined = made.reshape(-1, module.config.audio_config.intermediate_size)
        rows.append(module.multi_modal_projector(joined))
    return rows


def _foreign(tower: ModuleTower, items: Sequence[Encode]) -> list[Tensor]:
    """Each image by itself, as a processor of Transformers has prepared it."""
    return [image_rows(tower.module, tower.tensors(item.arrays)) for item in items]


def image_rows(module: Any, given: Mapping[str, Tensor]) -> Tensor:
    """The rows that a module makes of one image."""
    made = _joined(_features(module.get_image_features(**given)))
    return made.reshape(-1, made.shape[-1])


CALLS: dict[str, EncodeItems] = {
    "llava": _squares,
    "llava_next": _sized,
    "llava_onevision": partial(_sized, may_be_beside=True),
    "pixtral": _sized,
    "mistral3": _sized,
    "gemma3": _squares,
    "gemma4": _pooled,
    "gemma4_unified": partial(_pooled, at_once=True),
    "internvl": _squares,
    "idefics3": _tiles,
    "smolvlm": _tiles,
    "qwen2_vl": _patches,
    "qwen2_5_vl": _patches,
    "qwen3_vl": _patches,
    "qwen3_vl_moe": _patches,
    "qwen3_5": _patches,
    "qwen3_5_moe": _patches,
    "glm4v": partial(_patches, cut_up=_group_by_group),
    "glm4v_moe": partial(_patches, cut_up=_group_by_group),
    "glm46v": partial(_patches, cut_up=_group_by_group),
    "glm_ocr": partial(_patches, cut_up=_group_by_group),
    "paddleocr_vl": partial(_patches, cut_up=_line_by_line),
    "qwen2_audio": _clips,
    "voxtral": _filled_clips,
    "transformers": _foreign,
}
