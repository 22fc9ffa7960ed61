"""Searching in C finds the token that the definition of the noise finds, bit for bit."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest
import torch

from quire.backends.cpu.native.noise import CANDIDATES, best_of_lines, can_search, candidates
from quire.sampling import draw
from quire.sampling.draw import draw_from_all
from quire.sampling.seeds import NoiseKeys, noise, uniforms
from tests.sampling.making import keys_for, plain_draw


def words(keys: NoiseKeys) -> tuple[torch.Tensor, ...]:
    return keys.low, keys.high, keys.sample, keys.position


@pytest.mark.parametrize("vocab", [1, 3, 16, 1000, 1024, 4096, 4100, 9999])
def test_every_uniform_is_the_definitions(library: ctypes.CDLL, vocab: int) -> None:
    """One token above all others is the only candidate, and its uniform comes back."""
    keys = keys_for([7, 2**63 + 5], position=123, sample=9)
    for token in {0, vocab // 3, vocab // 2, vocab - 1}:
        scores = torch.full((2, vocab), -1e4)
        scores[:, token] = 3.0
        at = torch.full((2, 1), token)
        to_beat = scores[:, token] + noise(at, keys)[:, 0]
        found = candidates(scores, to_beat, *words(keys))
        assert found.line.tolist() == [0, 1] and found.token.tolist() == [token, token]
        assert torch.equal(found.uniform, uniforms(at, keys)[:, 0])
        assert found.score.tolist() == [3.0, 3.0] and not found.crowded.any()


@pytest.mark.parametrize("width", [0.0, 0.1, 1.0, 10.0, 1e4])
@pytest.mark.parametrize("vocab", [5, 1025, 20_000])
def test_it_draws_what_noise_everywhere_would(
    library: ctypes.CDLL, vocab: int, width: float
) -> None:
    made = torch.Generator().manual_seed(vocab)
    scores = torch.randn(8, vocab, generator=made) * width - 40
    scores[:, 1::7] = -math.inf
    keys = keys_for(range(8), position=3)
    top, top_tokens = scores.max(1)
    drawn = draw_from_all(scores, top, top_tokens, keys)
    assert drawn.tolist() == plain_draw(scores, keys).tolist()


def test_lines_with_too_many_equals_are_left_to_the_definition(library: ctypes.CDLL) -> None:
    """At a score of 1e9 noise is rounded away: every token is as good as the first."""
    scores = torch.zeros(3, 3000)
    scores[1] = 1e9
    keys = keys_for(range(3))
    top, top_tokens = scores.max(1)
    to_beat = top + noise(top_tokens[:, None], keys)[:, 0]
    found = candidates(scores, to_beat, *words(keys))
    assert found.crowded.tolist() == [False, True, False]
    assert len(found.line) <= 2 * CANDIDATES
    drawn = draw_from_all(scores, top, top_tokens, keys)
    assert drawn.tolist() == plain_draw(scores, keys).tolist() and drawn[1] == 0


def test_a_view_of_wider_logits_will_do(library: ctypes.CDLL) -> None:
    whole = torch.randn(6, 5000, generator=torch.Generator().manual_seed(0)) * 3
    scores, keys = whole[:, :4321], keys_for(range(6))
    top, top_tokens = scores.max(1)
    drawn = draw_from_all(scores, top, top_tokens, keys)
    assert drawn.tolist() == plain_draw(scores.contiguous(), keys).tolist()
    assert not can_search(whole.t())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [1, 7, 16, 1000, 4097])
def test_the_best_token(library: ctypes.CDLL, dtype: torch.dtype, vocab: int) -> None:
    made = torch.Generator().manual_seed(vocab)
    scores = torch.randn(20, vocab, generator=made).to(dtype)
    scores[3] = -math.inf
    scores[4] = 2.0
    scores[5, vocab // 2] = math.inf
    scores[6, vocab - 1] = math.nan
    scores[7, vocab // 2 :] = math.nan
    tokens, values = best_of_lines(scores)
    judged = scores.float().numpy()
    expected = judged.argmax(1)
    assert tokens.tolist() == expected.tolist()
    assert np.array_equal(values.numpy(), judged[np.arange(20), expected], equal_nan=True)


def test_the_torch_path_is_another_way_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = torch.randn(5, 7000, generator=torch.Generator().manual_seed(4)) * 2
    keys = keys_for(range(5))
    top, top_tokens = scores.max(1)
    natively = draw_from_all(scores, top, top_tokens, keys)
    monkeypatch.setattr(draw, "can_search", lambda scores: False)
    assert torch.equal(draw_from_all(scores, top, top_tokens, keys), natively)
