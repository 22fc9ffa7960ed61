"""Counts and pixels of hundreds of sizes, against Transformers' own processors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from quire.errors import CorruptModel
from quire.families.media import idefics3, internvl, llava, llava_next, pixtral
from quire.families.media.family import MediaConfig
from tests.media.families import LINED, MERGED, NEXT, ONE, STRETCHED, TILES
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


ODD = (-1, 10**400, float("nan"), "x", [None], [[1]], {"a": 1}, True)
ABSURD = [
    *(("image_mean", bad) for bad in (10**400, float("nan"), "x", [None], [1, 2], {"a": 1})),
    *(("image_std", bad) for bad in (0, [1, 0.0, 1], "x")),
    *(("rescale_factor", bad) for bad in ODD),
    *(("image_grid_pinpoints", bad) for bad in (*ODD, [[1, 0]], [["a", "b"]], [[2**40, 3]])),
    *(("resample", bad) for bad in (*(bad for bad in ODD if bad != 10**400), 6, 1.5)),
    *(("crop_size", bad) for bad in ({"height": 336, "width": 300}, {"height": 300})),
    ("do_resize", False),
    *(("video_processor", bad) for bad in (None, *(bad for bad in ODD if bad != {"a": 1}))),
]


@pytest.mark.parametrize(("key", "value"), ABSURD, ids=repr)
def test_absurd_values_of_a_processor_are_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(CorruptModel, match=f"config: {key} must be"):
        llava_next.read(config({key: value}, vision_config={}))
    with pytest.raises(CorruptModel, match="image_token_index must be a token id"):
        llava_next.read(config({}, vision_config={}, image_token_index=[]))


@pytest.mark.parametrize(
    ("read", "key"),
    [
        *((one, "size") for one in (llava_next.read_onevision, internvl.read)),
        (llava.read, "crop_size"),
        (idefics3.read, "max_image_size"),
    ],
)
def test_squares_smaller_than_a_patch_are_refused_by_name(read: Any, key: str) -> None:
    vision = {"model_type": "siglip_vision_model", "patch_size": 14}
    with pytest.raises(CorruptModel, match=f"{key} must be at least 14, the side of a patch"):
        read(config({key: {"height": 2, "width": 2, "longest_edge": 2}}, vision_config=vision))


def test_tiles_that_idefics3_does_not_take_are_refused_by_name() -> None:
    """They would be another number of rows, and those of single pixels millions."""
    vision = {"image_size": 364, "patch_size": 14}
    with pytest.raises(CorruptModel, match="max_image_size must be 364, the side of what"):
        idefics3.read(config({"max_image_size": {"longest_edge": 28}}, vision_config=vision))


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


def test_grids_of_llava_onevision() -> None:
    from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
        LlavaOnevisionImageProcessorPil,
    )
    from transformers.models.llava_onevision.processing_llava_onevision import (
        LlavaOnevisionProcessor,
    )

    theirs: Any = LlavaOnevisionImageProcessorPil(**ONE)
    counting: Any = object.__new__(LlavaOnevisionProcessor)
    counting.image_processor, counting.num_image_tokens = theirs, 16
    counting.vision_aspect_ratio = "anyres_max_2"
    about = {"patch_size": 14}
    said = config(ONE, vision_config=about, vision_aspect_ratio="anyres_max_2")
    rules = llava_next.read_onevision(said)
    for number, (width, height) in enumerate(sizes(500, 600)):
        count = counting._get_number_of_features(height, width, 56, 56)
        assert rules.place(width, height, together=1).count == count
        assert rules.place(width, height, together=2).count == 17
        if number < 12:
            image = picture(width, height)
            for together in (1, 2):
                ours = rules.prepare(image, together=together)["pixels"]
                made = theirs([[image] * together], return_tensors="np")["pixel_values"][0]
                assert np.abs(normalised(rules, ours) - made).max() < 1e-5


def test_lines_of_pixtral() -> None:
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    theirs = PixtralImageProcessorPil(**MERGED)
    rules = pixtral.read_mistral3(config(LINED, vision_config={"patch_size": 7}))
    for width, height in sizes(60, 300):
        image = picture(width, height)
        made = theirs([image], return_tensors="np")
        ours = rules.prepare(image, together=1)
        assert ours["size"].tolist() == list(made["image_sizes"][0])
        assert np.abs(normalised(rules, ours["pixels"]) - made["pixel_values"]).max() < 1e-5
        lines, columns = (side // 14 for side in ours["size"].tolist())
        placed = rules.place(width, height, together=1)
        assert placed.runs == (columns,) * lines
        assert placed.text == "[IMG][IMG_BREAK]" * (lines - 1) + "[IMG][IMG_END]"


def test_tiles_of_internvl() -> None:
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    theirs: Any = GotOcr2ImageProcessorPil(**STRETCHED, crop_to_patches=True)
    about = {"image_size": [28, 28], "patch_size": [7, 7]}
    rules = internvl.read(config(STRETCHED, vision_config=about))
    for number, (width, height) in enumerate(sizes(500, 300)):
        count = theirs.get_number_of_image_patches(height, width)
        assert rules.place(width, height, together=1).runs == (4 * count,)
        if number < 40:
            image = picture(width, height)
            ours = rules.prepare(image, together=1)["pixels"]
            made = theirs([image], return_tensors="np")["pixel_values"]
            assert np.abs(normalised(rules, ours) - made).max() < 1e-5
