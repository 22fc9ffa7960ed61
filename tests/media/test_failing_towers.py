"""A tower that cannot encode an item ends the rows that hold it, and no others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from quire import LLM, BeamSearchParams, SamplingParams
from quire.errors import BatchError, MediumFailed, RowError, UnsupportedModel
from quire.executor.shelf import Shelf
from quire.families.media import llava
from quire.inputs.media.preparing import PreparedMedium
from quire.layers.tp import TensorParallel
from quire.models.towers.build import made_module
from quire.ranks.shares import RankShare
from quire.step import Encode, StepPlan
from tests.media.test_llava import make
from tests.media.tiny import TinyModel, picture

GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
SEEN, BLACK = picture(56, 56), Image.new("RGB", (60, 60))


def asked(text: str, *images: Any) -> dict[str, Any]:
    return {"prompt": text, "multi_modal_data": {"image": list(images)}}


GOOD = ["Text alone.", asked("Look <image> here", SEEN), "Another text, longer than that one."]
MIXED = [
    asked("<image> one", BLACK),
    *GOOD,
    asked("Some words and <image> <image> two", SEEN, BLACK),
    asked("<image> one, and more", BLACK),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: Any) -> TinyModel:
    return make(tmp_path_factory.mktemp("llava"))


def refuse_black(llm: LLM) -> LLM:
    """Have the tower raise over images of one colour, as a kernel may over what it never met."""

    def look(module: Any, given: tuple[Any, ...], named: dict[str, torch.Tensor]) -> None:
        pixels: torch.Tensor = given[0] if given else named["pixel_values"]
        if float(pixels.std(dim=(0, 2, 3)).max()) == 0.0:
            raise RuntimeError("no colours.")

    shelf: Any = llm._session.engine.executor.shelf  # type: ignore[attr-defined]
    shelf.tower.module.vision_tower.register_forward_pre_hook(look, with_kwargs=True)
    return llm


def written(outputs: list[Any]) -> list[list[int]]:
    return [list(o.outputs[0].token_ids) for o in outputs]


def returned(llm: LLM, prompts: list[Any], params: Any = GREEDY) -> list[Any]:
    return llm.generate(prompts, params, use_tqdm=False, on_error="return")


@pytest.fixture(scope="module")
def llm(model: TinyModel) -> Any:
    with model.llm() as made:
        yield refuse_black(made)


@pytest.fixture(scope="module")
def expected(llm: LLM) -> list[list[int]]:
    return written(llm.generate(GOOD, GREEDY, use_tqdm=False))


def check_mixed(llm: LLM, expected: list[list[int]]) -> None:
    found = returned(llm, MIXED)
    assert written(found[1:4]) == expected
    errors = [found[i].error for i in (0, 4, 5)]
    errors += [returned(llm, [MIXED[0]])[0].error]  # which finds nothing that was computed before
    assert [type(error) for error in errors] == [MediumFailed] * 4
    assert "encode the image of this prompt" in str(errors[0])
    assert "encode image 2 of 2 of" in str(errors[1])
    assert all("RuntimeError: no colours." in str(error) for error in errors)
    assert llm._session.engine.scheduler.pool.num_used == 0


def test_rows_whose_item_cannot_be_encoded_end_and_the_others_do_not(
    llm: LLM, expected: list[list[int]]
) -> None:
    check_mixed(llm, expected)


def test_it_may_fail_in_the_middle_of_a_prompt_while_another_plan_is_on_its_way(
    model: TinyModel, expected: list[list[int]]
) -> None:
    options = {"max_num_batched_tokens": 11, "async_scheduling": True, "block_size": 4}
    with refuse_black(model.llm(**options)) as llm:
        check_mixed(llm, expected)


def test_a_medium_that_cannot_be_prepared_again_ends_its_rows(
    llm: LLM, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was dropped from the shelf is prepared where the engine plans."""

    def gone(medium: PreparedMedium) -> Any:
        raise OSError("Stale file handle")

    monkeypatch.setattr(PreparedMedium, "arrays", gone)
    found = returned(llm, [*GOOD, asked("New <image>", picture(40, 40, 9))])
    assert written(found[:3]) == expected  # those of the others lie on the shelf
    assert isinstance(found[3].error, RowError) and "prepared again: OSError" in str(found[3].error)


