"""The recurrence of Mamba-2 by chunks and by rows, against its definition token by token."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quire.backends.decay_rule import take_up_all, take_up_each
from quire.layer_parts.state import CHUNK

GROUPS, HEADS, KEY, VALUE = 2, 6, 8, 5
Given = tuple[Tensor, Tensor, Tensor, Tensor]  # q, k, v, log_decay


def random_tokens(count: int, seed: int = 0) -> Given:
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> Tensor:
        return torch.randn(count, *shape, generator=generator)

    return rand(GROUPS, KEY), rand(GROUPS, KEY), rand(HEADS, VALUE), -rand(HEADS).exp()


def by_definition(tokens: Given, state: Tensor) -> tuple[Tensor, Tensor]:
    """What is read, and the state behind the last token, in float64."""
    state, read = state.double(), []
    for q, k, v, log_decay in zip(*(one.double() for one in tokens), strict=True):
        q, k = (one[[0, 0, 0, 1, 1, 1]] for one in (q, k))
        state = state * log_decay.exp()[:, None, None] + torch.einsum("hk,hv->hkv", k, v)
        read.append(torch.einsum("hk,hkv->hv", q, state))
    return torch.stack(read), state


@pytest.mark.parametrize("count", [1, 5, CHUNK, CHUNK + 1, 3 * CHUNK - 7])
def test_chunks_do_what_single_tokens_do(count: int) -> None:
    tokens, state = random_tokens(count), torch.randn(HEADS, KEY, VALUE)
    read, after = by_definition(tokens, state)
    made = take_up_all(*tokens, state)
    assert torch.allclose(made.double(), read, atol=1e-4)
    assert torch.allclose(state.double(), after, atol=1e-4)


def test_each_row_has_a_state_of_its_own() -> None:
    tokens, states = random_tokens(4, seed=1), torch.randn(4, HEADS, KEY, VALUE)
    q, k, v, log_decay = tokens
    rows = [
        by_definition((q[i:][:1], k[i:][:1], v[i:][:1], log_decay[i:][:1]), states[i])
        for i in range(4)
    ]
    made = take_up_each(*tokens, states)
    for i, (read, after) in enumerate(rows):
        assert torch.allclose(made[i].double(), read[0], atol=1e-5)
        assert torch.allclose(states[i].double(), after, atol=1e-5)
