"""Candidates of beams: the likeliest tokens of each line, of those its mask allows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quire.sampling import candidates as module
from quire.sampling.candidates import candidates
from quire.step import Masks
from quire.steps.handles import Handles


def ints(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, np.int32)


def test_they_come_best_first_with_their_raw_logprobs() -> None:
    logits = torch.randn(5, 1000, generator=torch.Generator().manual_seed(1)) * 3
    tokens, logprobs = candidates(logits, ints(4, 0, 1, 2, 3), None, 7, Handles())
    expected = logits.log_softmax(-1).topk(7)
    assert tokens.tolist() == expected.indices.tolist()
    assert torch.equal(logprobs, expected.values)


def test_equal_tokens_come_in_the_order_of_their_ids() -> None:
    tokens, _ = candidates(torch.zeros(1, 40), ints(0), None, 5, Handles())
    assert tokens.tolist() == [[0, 1, 2, 3, 4]]


def test_a_mask_leaves_tokens_out_but_not_out_of_the_sum() -> None:
    logits = torch.randn(3, 70, generator=torch.Generator().manual_seed(2))
    allowed = np.zeros((1, 96), np.uint8)
    allowed[0, [3, 40, 69]] = 1
    bits = np.packbits(allowed, axis=1, bitorder="little").view(np.uint32)
    tokens, logprobs = candidates(logits, ints(8, 5, 6), Masks(ints(5), bits), 4, Handles())
    plain = logits.log_softmax(-1)
    assert set(tokens[1, :3].tolist()) == {3, 40, 69}
    assert torch.equal(logprobs[1, :3], plain[1, tokens[1, :3]])
    assert logprobs[1, 3] == -torch.inf
    assert torch.equal(logprobs[[0, 2]], plain.topk(4).values[[0, 2]])


def test_a_small_vocabulary_has_as_many_as_it_has() -> None:
    tokens, logprobs = candidates(torch.randn(2, 3), ints(0, 1), None, 8, Handles())
    assert tokens.shape == logprobs.shape == (2, 3)


def test_many_lines_are_worked_on_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(3))
    whole = candidates(logits, np.arange(9, dtype=np.int32), None, 4, Handles())
    monkeypatch.setattr(module, "_PIECE", 100)
    pieces = candidates(logits, np.arange(9, dtype=np.int32), None, 4, Handles())
    assert all(torch.equal(a, b) for a, b in zip(whole, pieces, strict=True))