def test_samples_and_searches_over_such_an_item_end_whole(llm: LLM) -> None:
    several = SamplingParams(n=3, temperature=1.0, max_tokens=4, ignore_eos=True)
    failed, fine = returned(llm, [MIXED[0], GOOD[1]], several)
    assert isinstance(failed.error, MediumFailed) and len(fine.outputs) == 3
    search = BeamSearchParams(beam_width=2, max_tokens=4)
    with pytest.raises(BatchError, match="prompt 1: the model could not") as caught:
        llm.beam_search([GOOD[1], MIXED[0]], search)
    assert len(caught.value.outputs[0].sequences) == 2
    assert llm._session.engine.scheduler.pool.num_used == 0


def test_a_broken_tower_is_told_with_the_first_image_and_text_goes_on(
    model: TinyModel, expected: list[list[int]], tmp_path: Path
) -> None:
    for file in model.path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    stored = load_file(tmp_path / "model.safetensors")
    name = next(name for name in stored if name.endswith("patch_embedding.weight"))
    stored[name] = torch.zeros(1, *stored[name].shape[1:])
    save_file(stored, tmp_path / "model.safetensors", {"format": "pt"})
    with TinyModel(tmp_path, model.module, model.added).llm() as llm:
        found = returned(llm, [*GOOD, asked("And <image>", BLACK)])
        assert written([found[0], found[2]]) == [expected[0], expected[2]]
        for error in (found[1].error, found[3].error):
            assert isinstance(error, MediumFailed)
            assert "has shape [1, " in str(error) and "language_model_only=True" in str(error)


def test_ranks_end_the_same_rows(
    model: TinyModel, expected: list[list[int]], tmp_path: Path
) -> None:
    """Of a model whose processor makes images of a size that its tower does not take."""
    for file in model.path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    sizes = {"crop_size": {"height": 84, "width": 84}, "size": {"shortest_edge": 84}}
    about = json.loads((tmp_path / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(about | sizes))
    with TinyModel(tmp_path, model.module, model.added).llm(tensor_parallel_size=2) as llm:
        found = returned(llm, GOOD)
    assert written([found[0], found[2]]) == [expected[0], expected[2]]
    assert isinstance(found[1].error, MediumFailed) and "84*84" in str(found[1].error)


class _OtherRankFails:
    """An exchange with a rank that could not encode the second item."""

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        return part + torch.tensor([0.0, 1.0])

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        return [part, part]


class _Halves:
    """A tower of two numbers a row."""

    hidden_size = row_width = 2

    def encode(self, items: Any) -> list[torch.Tensor]:
        return [torch.full((one.count, 2), 0.5) for one in items]


def test_what_another_rank_could_not_encode_is_left_out_on_this_one() -> None:
    shelf = Shelf(_Halves, tp=TensorParallel(RankShare(0, 2), _OtherRankFails()))
    plan = StepPlan(encode=tuple(Encode(serial, "image", 3, {}) for serial in (7, 8)))
    assert shelf.change_each(plan) == {8: "another rank could not"}
    assert list(shelf._rows) == [7]


class _Counting(_Halves):
    """One that says how many items it was given each time, and takes no serial 9."""

    def __init__(self) -> None:
        self.given: list[int] = []

    def encode(self, items: Any) -> list[torch.Tensor]:
        self.given.append(len(items))
        if any(one.serial == 9 for one in items):
            raise ValueError("not this one")
        return super().encode(items)


def test_items_of_a_pass_are_encoded_together_unless_one_of_them_fails() -> None:
    tower = _Counting()
    shelf = Shelf(lambda: tower)
    some = [tuple(Encode(serial, "image", 3, {}) for serial in each) for each in ((1, 2), (3, 9))]
    assert [shelf.change_each(StepPlan(encode=each)) for each in some] == [
        {},
        {9: "ValueError: not this one"},
    ]
    assert tower.given == [2, 2, 1, 1] and list(shelf._rows) == [1, 2, 3]
    assert shelf.num_encoded == 3


def test_a_tower_that_this_transformers_lacks_says_what_to_do() -> None:
    with pytest.raises(UnsupportedModel, match="has no FutureModel.*pip install -U transformers"):
        made_module(replace(llava.FAMILY, module="FutureModel"), {})
