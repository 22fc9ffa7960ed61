"""Broken and hostile images: each ends its own row with a typed error, the others go on."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import LLM, SamplingParams
from quire.errors import InvalidPrompt
from quire.inputs.media import images
from quire.inputs.media.children import MediaChildren
from quire.inputs.media.images import EncodedImage, OpenImage
from tests.media.abuse import GOOD, accepted, encoded, refused
from tests.media.families import SEEING
from tests.media.tiny import TinyModel, picture, save_tiny

HERE = "<|vision_start|><|image_pad|><|vision_end|>"
SHORT = SamplingParams(temperature=0, max_tokens=2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: Any) -> TinyModel:
    family = SEEING["qwen3_vl"]
    path = tmp_path_factory.mktemp("abuse")
    return save_tiny(path, family.make(), family.added, family.processor)


@pytest.fixture(scope="module")
def llm(model: TinyModel) -> Any:
    with model.llm(allowed_local_media_path=str(model.path)) as made:
        yield made


def ask(image: Any) -> dict[str, Any]:
    return {"prompt": f"Look {HERE}", "multi_modal_data": {"image": image}}


def test_every_bad_image_costs_its_own_row(llm: LLM) -> None:
    bad = refused()
    assert len(bad) >= 40
    prompts: list[Any] = ["plain text"]
    for data in bad.values():
        prompts += [ask(data), ask(GOOD)]
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    outputs = llm.generate(prompts, SHORT, on_error="return", use_tqdm=False)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    wrong = [name for name, o in zip(bad, outputs[1::2], strict=True) if o.error is None]
    assert wrong == []
    assert all(isinstance(o.error, InvalidPrompt) for o in outputs[1::2])
    assert all("image" in str(o.error) for o in outputs[1::2])
    assert all(o.error is None for o in [outputs[0], *outputs[2::2]])
    assert grown < 512 << 20 and time.monotonic() - begun < 60


def test_odd_images_are_images(llm: LLM) -> None:
    good = accepted()
    outputs = llm.generate([ask(data) for data in good.values()], SHORT, use_tqdm=False)
    assert len(outputs) == len(good)


def test_what_is_clear_is_white_and_what_is_turned_is_turned(children: MediaChildren) -> None:
    found = {name: EncodedImage.of(data, children) for name, data in accepted().items()}
    assert np.asarray(found["clear"].open()).min() == 255
    assert found["turned"].size == (32, 48) and found["turned"].open().size == (32, 48)
    assert found["sixteen bits"].open().mode == "RGB"
    assert np.array_equal(np.asarray(found["PNG"].open()), np.asarray(GOOD))
    assert np.array_equal(np.asarray(found["moving"].open().size), (48, 32))


def test_files_that_are_none(llm: LLM, model: TinyModel, tmp_path: Path) -> None:
    import os

    os.mkfifo(model.path / "pipe.png")
    (model.path / "folder.png").mkdir()
    (model.path / "closed.png").symlink_to("/dev/zero")
    for name in ("pipe.png", "folder.png", "closed.png", "absent.png", "../x.png"):
        [output] = llm.generate([ask(model.path / name)], SHORT, on_error="return", use_tqdm=False)
        assert isinstance(output.error, InvalidPrompt), name


def test_a_file_that_changes_costs_its_row(model: TinyModel, children: MediaChildren) -> None:
    path = model.path / "changing.png"
    path.write_bytes(encoded("PNG", picture(40, 40, 1)))
    found = EncodedImage.of(path, children)
    path.write_bytes(encoded("PNG", picture(40, 40, 2)))
    with pytest.raises(InvalidPrompt, match="changed"):
        found.open()


def test_limits_are_said(monkeypatch: pytest.MonkeyPatch, children: MediaChildren) -> None:
    monkeypatch.setattr(images, "MOST_BYTES", 100)
    with pytest.raises(InvalidPrompt, match="at most 100"):
        EncodedImage.of(encoded("PNG"), children)


def test_the_caller_keeps_his_image(llm: LLM) -> None:
    given = picture(30, 30).convert("P")
    before = (given.mode, given.size, given.tobytes(), dict(given.info))
    llm.generate([ask(given)], SHORT, use_tqdm=False)
    assert (given.mode, given.size, given.tobytes(), dict(given.info)) == before
    other = picture(30, 30, 1).convert("P")
    assert OpenImage.of(given).content != OpenImage.of(other).content


def test_too_many_images_name_the_limit(model: TinyModel) -> None:
    with (
        model.llm(limit_mm_per_prompt={"image": 2}) as llm,
        pytest.raises(InvalidPrompt, match="limit_mm_per_prompt allows 2"),
    ):
        llm.generate({"prompt": HERE * 3, "multi_modal_data": {"image": [GOOD] * 3}}, SHORT)


def test_the_third_of_several_is_named(llm: LLM) -> None:
    given = [GOOD, GOOD, b"no image"]
    with pytest.raises(InvalidPrompt, match="prompt 0: image 3 of 3"):
        llm.generate({"prompt": HERE * 3, "multi_modal_data": {"image": given}}, SHORT)
