from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.sampling import draw
from quire.sampling.draw import draw_from_all
from quire.sampling.seeds import noise
from tests.sampling.making import keys_for, plain_draw


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    vocab=st.sampled_from([1, 2, 37, 1024, 1025, 4096, 5000, 20_000]),
    width=st.sampled_from([0.0, 0.1, 1.0, 3.0, 10.0, 100.0, 1e4]),
    shift=st.sampled_from([0.0, -50.0, 3000.0]),
    banned=st.sampled_from([0.0, 0.5, 0.999]),
)
def test_noise_left_out_never_changes_the_token(
    seed: int, vocab: int, width: float, shift: float, banned: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    lines = 6
    scores = torch.randn(lines, vocab, generator=generator) * width + shift
    hidden = torch.rand(lines, vocab, generator=generator) < banned
    hidden[:, 0] = False
    scores[hidden] = -math.inf
    keys = keys_for(range(seed, seed + lines), position=seed % 1000, sample=3)
    top, top_tokens = scores.max(1)
    drawn = draw_from_all(scores, top, top_tokens, keys)
    assert drawn.tolist() == plain_draw(scores, keys).tolist()


@pytest.mark.parametrize("temperature", [0.25, 1.0, 2.0])
def test_pruned_and_plain_noise_agree_on_logits_like_a_language_models(temperature: float) -> None:
    generator = torch.Generator().manual_seed(1)
    # Some tokens far above a broad crowd, as language models have it.
    crowd = torch.randn(40, 49_152, generator=generator) * 2.5
    scores = (crowd + 14 * torch.rand(40, 49_152, generator=generator) ** 60) / temperature
    keys = keys_for(range(40), position=77)
    top, top_tokens = scores.max(1)
    drawn = draw_from_all(scores, top, top_tokens, keys)
    assert drawn.tolist() == plain_draw(scores, keys).tolist()
    assert (drawn != top_tokens).any()


def test_among_equal_scores_the_lowest_token_wins() -> None:
    keys = keys_for([5])
    noisy = noise(torch.tensor([[0, 1, 2]]), keys)
    level = -noisy + 4.0
    tied = level + noisy
    assert (tied == 4.0).all()
    top, top_tokens = level.max(1)
    assert draw_from_all(level, top, top_tokens, keys).item() == 0


def test_parts_of_a_line_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = torch.randn(12, 20_000, generator=torch.Generator().manual_seed(2)) * 3
    keys = keys_for(range(12))
    top, top_tokens = scores.max(1)
    expected = plain_draw(scores, keys).tolist()
    assert draw_from_all(scores, top, top_tokens, keys).tolist() == expected
    # Fewer blocks than a line has: each line in several parts.
    monkeypatch.setattr(draw, "_CPU_BLOCKS", 1500)
    assert draw_from_all(scores, top, top_tokens, keys).tolist() == expected
