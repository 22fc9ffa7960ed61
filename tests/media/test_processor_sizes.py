"""Sizes in models' files by which a medium has no rows, or takes all memory: whatever a number is,
it is refused by its name when the files are read, or media have rows and are prepared soon."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any

import pytest

from quire.errors import CorruptModel, InvalidPrompt
from quire.families.media import glm_videos
from quire.families.media.family import MediaConfig, MediaFamily
from quire.families.media.registry import FAMILIES
from quire.families.media.rules import VideoShape

MOST = 2**31 - 1
ABSURD = (0, -1, 1, 2, 7, 4096, 8192, 65_536, 10**6, MOST, 2**31, 1e-300, 0.1, 1.0, 1e6, 1e300)
IMAGES = ((640, 480), (1, 1), (3000, 20), (20, 3000))
SECONDS = 1.0
BYTES = 4 << 30  # an image's worst is a few hundred tiles, which are bounded otherwise


class Spied(dict[str, Any]):
    """Remembers which keys were read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def get(self, key: Any, default: Any = None) -> Any:
        self.read.add(str(key))
        return super().get(key, default)


def usual(family: MediaFamily) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json and the processor's config, with nothing but what a family cannot do without."""
    model: dict[str, Any] = {}
    if family.name == "llava_onevision":
        model["vision_feature_select_strategy"] = "full"
    if family.name == "idefics3" or family.name == "smolvlm":
        model["vision_config"] = {"image_size": 364, "patch_size": 14}
    return model, {}


def rules_of(
    family: MediaFamily, kind: str, model: Mapping[str, Any], processor: Mapping[str, Any]
) -> Any:
    read = MediaConfig.of(model, processor, {}, lambda _: None)
    return family.readers[kind](read)


def sizes_of(kind: str) -> Iterator[tuple[Any, ...]]:
    if kind == "image":
        yield from IMAGES
    elif kind == "audio":
        yield from ((samples,) for samples in (1600, 16_000, 160_000))
    else:
        for frames in (1, 9, 100):
            yield (VideoShape(frames, 64, 48, 2.0),)
            for rate in (25.0, 0.01, 1e6, None):
                yield (VideoShape(frames, 64, 48, rate, sampled=False),)


def use(rules: Any, kind: str) -> None:
    for size in sizes_of(kind):
        try:
            placed = rules.place(*size, together=1)
        except InvalidPrompt:  # a sound that is too long, a video without times
            continue
        assert placed.count >= 1 and all(run >= 1 for run in placed.runs), size
        assert 0 < rules.num_bytes(*size, together=1) <= BYTES, size


CASES = [
    pytest.param(family, kind, id=f"{family.name}-{kind}")
    for family in FAMILIES
    for kind in family.readers
]


