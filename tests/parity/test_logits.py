"""Logits equal Transformers', whatever steps, chunks and blocks a text is computed in."""

from __future__ import annotations

import random

import pytest
import torch

from tests.executor.harness import Drive, make_runner
from tests.parity.families import FAMILIES, Pair, make_pair

NUM_BLOCKS = 256


def texts_of(seed: int, count: int, shared: int = 0) -> tuple[list[list[int]], list[int]]:
    rng = random.Random(seed)
    prefix = [rng.randrange(96) for _ in range(shared)]
    texts = [prefix + [rng.randrange(96) for _ in range(rng.randint(3, 60))] for _ in range(count)]
    return texts, [rng.randint(shared + 1, len(text) - 1) for text in texts]


def largest_difference(
    pair: Pair, texts: list[list[int]], made: dict[tuple[int, int], torch.Tensor]
) -> float:
    worst = 0.0
    for i, text in enumerate(texts):
        expected = pair.expected(text)
        for (row, at), logits in made.items():
            if row == i:
                worst = max(worst, float((logits - expected[at - 1]).abs().max()))
    return worst


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest) -> Pair:
    return make_pair(request.param)


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_logits_equal_transformers_in_any_steps(
    pair: Pair, batch_invariant: bool, long_mode: bool
) -> None:
    for seed in (2,) if batch_invariant else (0, 1) if long_mode else (1,):
        block_size = (4, 16, 3)[seed]
        runner, sampler = make_runner(
            pair.spec, pair.weights, block_size=block_size, batch_invariant=batch_invariant
        )
        texts, num_prompts = texts_of(seed, 5)
        made = Drive(runner, sampler, seed, NUM_BLOCKS).run(texts, num_prompts)
        drawn = sum(len(t) - p + 1 for t, p in zip(texts, num_prompts, strict=True))
        assert len(made) == drawn
        assert largest_difference(pair, texts, made) < 1e-4


# Rows that are not grouped read a shared beginning as they read their own blocks.
@pytest.mark.parametrize("grouped", [pytest.param(False, marks=pytest.mark.long), True])
def test_logits_equal_transformers_behind_a_shared_prefix(pair: Pair, grouped: bool) -> None:
    runner, sampler = make_runner(pair.spec, pair.weights)
    texts, num_prompts = texts_of(7, 6, shared=33)
    made = Drive(runner, sampler, 7, NUM_BLOCKS).run(texts, num_prompts, shared=33, grouped=grouped)
    assert largest_difference(pair, texts, made) < 1e-4


def test_low_precision_stays_close_to_transformers() -> None:
    pair = make_pair("llama", torch.bfloat16)
    runner, sampler = make_runner(pair.spec, pair.weights)
    texts, num_prompts = texts_of(3, 4)
    made = Drive(runner, sampler, 3, NUM_BLOCKS).run(texts, num_prompts)
    precise = make_pair("llama")
    theirs = max(
        float((pair.expected(text) - precise.expected(text)).abs().max()) for text in texts
    )
    # Two roundings of one model differ from it by about as much as from each other.
    assert largest_difference(precise, texts, made) < 1.5 * theirs
