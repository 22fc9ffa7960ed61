"""Images that callers encoded themselves: the same answers as the images give, and only where they
are let in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from quire import LLM, SamplingParams
from quire.errors import InvalidPrompt
from tests.media.families import SEEING
from tests.media.seeing import Seeing
from tests.media.tiny import TinyModel, picture, save_tiny

GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, logprobs=0)
IMAGES = [picture(90, 70, 1), picture(40, 60, 2)]


@pytest.fixture(scope="module", params=["gemma3", "qwen3_vl"])
def family(request: Any) -> Seeing:
    return SEEING[request.param]


@pytest.fixture(scope="module")
def model(family: Seeing, tmp_path_factory: Any) -> TinyModel:
    path = tmp_path_factory.mktemp("embedded")
    return save_tiny(path, family.make(), family.added, family.processor)


@pytest.fixture(scope="module")
def llm(model: TinyModel) -> Any:
    with model.llm(enable_mm_embeds=True) as made:
        yield made


def prompt(family: Seeing, images: Any, count: int = 2) -> dict[str, Any]:
    text = "See " + f"{family.placeholder} then " * count
    return {"prompt": text, "multi_modal_data": {"image": images}}


def answer(llm: LLM, asked: dict[str, Any]) -> tuple[list[int], list[float]]:
    """The ids of the prompt, and how likely each token of its answer is."""
    [output] = llm.generate(asked, GREEDY, use_tqdm=False)
    lines = output.outputs[0].logprobs or []
    scores = [next(iter(line.values())).logprob for line in lines]
    return list(output.prompt_token_ids or []), scores


def same(one: tuple[list[int], list[float]], other: tuple[list[int], list[float]]) -> bool:
    return one[0] == other[0] and np.allclose(one[1], other[1], atol=1e-4)


def encoded(family: Seeing, model: TinyModel) -> list[tuple[torch.Tensor, list[int]]]:
    """What Transformers' tower makes of each image, and the grid of its patches if it has one."""
    found = []
    for image in IMAGES:
        inputs = family.inputs(family.processor, [image])
        with torch.inference_mode():
            made = model.module.model.get_image_features(**inputs)
        deeper = getattr(made, "deepstack_features", None) or ()
        parts = [
            x if isinstance(x, torch.Tensor) else torch.cat(list(x))
            for x in (made.pooler_output, *deeper)
        ]
        rows = torch.cat([part.reshape(-1, part.shape[-1]) for part in parts], 1)
        grid = inputs["image_grid_thw"][0].tolist() if "image_grid_thw" in inputs else []
        found.append((rows.clone(), grid))
    return found


def given(rows: list[tuple[torch.Tensor, list[int]]]) -> Any:
    if not rows[0][1]:
        return [row for row, _ in rows]
    embeds = torch.cat([row for row, _ in rows])
    return {"image_embeds": embeds, "image_grid_thw": torch.tensor([grid for _, grid in rows])}


def test_embeddings_answer_as_their_images_do(family: Seeing, model: TinyModel, llm: LLM) -> None:
    rows = encoded(family, model)
    wanted = answer(llm, prompt(family, IMAGES))
    assert same(answer(llm, prompt(family, given(rows))), wanted)
    shelf = llm._session.model.executor.shelf
    before = shelf.num_encoded
    assert same(answer(llm, prompt(family, given(rows))), wanted)
    assert shelf.num_encoded == before  # the same content is there already
    assert not same(answer(llm, prompt(family, given(rows[::-1]))), wanted)
    one = given(rows[:1])
    alone = one if isinstance(one, dict) else one[0]
    first = answer(llm, prompt(family, IMAGES[:1], 1))
    assert same(answer(llm, prompt(family, alone, 1)), first)


def test_what_is_no_embedding_says_why(family: Seeing, model: TinyModel, llm: LLM) -> None:
    rows = encoded(family, model)[0][0]
    broken = rows.clone()
    broken[0, 0] = torch.nan
    says: dict[str, Any] = {
        "rows are 7 wide": torch.zeros(4, 7),
        r"shape \(2, 2, 2, 2\)": torch.zeros(2, 2, 2, 2),
        r"shape \(0, 32\)": torch.zeros(0, 32),
        "layout torch.sparse": torch.eye(32).to_sparse(),
        "not finite": broken,
        "among tensors": [rows, IMAGES[0]],
        "image_embeds and image_grid_thw": {"pixels": rows},
        "not what image_grid_thw says": {
            "image_embeds": rows,
            "image_grid_thw": torch.tensor([[1, 3, 5]]),
        },
    }
    if "qwen" in type(model.module).__name__.lower():
        says["pass image_embeds and image_grid_thw"] = rows
        says.pop("not finite")
        says["rows are 7"] = {"image_embeds": torch.zeros(4, 7), "image_grid_thw": [[1, 4, 4]]}
    for why, images in says.items():
        with pytest.raises(InvalidPrompt, match=why):
            llm.generate(prompt(family, images, 1), GREEDY, use_tqdm=False)


def test_they_are_kept_out_unless_asked_for(family: Seeing, model: TinyModel) -> None:
    with model.llm() as llm:
        for images in (torch.zeros(16, 32), [torch.zeros(16, 32)], {"image_embeds": 1}):
            with pytest.raises(InvalidPrompt, match="enable_mm_embeds=True"):
                llm.generate(prompt(family, images, 1), GREEDY, use_tqdm=False)


def test_a_family_whose_text_follows_from_the_size_refuses(tmp_path_factory: Any) -> None:
    family = SEEING["pixtral"]
    path = tmp_path_factory.mktemp("pixtral")
    model = save_tiny(path, family.make(), family.added, family.processor)
    with model.llm(enable_mm_embeds=True) as llm:
        with pytest.raises(InvalidPrompt, match="depends on its size"):
            llm.generate(prompt(family, torch.zeros(4, 32), 1), GREEDY, use_tqdm=False)
        # One placeholder among ids becomes what stands for the image in a text.
        text = prompt(family, IMAGES[:1], 1)
        wanted = answer(llm, text)
        placeholder = llm.get_tokenizer().convert_tokens_to_ids("[IMG]")
        kept = np.array(llm.get_tokenizer().encode(text["prompt"]))
        assert (kept == placeholder).sum() == 1
        asked = {**text, "prompt_token_ids": kept.tolist()}
        asked.pop("prompt")
        assert same(answer(llm, asked), wanted)
