"""Counts and pixels of hundreds of sizes, against Transformers' own processors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from quire.families.media import idefics3, llava_next
from quire.families.media.family import MediaConfig
from tests.media.families import NEXT, TILES
from tests.media.tiny import picture


def sizes(count: int, most: int, seed: int = 3) -> Iterator[tuple[int, int]]:
    rng = np.random.default_rng(seed)
    for width, height in rng.integers(1, most, (count, 2)).tolist():
        if max(width, height) <= 60 * min(width, height):
            yield width, height


def config(processor: dict[str, Any], **model: Any) -> MediaConfig:
    return MediaConfig.of(model, processor, {}, lambda _: None)


def normalised(rules: Any, pixels: Any) -> Any:
    mean, std = (np.array(x)[:, None, None] for x in (rules.normalised.mean, rules.normalised.std))
    return (pixels.astype(np.float32) * rules.normalised.factor - mean) / std


@pytest.mark.parametrize("split", [True, False])
def test_tiles_of_idefics3(split: bool) -> None:
    from transformers.models.idefics3.image_processing_pil_idefics3 import (
        Idefics3ImageProcessorPil,
    )

    processor = {**TILES, "do_image_splitting": split}
    theirs = Idefics3ImageProcessorPil(**processor, return_row_col_info=True)
    rules = idefics3.read(config(processor, vision_config={"image_size": 28, "patch_size": 7}))
    for width, height in sizes(40, 300):
        image = picture(width, height)
        made = theirs([[image]], return_tensors="np")
        ours = rules.prepare(image, together=1)["pixels"]
        assert rules.grid(width, height) == (made["rows"][0][0], made["cols"][0][0])
        assert ours.shape == made["pixel_values"][0].shape
        assert np.abs(normalised(rules, ours) - made["pixel_values"][0]).max() < 1e-5
        placed = rules.place(width, height, together=1)
        assert placed.text.count(rules.pad) == len(placed.runs) == len(ours)


def test_grids_of_llava_next() -> None:
    from transformers.models.llava_next.image_processing_pil_llava_next import (
        LlavaNextImageProcessorPil,
    )
    from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor

    theirs = LlavaNextImageProcessorPil(**NEXT)
    counting: Any = object.__new__(LlavaNextProcessor)
    counting.image_processor, counting.patch_size = theirs, 14
    counting.num_additional_image_tokens = 0
    rules = llava_next.read(config(NEXT, vision_config={"patch_size": 14}))
    for number, (width, height) in enumerate(sizes(500, 600)):
        count = counting._get_number_of_features(height, width, 56, 56)
        assert rules.place(width, height, together=1).count == count
        if number < 25:
            image = picture(width, height)
            ours = rules.prepare(image, together=1)["pixels"]
            made = theirs([image], return_tensors="np")["pixel_values"][0]
            assert np.abs(normalised(rules, ours) - made).max() < 1e-5
