"""A row's token and logprobs are its own: alone, in any batch, in any order, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from quire.sampling.sampled import Sampled
from quire.sampling_params import SamplingParams
from quire.step import RowStart
from tests.sampling.making import entries, make_params, make_sampler, make_start

KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.3},
    {"top_k": 7},
    {"top_k": 900},
    {"top_p": 0.6},
    {"top_p": 0.999},
    {"min_p": 0.02},
    {"temperature": 1.4, "top_k": 30, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 0.0, "repetition_penalty": 1.3},
    {"frequency_penalty": 0.6, "top_p": 0.8},
    {"logit_bias": {5: 3.0, 9: -100.0}},
    {"bad_words": [[3], [5, 6], [1, 2, 3]], "temperature": 0.0},
    {"allowed_token_ids": [3, 5, 8, 13, 21]},
    {"min_tokens": 4, "max_tokens": 9},
]
WIDTHS = (0.01, 1.0, 3.0, 8.0)


def make_rows(num: int) -> list[RowStart]:
    return [
        make_start(
            row,
            make_params(logprobs=(None, 0, 4)[row % 3], **KINDS[row % len(KINDS)]),
            seed=row,
            prompt=[row % 30, 5, 9],
            output=[5, 1, 2] if row % 2 else [],
            stop_ids=(4, 6),
        )
        for row in range(num)
    ]


def bits(sampled: Sampled, line: int) -> tuple[Any, ...]:
    entry = entries(sampled.logprobs).get(line)
    scores: tuple[Any, ...] = ()
    if entry is not None:
        scores = (entry.logprob, entry.rank, entry.top_ids.tobytes(), entry.top_logprobs.tobytes())
    return int(sampled.tokens[line]), scores


@pytest.mark.parametrize(("vocab", "threads"), [(33, 1), (1027, 1), (40_000, 2)])
def test_a_row_draws_the_same_alone_and_in_any_batch(vocab: int, threads: int) -> None:
    """With two threads: from 32,768 elements on torch shares a single line among them."""
    num = 2 * len(KINDS) if vocab < 10_000 else len(KINDS)
    starts = make_rows(num)
    generator = torch.Generator().manual_seed(vocab)
    width = torch.tensor([WIDTHS[row % 4] for row in range(num)])[:, None]
    steps = [
        torch.randn(num, vocab, generator=generator) * width
        for _ in range(2 if threads == 1 else 1)
    ]
    positions = np.asarray([len(s.prompt_ids) + len(s.output_ids) for s in starts], np.int32)

    def run(batches: list[list[int]]) -> dict[int, list[tuple[Any, ...]]]:
        sampler = make_sampler(vocab, *starts)
        seen: dict[int, list[tuple[Any, ...]]] = {row: [] for row in range(num)}
        for step, logits in enumerate(steps):
            for batch in batches:
                rows = np.asarray(batch, np.int32)
                sampled = sampler.sample(logits[batch], rows, positions[batch] + step, None)
                assert sampled.failed == ()
                for line, row in enumerate(batch):
                    seen[row].append(bits(sampled, line))
        return seen

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = run([list(range(num))])
        assert together == run([[row] for row in range(num)])
        assert together == run([list(reversed(range(num)))])
        shuffled = np.random.default_rng(0).permutation(num).tolist()
        assert together == run([shuffled[:2], shuffled[2:9], shuffled[9:]])
    finally:
        torch.set_num_threads(before)


def test_the_same_seed_gives_the_same_tokens_in_every_row_of_the_device() -> None:
    logits = torch.randn(6, 800, generator=torch.Generator().manual_seed(0))
    drawn = []
    for row in (0, 17, 63):
        sampler = make_sampler(800, make_start(row, SamplingParams(), seed=5))
        for position in range(1, 7):
            sampled = sampler.sample(
                logits[position - 1 : position],
                np.asarray([row], np.int32),
                np.asarray([position], np.int32),
                None,
            )
            drawn.append(sampled.tokens.item())
    assert drawn[:6] == drawn[6:12] == drawn[12:]
    assert len(set(drawn)) > 3


def test_several_rows_may_draw_from_the_same_logits() -> None:
    starts = [make_start(row, SamplingParams(), seed=1, sample=row) for row in range(3)]
    logits = torch.randn(1, 400, generator=torch.Generator().manual_seed(9))
    rows, positions = np.arange(3, dtype=np.int32), np.ones(3, np.int32)
    one = make_sampler(400, *starts).sample(logits.expand(3, -1), rows, positions, None)
    other = make_sampler(400, *starts).sample(logits.repeat(3, 1), rows, positions, None)
    assert one.tokens.tolist() == other.tokens.tolist()
