"""What files say of how images are prepared, as models of some years have them, against what
Transformers reads in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import SamplingParams
from quire.errors import CorruptModel, QuireError
from quire.families.media import glm4v, idefics3, llava, llava_next, paddleocr_vl, pixtral, qwen_vl
from quire.families.media.family import MediaConfig
from quire.families.media.qwen_vl import ShapedImages
from quire.weights.hf_config import read_processor_config
from tests.media.families import SEEING
from tests.media.test_sizes import normalised
from tests.media.tiny import FIRST_ADDED, picture, save_tiny

IMAGE = picture(90, 60)
QWEN = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2}


def config(processor: Any, asked: Any = None, **model: Any) -> MediaConfig:
    return MediaConfig.of(model, processor, asked or {}, lambda _: None)


def written(path: Path, **files: Any) -> Path:
    for name, values in files.items():
        (path / f"{name}.json").write_text(json.dumps(values))
    return path


def test_what_was_saved_last_counts(tmp_path: Path) -> None:
    from transformers import AutoFeatureExtractor, AutoImageProcessor

    seen = {"image_processor_type": "CLIPImageProcessor", "image_mean": [0.1] * 3}
    heard = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 96}
    stale = seen | heard | {"image_mean": [0.3] * 3, "feature_size": 80}
    clips = {"fps": 1}
    parts = {"image_processor": seen, "feature_extractor": heard, "video_processor": clips}
    both = {"preprocessor_config": stale, "video_preprocessor_config": {"fps": 9}}
    written(tmp_path, processor_config=parts, **both)
    said = read_processor_config(tmp_path)
    assert said == seen | heard | {"video_processor": clips}
    assert tuple(said["image_mean"]) == AutoImageProcessor.from_pretrained(tmp_path).image_mean
    assert said["feature_size"] == AutoFeatureExtractor.from_pretrained(tmp_path).feature_size
    written(tmp_path, processor_config={"audio_processor": heard})
    assert read_processor_config(tmp_path) == heard | {"video_processor": {"fps": 9}}
    assert AutoFeatureExtractor.from_pretrained(tmp_path).feature_size == 96
    written(tmp_path, processor_config={"processor_class": "LlavaProcessor"})
    assert read_processor_config(tmp_path) == stale | {"video_processor": {"fps": 9}}


@pytest.mark.parametrize("key", ["image", "multimodal"])
def test_mistrals_own_format_says_how_large_images_are(tmp_path: Path, key: str) -> None:
    image = {"image_patch_size": 14, "max_image_size": 1540, "spatial_merge_size": 2}
    written(tmp_path, tekken={"config": {}, "vocab": [], key: image})
    said = read_processor_config(tmp_path)
    model: dict[str, Any] = {"vision_config": {"patch_size": 14}, "spatial_merge_size": 2}
    assert pixtral.read_mistral3(config(said, **model)).size(4000, 2000) == (1540, 784)
    written(tmp_path, tekken={"config": {}, "vocab": []})
    assert read_processor_config(tmp_path) == {}


@pytest.mark.parametrize(
    "kind", ["CLIPImageProcessor", "LlavaImageProcessor", "SiglipImageProcessor"]
)
def test_padding_is_of_the_processor_that_knows_it(tmp_path: Path, kind: str) -> None:
    from transformers import AutoImageProcessor

    side = {"height": 56, "width": 56}
    said = {"image_processor_type": kind, "do_pad": True, "size": side, "crop_size": side}
    processor = AutoImageProcessor.from_pretrained(written(tmp_path, preprocessor_config=said))
    rules = llava.read(config(said, vision_config={"patch_size": 14, "image_size": 56}))
    mine = normalised(rules, rules.prepare(IMAGE, together=1)["pixels"])
    theirs = processor([IMAGE], return_tensors="np")["pixel_values"]
    np.testing.assert_allclose(mine, theirs, atol=1e-5)


BOUNDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"min_pixels": 3136, "max_pixels": 4000}, {}),
    ({"max_pixels": 4000}, {}),
    ({"min_pixels": 20000}, {"max_pixels": 30000}),
    ({"size": {"shortest_edge": 784, "longest_edge": 4000}}, {}),
    ({"min_pixels": 784, "max_pixels": 3000, "size": {"max_pixels": 9, "min_pixels": 9}}, {}),
    ({"max_pixels": 3000, "size": {"shortest_edge": 784, "longest_edge": 90000}}, {}),
    ({"min_pixels": None, "size": {"shortest_edge": 784, "longest_edge": 3000}}, {}),
    # Callers count before files, whichever names either has.
    ({"min_pixels": 3136, "max_pixels": 90000}, {"max_pixels": 3000, "min_pixels": 784}),
    (
        {"min_pixels": 3136, "max_pixels": 90000},
        {"size": {"shortest_edge": 784, "longest_edge": 3000}},
    ),
    ({"max_pixels": 3000}, {"max_pixels": None}),
]


@pytest.mark.parametrize(("said", "asked"), BOUNDS, ids=repr)
def test_bounds_of_an_area_are_those_of_transformers(said: Any, asked: Any) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
        Qwen2VLImageProcessorPil as Theirs,
    )

    # Bounds of a call under their old names are no longer read there: they are made those of files.
    old = {key: asked[key] for key in ("min_pixels", "max_pixels") if asked.get(key)}
    more = {key: value for key, value in asked.items() if key == "size"}
    values = {key: dict(of) if isinstance(of, dict) else of for key, of in (said | old).items()}
    made = Theirs(patch_size=14, merge_size=2, **values)([IMAGE], return_tensors="np", **more)
    rules = qwen_vl.read(config(QWEN | said, asked, vision_config={}))
    placed = rules.place(*IMAGE.size, together=1)
    assert placed.grid is not None
    assert [1, *(2 * side for side in placed.grid[1:])] == made["image_grid_thw"][0].tolist()


@pytest.mark.parametrize("asked", [{}, {"size": {"shortest_edge": 40_000, "longest_edge": 90_000}}])
@pytest.mark.parametrize(
    "said",
    [
        {},
        {"size": {"shortest_edge": 9_000, "longest_edge": 20_000}, "temporal_patch_size": 2},
        {"min_pixels": 100, "max_pixels": 200},  # which other classes read
    ],
)
def test_an_image_of_glm_counts_as_two_frames(said: Any, asked: Any) -> None:
    from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil

    rules = glm4v.read(config(said, asked, vision_config={}))
    check_sizes(rules, Glm4vImageProcessorPil(**(said | asked)))


def check_sizes(rules: ShapedImages, theirs: Any) -> None:
    for size in ((90, 70), (400, 300), (5, 90), (90, 5), (20, 20), (3000, 2000)):
        placed = rules.place(*size, together=1)
        made = theirs([picture(*size)], return_tensors="np")
        assert placed.grid is not None
        assert [1, *(2 * side for side in placed.grid[1:])] == made["image_grid_thw"][0].tolist()


@pytest.mark.parametrize(
    "said", [{}, {"min_pixels": 5_000, "max_pixels": 90_000}, {"patch_size": 10, "merge_size": 2}]
)
def test_small_images_of_paddleocr_grow_side_by_side(said: Any) -> None:
    from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import (
        PaddleOCRVLImageProcessorPil,
    )

    rules = paddleocr_vl.read(config(said, {}, vision_config={}))
    check_sizes(rules, PaddleOCRVLImageProcessorPil(**said))


def test_what_is_half_said_is_refused() -> None:
    size = {"shortest_edge": 784, "longest_edge": 3000}
    refused: list[tuple[Any, Any, str]] = [
        ({"size": {"shortest_edge": 784}}, {}, "longest_edge is missing"),
        ({"size": {"min_pixels": 784, "max_pixels": 3000}}, {}, "shortest_edge is missing"),
        ({}, {"size": {"longest_edge": 3000}}, "shortest_edge is missing"),
        ({}, {"size": size, "max_pixels": 4000}, "max_pixels must be the longest_edge of size"),
        # Transformers takes null for no.
        ({"do_rescale": None}, {}, "do_rescale must be true or false"),
        ({"do_normalize": None}, {}, "do_normalize must be true or false"),
        ({"do_resize": None}, {}, "do_resize must be true or false"),
    ]
    for said, asked, why in refused:
        with pytest.raises(QuireError, match=why):
            qwen_vl.read(config(QWEN | said, asked, vision_config={}))
    both = config(QWEN | {"cap_pixels_per_frame": True}, vision_config={})
    with pytest.raises(CorruptModel, match="cap_pixels_per_frame must be false"):
        qwen_vl.reader(stamped=False, ticked=True)(both)


def test_what_files_leave_out_is_what_transformers_has() -> None:
    """Named by the classes: those of videos cannot be made without torchvision."""
    sizes = {"vision_config": {"image_size": 384}}
    assert llava.read(config({}, **sizes)).edge == 224
    assert llava_next.read(config({}, **sizes)).tile == 224
    siglip = {"vision_config": {"model_type": "siglip_vision_model"}}
    assert llava_next.read_onevision(config({}, **siglip)).tile == 384
    tiled = idefics3.read(config({"max_image_size": {"longest_edge": 384}}, **sizes))
    assert (idefics3.read(config({}, vision_config={})).tile, tiled.edge) == (364, 4 * 364)
    older = qwen_vl.reader(stamped=False, ticked=True)(config({}, vision_config={})).images
    assert (older.least, older.most) == (128 * 28 * 28, 768 * 28 * 28)
    newer = qwen_vl.reader(stamped=True, ticked=False)(config({}, vision_config={})).images
    assert (newer.least, newer.most) == (128 * 32 * 32, 768 * 32 * 32)
    assert newer.normalised.mean == newer.normalised.std == (0.5,) * 3


def test_a_model_whose_files_say_nothing_of_images_runs_its_text(tmp_path: Path) -> None:
    family = SEEING["qwen2_vl"]
    model = save_tiny(tmp_path, family.make(), family.added, family.processor)
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(CorruptModel, match=r"no preprocessor_config\.json or"):
        model.llm()
    with model.llm(language_model_only=True) as llm:
        [made] = llm.generate("text", SamplingParams(max_tokens=2), use_tqdm=False)
        assert FIRST_ADDED not in (made.prompt_token_ids or [])
        assert made.outputs[0].token_ids
