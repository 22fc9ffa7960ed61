"""Greedy answers of the default model equal Transformers' (fp32, eager attention).

A sixteenth of the prompts in the gate, of every kind and both forms, and the first tokens of each;
all with --long.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, RequestOutput, SamplingParams

ORACLE = Path(__file__).parent / "oracle.json.gz"
NEAR_TIE = 1e-3  # nats between the two likeliest tokens


@pytest.fixture(scope="module")
def answers() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gzip.decompress(ORACLE.read_bytes()))["answers"]
    return found


@pytest.fixture(scope="module")
def llm(default_model: Path) -> Iterator[LLM]:
    with LLM(str(default_model), dtype="float32", kv_cache_memory_bytes=1 << 30) as made:
        yield made


def first_difference(ours: list[int], theirs: list[int]) -> int | None:
    pairs = enumerate(zip(ours, theirs, strict=True))
    return next((i for i, (a, b) in pairs if a != b), None)


def compare(outputs: list[RequestOutput], answers: list[dict[str, Any]], most: int) -> int:
    """How many answers differ in so many tokens; each must part at a near tie, and agree in
    logprobs until then."""
    num_different = 0
    for output, answer in zip(outputs, answers, strict=True):
        mine = output.outputs[0]
        parted = first_difference(list(mine.token_ids), answer["tokens"][:most])
        assert mine.logprobs is not None
        for i in range(most if parted is None else parted):
            ours = mine.logprobs[i][mine.token_ids[i]].logprob
            assert abs(ours - answer["logprobs"][i]) <= 1e-3, (output.request_id, i)
        if parted is not None:
            num_different += 1
            gap = answer["gaps"][parted]
            assert gap < NEAR_TIE, f"{output.request_id} parts at {parted}, where the gap is {gap}"
    return num_different


def test_all_but_two_answers_equal_transformers(
    llm: LLM, answers: list[dict[str, Any]], long_mode: bool
) -> None:
    assert len(answers) == 128 and all(len(a["tokens"]) == 64 for a in answers)
    answers, most = (answers, 64) if long_mode else (answers[::17], 20)
    params = SamplingParams(temperature=0, max_tokens=most, ignore_eos=True, logprobs=0)
    prompts = [{"prompt_token_ids": a["prompt"]} for a in answers]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert compare(outputs, answers, most) <= 2
