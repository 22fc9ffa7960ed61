"""Prompts that begin alike share blocks up to their first different image or video, also where
positions have three coordinates, and where a block is the snapshot of a state; what is computed
behind such blocks is what Transformers computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quire import LLM
from tests.media.test_families import COUNT, GREEDY, chosen
from tests.media.test_videos import IMAGE, RATE, VIDEO, clip, inputs_of, saved
from tests.media.tiny import FIRST_ADDED, TinyModel, picture

BLOCK = 16
WORDS = "many words that come first and fill a block or two of the cache " * 2
BEHIND = " and what stands behind it is longer than a block of the cache, so that it stays, too"


@pytest.fixture(scope="module", params=["qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(name: str, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return saved(name, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llm(model: TinyModel) -> Any:
    with model.llm() as made:
        yield made


def asked(llm: LLM, prompt: str, kind: str, medium: Any) -> Any:
    if kind == "video":
        medium = np.stack([np.asarray(frame) for frame in medium]), {"fps": RATE}
    made: Any = {"prompt": prompt, "multi_modal_data": {kind: medium}}
    return llm.generate(made, GREEDY, use_tqdm=False)[0]


def check(output: Any, model: TinyModel, name: str, kind: str, medium: Any) -> None:
    """That these are the tokens and the logprobs of Transformers."""
    ids = list(output.prompt_token_ids)
    videos, images = ([], [medium]) if kind == "image" else ([medium], [])
    tokens, logprobs = model.written(ids, COUNT, **inputs_of(videos, images, ids, name))
    assert list(output.outputs[0].token_ids) == tokens
    assert chosen(output.outputs[0]) == pytest.approx(logprobs, abs=1e-3)


MEDIA: dict[str, tuple[str, Any, Any]] = {
    "image": (IMAGE, picture(90, 70, 1), picture(90, 70, 2)),
    "video": (VIDEO, clip(6, 1), clip(6, 2)),
}


@pytest.mark.parametrize("kind", MEDIA)
def test_blocks_are_shared_up_to_another_medium(
    llm: LLM, model: TinyModel, name: str, kind: str
) -> None:
    llm.reset_prefix_cache()
    here, first, second = MEDIA[kind]
    whole, cut = WORDS + here + BEHIND, WORDS + here + " else"
    turns = [(whole, first), (whole, second), (whole, first), (cut, first)]
    outputs = [asked(llm, text, kind, medium) for text, medium in turns]
    for output, (_, medium) in zip(outputs, turns, strict=True):
        check(output, model, name, kind, medium)
    ids = outputs[0].prompt_token_ids
    shown = [i for i, token in enumerate(ids) if token in (FIRST_ADDED, FIRST_ADDED + 3)]
    new, other, same, shorter = (output.num_cached_tokens for output in outputs)
    assert new == 0
    assert other == shown[0] // BLOCK * BLOCK > 0
    assert same == (len(ids) - 1) // BLOCK * BLOCK > shown[-1]
    # The last of these blocks ends inside the medium: the rest of its rows are computed with.
    assert shown[0] < shorter == (shown[-1] + 2) // BLOCK * BLOCK <= shown[-1]
