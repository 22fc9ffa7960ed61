"""Tokens that see each other (Gemma 3): no chunk, no block and no prefix hit changes what they
see, and nothing of it is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from quire import LLM, SamplingParams
from quire.errors import InvalidPrompt
from quire.families.media import gemma3
from quire.families.media.family import MediaConfig
from tests.media.families import SEEING, SQUARES
from tests.media.test_families import COUNT, check, images_of, inputs_of, prompts_of
from tests.media.tiny import FIRST_ADDED, TinyModel, picture, save_tiny

FAMILY = SEEING["gemma3"]
HERE = FAMILY.placeholder
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=0)
Written = tuple[list[int], list[float]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: Any) -> TinyModel:
    path = tmp_path_factory.mktemp("gemma3")
    return save_tiny(path, FAMILY.make(), FAMILY.added, FAMILY.processor)


@pytest.fixture(scope="module")
def expected(model: TinyModel) -> list[Written]:
    with model.llm() as llm:
        outputs = llm.generate(prompts_of(FAMILY), SamplingParams(max_tokens=1), use_tqdm=False)
    return [
        model.written(output.prompt_token_ids or [], COUNT, **inputs_of(FAMILY, images, ids))
        for output, images in zip(outputs, images_of(FAMILY), strict=True)
        for ids in [output.prompt_token_ids or []]
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 16, "max_num_seqs": 3},
        {"max_num_batched_tokens": 21, "block_size": 4, "enable_prefix_caching": False},
        {"num_gpu_blocks_override": 20, "block_size": 8, "max_model_len": 100},
        {"async_scheduling": True, "max_num_batched_tokens": 37, "block_size": 32},
        {"batch_invariant": True, "max_num_batched_tokens": 24},
    ],
    ids=["chunks", "uncached", "preempted", "ahead", "invariant"],
)
def test_nothing_that_plans_changes_what_tokens_see(
    model: TinyModel, expected: list[Written], options: dict[str, Any]
) -> None:
    prompts = prompts_of(FAMILY)
    with model.llm(**options) as llm:
        check(llm, prompts, expected)


def test_a_prefix_hit_may_end_inside_of_a_span(model: TinyModel) -> None:
    """The blocks of the first prompt cover half of its image, and those tokens saw all of it."""
    image, params = picture(70, 50), SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    prompts = [
        {"prompt": f"{HERE} {text}", "multi_modal_data": {"image": image}}
        for text in ("one", "quite another question")
    ]

    def asked(llm: LLM) -> tuple[int, list[float]]:
        output = llm.generate(prompts[1], GREEDY, use_tqdm=False)[0]
        lines = output.outputs[0].logprobs or []
        found = [next(iter(line.values())).logprob for line in lines]
        return output.num_cached_tokens or 0, found

    with model.llm(block_size=8, batch_invariant=True) as llm:
        alone = asked(llm)
        llm.reset_prefix_cache()
        first = llm.generate(prompts[0], params, use_tqdm=False)[0]
        after = asked(llm)
    start = (first.prompt_token_ids or []).index(FIRST_ADDED)
    assert alone[0] == 0 and start < after[0] < start + 16
    assert after[1] == alone[1]


def test_the_tokens_of_an_image_see_those_behind_them(model: TinyModel) -> None:
    """Against a model in which they do not: there the answers are others."""
    prompt = prompts_of(FAMILY)[0]
    with model.llm() as llm:
        there = llm.generate(prompt, GREEDY, use_tqdm=False)[0].outputs[0].logprobs
        ids = llm.generate(prompt, GREEDY, use_tqdm=False)[0].prompt_token_ids or []
    one_way = model.written(
        ids, 6, pixel_values=inputs_of(FAMILY, images_of(FAMILY)[0], ids)["pixel_values"]
    )
    found = [next(iter(line.values())).logprob for line in there or []]
    assert not np.allclose(found, one_way[1], atol=1e-3)


def test_a_pass_that_is_too_small_is_refused(model: TinyModel) -> None:
    with model.llm(max_num_batched_tokens=15) as llm:
        assert llm.generate("words alone are computed in parts", GREEDY, use_tqdm=False)
        with pytest.raises(InvalidPrompt, match="16 tokens that see each other.*15"):
            llm.generate(prompts_of(FAMILY)[:1], GREEDY, use_tqdm=False)


def test_pan_and_scan_shows_pieces_that_do_not_see_each_other(model: TinyModel) -> None:
    wide = picture(300, 100)
    options = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 32}
    prompt = {
        "prompt": f"Look: {HERE}?",
        "multi_modal_data": {"image": wide},
        "mm_processor_kwargs": options,
    }
    with model.llm(max_num_batched_tokens=40) as llm:
        output = llm.generate(prompt, GREEDY, use_tqdm=False)[0]
    ids = output.prompt_token_ids or []
    assert ids.count(FIRST_ADDED) == 4 * 16
    made = FAMILY.inputs({**FAMILY.processor, **options, **LIMITS}, [wide])
    types = torch.tensor([[int(i == FIRST_ADDED) for i in ids]])
    tokens, _ = model.written(ids, 6, **made, token_type_ids=types)
    assert list(output.outputs[0].token_ids) == tokens


LIMITS = {"pan_and_scan_max_num_crops": 4, "pan_and_scan_min_ratio_to_activate": 1.2}


def test_pieces_are_those_of_transformers() -> None:
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    said = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 40, **LIMITS}
    rules = gemma3.read(MediaConfig.of({}, SQUARES, said, lambda _: None))
    theirs = Gemma3ImageProcessorPil(**SQUARES, **said)
    mean, std = (np.array(x)[:, None, None] for x in (rules.normalised.mean, rules.normalised.std))
    for width, height in np.random.default_rng(2).integers(20, 300, (60, 2)).tolist():
        image = picture(width, height)
        made = theirs([image], return_tensors="np")
        ours = rules.prepare(image, together=1)["pixels"].astype(np.float32)
        assert (
            len(ours)
            == made["num_crops"][0] + 1
            == len(rules.place(width, height, together=1).runs)
        )
        assert (
            np.abs((ours * rules.normalised.factor - mean) / std - made["pixel_values"]).max()
            < 1e-5
        )


def test_line_breaks_meet_in_ids_as_they_do_in_text(model: TinyModel) -> None:
    """Chats of jobs and of the server come as ids, with one placeholder for an image."""
    texts = [
        f"user\n{HERE} what",
        f"{HERE}\n\n first{HERE}",
        f"a\n{HERE}\n{HERE}\n\n\n b",
        f"x{HERE} y",
    ]
    with model.llm() as llm:
        tokenizer = llm.get_tokenizer()
        for text in texts:
            media = {"multi_modal_data": {"image": [picture(40, 40)] * text.count(HERE)}}
            ids = tokenizer.encode(text)
            asked = [{"prompt": text, **media}, {"prompt_token_ids": ids, **media}]
            one, other = llm.generate(asked, SamplingParams(max_tokens=1), use_tqdm=False)
            assert one.prompt_token_ids == other.prompt_token_ids, text
