"""Guesses inside the captured steps of a real GPU: the tokens, and with batch_invariant the bits,
of rows that do not guess."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from quire.config import Speculation
from quire.executor.cuda.executor import CudaExecutor
from quire.scheduler.scheduler import Scheduler
from tests.executor.cuda.looping import LOOPING, looping_weights
from tests.executor.cuda.plain import answers
from tests.executor.cuda.test_gpu import gpu_config
from tests.executor.cuda.test_gpu_invariant import SPEC, bits
from tests.executor.cuda.test_guessing import (
    BIASED,
    GREEDY,
    GUESSING,
    LOOSE,
    PENALISED,
    asked,
    check,
)

pytestmark = pytest.mark.gpu
STRENGTH = 5.5  # so that rows leave their loop now and then
ALL = [GREEDY, LOOSE, GREEDY, BIASED, GREEDY, PENALISED]


@pytest.mark.parametrize("count", [1, 4, 11])
@pytest.mark.parametrize(("repeat", "eager"), [(32, False), (1, True)])
def test_rows_that_guess_draw_the_tokens_of_the_plain_runner(
    count: int, repeat: int, eager: bool
) -> None:
    config = gpu_config(max_repeat=repeat, enforce_eager=eager, speculation=GUESSING)
    weights = {name: w.cuda() for name, w in looping_weights().items()}
    executor = CudaExecutor(config, LOOPING, weights)
    try:
        requests = asked(ALL, most=150, count=count)
        scheduler = check(executor, config, requests)
    finally:
        executor.close()
    assert scheduler.guesses.num_accepted > 100


def run(speculation: Speculation | None, **changes: Any) -> tuple[list[tuple[object, ...]], int]:
    """What rows with long prompts write, bit by bit, and how many guesses were right."""
    spec = replace(SPEC, tied_embeddings=False)
    config = gpu_config(
        dtype="bfloat16",
        batch_invariant=True,
        max_model_len=4096,
        **{"num_blocks": 4000, "max_num_batched_tokens": 16384, **changes},
        speculation=speculation,
    )
    made = looping_weights(spec, torch.bfloat16, strength=STRENGTH)
    weights = {name: w.cuda() for name, w in made.items()}
    executor = CudaExecutor(config, spec, weights)
    requests = asked([{"logprobs": 2, **GREEDY}, LOOSE], most=150, count=7)
    longer = [
        replace(one, number=100 + i, prompt_ids=one.prompt_ids.repeat(40 * i))
        for i, one in enumerate(requests[1:3], start=1)
    ]
    seen: list[Scheduler] = []
    try:
        got = answers(executor, config, [*requests, *longer], prefix_groups=True, seen=seen)
    finally:
        executor.close()
    return bits(got), seen[0].guesses.num_accepted


def test_with_batch_invariant_guesses_change_no_bit() -> None:
    guessing = Speculation(num_tokens=16, shortest=1, longest=8, device_lines=128)
    wanted, _ = run(None)
    for changes in ({}, {"max_repeat": 1, "num_blocks": 130}):
        got, accepted = run(guessing, **changes)
        wrong = [i for i, (one, other) in enumerate(zip(got, wanted, strict=True)) if one != other]
        assert not wrong, (changes, wrong)
        assert accepted > 100, changes
