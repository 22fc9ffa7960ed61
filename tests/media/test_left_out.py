"""Keys of a processor's file that are left out, null or of another form: images are prepared as
Transformers prepares them, or the file is refused by the name of a key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire.errors import QuireError
from quire.families.media import gemma3, idefics3, internvl, llava, llava_next, pixtral
from quire.families.media.family import MediaConfig
from tests.media.test_processor_files import config, written
from tests.media.test_sizes import normalised
from tests.media.tiny import picture

IMAGES = (picture(90, 60), picture(40, 130))
SQUARE, EDGE = {"height": 56, "width": 56}, {"shortest_edge": 56}
USUAL = {"resample": 3, "image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]}
CROPPED = {**USUAL, "size": EDGE, "crop_size": SQUARE}
GRIDS = {"image_grid_pinpoints": [[56, 112], [112, 56], [112, 112]]}
KINDS: dict[str, tuple[Callable[[MediaConfig], Any], dict[str, Any]]] = {
    "CLIPImageProcessor": (llava.read, CROPPED),
    "LlavaImageProcessor": (llava.read, CROPPED),
    "SiglipImageProcessor": (llava.read, {**USUAL, "size": SQUARE}),
    "LlavaNextImageProcessor": (llava_next.read, {**CROPPED, **GRIDS}),
    "LlavaOnevisionImageProcessor": (
        llava_next.read_onevision,
        {**USUAL, **GRIDS, "size": SQUARE},
    ),
    "Gemma3ImageProcessor": (gemma3.read, {**USUAL, "size": SQUARE}),
    "GotOcr2ImageProcessor": (internvl.read, {**USUAL, "size": SQUARE, "crop_to_patches": True}),
    "Idefics3ImageProcessor": (
        idefics3.read,
        {**USUAL, "size": {"longest_edge": 112}, "max_image_size": {"longest_edge": 56}},
    ),
    "PixtralImageProcessor": (
        pixtral.read,
        {**USUAL, "size": {"longest_edge": 112}, "patch_size": {"height": 14, "width": 14}},
    ),
}
ABSENT = object()
CHANGES: dict[str, dict[str, Any]] = {
    "as usual": {},
    **{f"no {key}": {key: ABSENT} for key in ("size", "crop_size", "resample")},
    "no means": {"image_mean": ABSENT, "image_std": ABSENT},
    **{
        f"null {key}": {key: None}
        for key in ("size", "crop_size", "resample", "image_mean", "image_std", "rescale_factor")
    },
    "null means that are not used": {"do_normalize": False, "image_mean": None, "image_std": None},
    "a number": {"size": 56},
    "an edge": {"size": EDGE},
    "a square": {"size": SQUARE},
    "an edge that is not cropped": {"size": EDGE, "crop_size": ABSENT},
    "cropped": {"do_center_crop": True},
    "cropped to less": {"do_center_crop": True, "crop_size": SQUARE},
    "not cropped": {"do_center_crop": False},
}
# Transformers asks for the size of a crop even where it crops no image; quire does not.
UNUSED = ("Gemma3ImageProcessor", "GotOcr2ImageProcessor", "Idefics3ImageProcessor")
CASES = [
    (kind, change)
    for kind in KINDS
    for change in CHANGES
    if not (change == "cropped" and kind in UNUSED)
]


def theirs(path: Path, said: dict[str, Any], image: Any) -> Any:
    """None where Transformers raises."""
    from transformers import AutoImageProcessor

    try:
        processor = AutoImageProcessor.from_pretrained(written(path, preprocessor_config=said))
        made = np.asarray(processor([image], return_tensors="np")["pixel_values"])
    except (TypeError, ValueError):
        return None
    return made[0] if made.ndim == 5 else made


def ours(read: Callable[[MediaConfig], Any], said: dict[str, Any], image: Any) -> Any:
    """None where quire refuses the file."""
    vision = {"patch_size": 14, "image_size": 56}
    try:
        rules = read(config(said, vision_config=vision))
    except QuireError as refused:
        assert "the processor's config" in str(refused)
        return None
    return normalised(rules, rules.prepare(image, together=1)["pixels"])


@pytest.mark.parametrize(("kind", "change"), CASES)
def test_images_are_prepared_as_in_transformers_or_refused(
    kind: str, change: str, tmp_path: Path
) -> None:
    read, base = KINDS[kind]
    said = {"image_processor_type": kind, **base, **CHANGES[change]}
    said = {key: value for key, value in said.items() if value is not ABSENT}
    for image in IMAGES:
        mine, other = ours(read, said, image), theirs(tmp_path, said, image)
        if mine is not None:
            assert other is not None and mine.shape == other.shape
            np.testing.assert_allclose(mine, other, atol=3e-5)
    if change in ("as usual", "no means", "null means that are not used"):
        assert mine is not None


def test_siglip_stretches_where_no_size_is_said() -> None:
    _, base = KINDS["SiglipImageProcessor"]
    said = {**base, "image_processor_type": "SiglipImageProcessor"}
    del said["size"]
    assert ours(llava.read, said, IMAGES[0]).shape == (1, 3, 224, 224)