def changed(
    family: MediaFamily, kind: str, value: Any
) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The files with this value at each key that is read, one after the other."""
    model, processor = usual(family)
    seen = Spied(processor)
    inner = {name: Spied(model.get(name, {})) for name in ("vision_config", "audio_config")}
    outer = Spied({**model, **inner})
    read = MediaConfig.of({}, {}, {}, lambda _: None)
    for fields, values in ((read.model, outer), (read.processor, seen), (read.videos, seen)):
        fields.values = values
    family.readers[kind](read)
    for key in seen.read:
        yield key, model, {**processor, key: value}
        if key in ("size", "crop_size", "max_image_size"):
            square, edges = ("height", "width"), ("shortest_edge", "longest_edge")
            for sides in (square, edges, edges[:1], edges[1:]):
                yield f"{key} {sides}", model, {**processor, key: dict.fromkeys(sides, value)}
            both = {edges[0]: value, edges[1]: 4096**2}
            yield f"{key} {edges[0]}", model, {**processor, key: both}
    for name, found in inner.items():
        for key in found.read:
            yield key, {**model, name: {**model.get(name, {}), key: value}}, processor
    for key in outer.read - inner.keys():
        yield key, {**model, key: value}, processor


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_no_number_in_a_file_leaves_media_without_rows_or_takes_all_memory(
    family: MediaFamily, kind: str
) -> None:
    use(rules_of(family, kind, *usual(family)), kind)
    wrong = []
    for value in ABSURD:
        for key, model, processor in changed(family, kind, value):
            began = time.process_time()
            try:
                use(rules_of(family, kind, model, processor), kind)
            except CorruptModel as error:
                assert re.search("must be|encoder takes|is not|is missing", str(error)), error
            except Exception as error:
                wrong.append(f"{key}={value!r}: {type(error).__name__} {error}"[:300])
            if time.process_time() - began > SECONDS:
                wrong.append(f"{key}={value!r}: takes long")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("rate", [1 / 3, 1.0, 9.7, 24.0])
def test_frames_that_are_wanted_several_times_are_all_taken_once(rate: float) -> None:
    """Counted one by one, as Transformers does, those of a slow file would be billions."""
    for total in (1, 2, 9, 50):
        for wanted in (2.1 * rate, 3.0, 7 * rate, 111.0):
            count = max(int(total / rate * wanted), 1)
            each = (min(total - 1, ceil(one * rate / wanted)) for one in range(count))
            found = glm_videos._by_rate(total, rate, wanted, 300)
            assert list(dict.fromkeys(found)) == list(dict.fromkeys(each))
    assert glm_videos._by_rate(9, 1e-8, 1000.0, MOST) == list(range(9))


def patched(family: MediaFamily, **vision: int) -> dict[str, Any]:
    """A config.json whose encoder reads patches of 14 pixels."""
    model, _ = usual(family)
    both = {"patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, **vision}
    return {**model, "vision_config": {**model.get("vision_config", {}), **both}}


SEEING = [(f, kind) for f in FAMILIES for kind in f.readers if kind != "audio"]
SHAPED = ("qwen", "glm", "paddle")  # whose processors name the squares that become rows, too


@pytest.mark.parametrize(("family", "kind"), SEEING, ids=lambda one: getattr(one, "name", one))
@pytest.mark.parametrize("said", [16, {"height": 16, "width": 16}, [14, 16], 13], ids=str)
def test_a_processor_that_cuts_other_patches_than_the_encoder_reads_is_refused(
    family: MediaFamily, kind: str, said: Any
) -> None:
    model = patched(family)
    rules_of(family, kind, model, {"patch_size": 14} | GEMMA4.get(family.name, {}))
    with pytest.raises(CorruptModel) as caught:
        rules_of(family, kind, model, {"patch_size": said} | GEMMA4.get(family.name, {}))
    told = str(caught.value)
    assert "patch_size" in told and str(said) in told
    if isinstance(said, int) or not family.name.startswith(SHAPED):
        assert "patch_size must be 14, the patch_size that config.json has" in told
        assert "take both files from the same model" in told


GEMMA4 = {name: {"pooling_kernel_size": 3} for name in ("gemma4", "gemma4_unified")}


@pytest.mark.parametrize(("family", "kind"), SEEING, ids=lambda one: getattr(one, "name", one))
@pytest.mark.parametrize(
    ("key", "own"), [("merge_size", "spatial_merge_size"), ("temporal_patch_size",) * 2]
)
def test_so_is_one_that_joins_other_squares_or_frames(
    family: MediaFamily, kind: str, key: str, own: str
) -> None:
    if not family.name.startswith(SHAPED):
        pytest.skip("its processor has no such size")
    if key == "temporal_patch_size" and kind == "image" and "glm" not in family.name:
        pytest.skip("images are read alone")
    rules_of(family, kind, patched(family), {key: 2})
    with pytest.raises(CorruptModel, match=f"{key} must be 2, the {own} that config.json has"):
        rules_of(family, kind, patched(family), {key: 4})


def test_a_processor_of_pixtral_may_name_what_becomes_one_row() -> None:
    [mistral3] = [f for f in FAMILIES if f.name == "mistral3"]
    for side in (14, 28):
        rules_of(mistral3, "image", patched(mistral3), {"patch_size": side})
