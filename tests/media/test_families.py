"""Every family that sees against Transformers: greedy tokens with no, one and several images, for
chunks that cut spans, without the prefix cache, and in small pools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from quire import LLM, SamplingParams
from tests.media.families import SEEING
from tests.media.seeing import Seeing
from tests.media.tiny import FIRST_ADDED, TinyModel, picture, save_tiny
from tests.parity.test_same_tokens import preempt_every_second_step

COUNT = 6
GREEDY = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True, logprobs=0)
Written = tuple[list[int], list[float]]


@pytest.fixture(scope="module", params=SEEING)
def family(request: Any) -> Any:
    return SEEING[request.param]


@pytest.fixture(scope="module")
def model(family: Seeing, tmp_path_factory: Any) -> TinyModel:
    path = tmp_path_factory.mktemp("model")
    return save_tiny(path, family.make(), family.added, family.processor)


def images_of(family: Seeing) -> list[list[Image.Image]]:
    made = [picture(*size, seed) for seed, size in enumerate(family.sizes)]
    one, two, three, four = ([image] for image in made)
    return [one, two + three, four + one, [], two, two + two, [], one]


def prompts_of(family: Seeing) -> list[Any]:
    here = family.placeholder
    texts = [
        f"Look {here} what is it?",
        f"This {here}\nand that{here} differ.",
        f"{here}{here} well",
        "Nothing to see here.",
        f"Some words stand before {here}" + " and many more behind it" * 3,
        f"Twice {here} the same {here}?",
        "A text alone, a little longer than the one before it.",
        f"Seen before: {here}",
    ]
    seen = images_of(family)
    return [
        {"prompt": text, "multi_modal_data": {"image": images}}
        for text, images in zip(texts, seen, strict=True)
    ]


def inputs_of(family: Seeing, images: list[Image.Image], ids: list[int]) -> dict[str, Any]:
    if not images:
        return {}
    made = family.inputs(family.processor, images)
    if family.typed:
        made[family.typed] = torch.tensor([[int(i == FIRST_ADDED) for i in ids]])
    return made


@pytest.fixture(scope="module")
def llm(model: TinyModel) -> Any:
    with model.llm() as made:
        yield made


@pytest.fixture(scope="module")
def expected(family: Seeing, model: TinyModel, llm: LLM) -> list[Written]:
    """What Transformers writes after the ids that quire made."""
    outputs = llm.generate(prompts_of(family), SamplingParams(max_tokens=1), use_tqdm=False)
    return [
        model.written(
            output.prompt_token_ids or [],
            COUNT,
            **inputs_of(family, images, output.prompt_token_ids or []),
        )
        for output, images in zip(outputs, images_of(family), strict=True)
    ]


def check(llm: LLM, prompts: list[Any], expected: list[Written]) -> None:
    for output, (tokens, logprobs) in zip(
        llm.generate(prompts, GREEDY, use_tqdm=False), expected, strict=True
    ):
        answer = output.outputs[0]
        assert list(answer.token_ids) == tokens
        assert chosen(answer) == pytest.approx(logprobs, abs=1e-3)


def chosen(answer: Any) -> list[float]:
    """The logprob of each token."""
    pairs = zip(answer.token_ids, answer.logprobs, strict=True)
    return [line[token].logprob for token, line in pairs]


def test_greedy_tokens_are_those_of_transformers(
    family: Seeing, llm: LLM, expected: list[Written]
) -> None:
    check(llm, prompts_of(family), expected)


@pytest.mark.parametrize("preempted", [False, True], ids=["chunks", "preempted"])
def test_nothing_that_plans_changes_the_tokens(
    family: Seeing, model: TinyModel, expected: list[Written], preempted: bool
) -> None:
    prompts = prompts_of(family)
    chunks = {"max_num_batched_tokens": family.pass_tokens, "max_num_seqs": 3}
    pool = {"num_gpu_blocks_override": family.blocks, "max_model_len": 380}
    options = pool if preempted else {**chunks, "enable_prefix_caching": False}
    with model.llm(**options) as llm:
        llm._session.model.executor.shelf.tower._alone = False  # several together, as on a GPU
        scheduler = llm._session.engine.scheduler
        if preempted:
            preempt_every_second_step(scheduler)
        check(llm, prompts[::-1], expected[::-1])
        assert (scheduler.num_preemptions > 2) == preempted


def test_an_image_of_one_row_is_encoded_alone(tmp_path: Path) -> None:
    """Which Transformers' own class cannot: it computes two of them, beside each other."""
    family, icons = SEEING["mistral3"], [picture(5, 9), picture(9, 5)]
    model = save_tiny(tmp_path, family.make(), family.added, family.processor)
    prompt: Any = {"prompt": "[IMG] and [IMG]", "multi_modal_data": {"image": icons}}
    with model.llm() as llm:
        [made] = llm.generate([prompt], GREEDY, use_tqdm=False)
        ids = list(made.prompt_token_ids or [])
        assert ids.count(FIRST_ADDED) == 2
        check(llm, [prompt], [model.written(ids, COUNT, **inputs_of(family, icons, ids))])


# Positions of three axes with rows for deeper layers, and spans that are seen both ways.
RANKED = ("qwen3_vl", "gemma3")
STATES = ("qwen3_5", "qwen3_5_moe")  # which no rank has a share of


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(name, marks=[] if name in RANKED else pytest.mark.long)
        for name in SEEING
        if name not in STATES
    ],
    indirect=True,
)
def test_two_ranks_see_what_one_sees(
    family: Seeing, model: TinyModel, expected: list[Written]
) -> None:
    some = slice(4)  # every image, one of them twice
    with model.llm(tensor_parallel_size=2, max_num_batched_tokens=300, max_num_seqs=3) as llm:
        check(llm, prompts_of(family)[some], expected[some])
        # Each image once, though several prompts have it. OneVision cuts one that is alone in its
        # prompt, so the one that stands beside others, too, is another medium there.
        both_ways = family is SEEING["llava_onevision"]
        num_encoded = llm._session.engine.scheduler.media.num_encoded
        assert num_encoded == len(family.sizes) + both_ways
