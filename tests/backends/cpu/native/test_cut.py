"""Cutting lines in C keeps the tokens that sorting them keeps, and draws out of these."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from quire.sampling import draw, truncation
from quire.sampling.draw import draw_from_all
from quire.sampling.truncation import truncate
from tests.sampling.making import keys_for, limits_of, make_params, plain_draw

LINES, VOCAB = 5, 5003


def made(width: float) -> Tensor:
    return torch.randn(LINES, VOCAB, generator=torch.Generator().manual_seed(11)) * width


def level() -> Tensor:
    return torch.full((LINES, VOCAB), 3.0)


def nearly_level() -> Tensor:
    return made(1e-3)


def in_steps() -> Tensor:
    """Many equal scores, some of them minus zero."""
    return (made(2.0) * 2).round() / 2


def far_apart() -> Tensor:
    return made(500.0)


def mostly_banned() -> Tensor:
    scores = made(2.0)
    scores[:, 7:] = -torch.inf
    return scores


FIELDS: list[dict[str, Any]] = [
    {"top_k": 1},
    {"top_k": 300, "top_p": 0.6},
    {"top_k": 4000},
    {"top_p": 0.99},
    {"min_p": 0.01, "top_p": 0.3},
    {"min_p": 0.01, "top_k": 20},
]


@pytest.mark.parametrize("make", [level, nearly_level, in_steps, far_apart, mostly_banned])
def test_what_stays_and_what_is_drawn_of_it(
    library: ctypes.CDLL, make: Callable[[], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    scores, keys = make(), keys_for(range(LINES), position=3)
    top, top_tokens = scores.max(1)
    for fields in FIELDS:
        limits = limits_of([make_params(**fields)] * LINES, VOCAB)
        border = truncate(scores, top, limits)
        drawn = draw_from_all(scores, top, top_tokens, keys, border)
        with monkeypatch.context() as patch:
            for module in (truncation, draw):
                patch.setattr(module, "can_search", lambda scores: False)
            masked = truncate(scores, top, limits).masked(scores)
            assert torch.equal(drawn, draw_from_all(scores, top, top_tokens, keys, border))
        assert torch.equal(border.masked(scores), masked)
        assert torch.equal(drawn, plain_draw(masked, keys))


def test_a_view_of_wider_logits_will_do(library: ctypes.CDLL) -> None:
    scores, keys = torch.cat([made(3.0), made(9.0)], 1)[:, :VOCAB], keys_for(range(LINES))
    top, top_tokens = scores.max(1)
    border = truncate(scores, top, limits_of([make_params(top_p=0.9)] * LINES, VOCAB))
    drawn = draw_from_all(scores, top, top_tokens, keys, border)
    assert torch.equal(drawn, plain_draw(border.masked(scores), keys))


def test_a_crowded_line_is_drawn_from_what_it_keeps(library: ctypes.CDLL) -> None:
    """At scores of 1e7 noise is rounded to whole numbers: too many tokens are as good as equal."""
    scores = torch.full((20, 3000), 1e7)
    top, top_tokens, keys = torch.full((20,), 1e7), torch.full((20,), 40), keys_for(range(20))
    border = truncate(scores, top, limits_of([make_params(top_p=0.1)] * 20, 3000))
    assert (border.masked(scores) > -torch.inf).sum(1).tolist() == [300] * 20
    expected = plain_draw(border.masked(scores), keys)
    assert torch.equal(draw_from_all(scores, top, top_tokens, keys, border), expected)
