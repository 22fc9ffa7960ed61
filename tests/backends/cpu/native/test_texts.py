"""Attention of encoders in C: right for every kind of sight, and a text keeps its bits."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from quire.backends.cpu.native.texts import LONGEST, NativeTexts
from quire.backends.texts import Groups, Sight, attend_texts

GROUPS: Groups = ((3, 1), (2, 7), (2, 16), (1, 17), (1, LONGEST), (1, LONGEST + 30))
SHAPES = [(12, 12, 32), (4, 2, 64), (3, 1, 20), (2, 2, 8)]
SIGHTS = {
    "all": Sight(0.3),
    "window": Sight(0.3, window=5),
    "self": Sight(0.3, window=0),
    "slopes": Sight(0.3, slopes=torch.tensor([0.5, 0.1, 0.02, 0.3] * 3)),
}


def heads(shape: tuple[int, int, int], tokens: int) -> tuple[Tensor, ...]:
    """q, k and v as views of one product."""
    num_heads, num_kv_heads, width = shape
    made = torch.Generator().manual_seed(width)
    together = torch.randn(tokens, num_heads + 2 * num_kv_heads, width, generator=made)
    return together.tensor_split((num_heads, num_heads + num_kv_heads), 1)


def sight_of(name: str, num_heads: int) -> Sight:
    sight = SIGHTS[name]
    return sight if sight.slopes is None else replace(sight, slopes=sight.slopes[:num_heads])


@pytest.mark.parametrize("name", SIGHTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tokens_see_their_text_as_in_torch(
    library: ctypes.CDLL, shape: tuple[int, int, int], name: str
) -> None:
    filling = 5
    tokens = sum(count * length for count, length in GROUPS) + filling
    q, k, v = heads(shape, tokens)
    sight = sight_of(name, shape[0])
    wide = sight if sight.slopes is None else replace(sight, slopes=sight.slopes.double())
    exact = attend_texts(q.double(), k.double(), v.double(), GROUPS, wide)
    found = NativeTexts(library)(q, k, v, GROUPS, sight)
    assert torch.allclose(found.double(), exact, atol=5e-6, rtol=1e-5)
    assert not found[-filling:].any()


def test_a_text_has_the_same_bits_in_every_batch(library: ctypes.CDLL) -> None:
    attend = NativeTexts(library)
    q, k, v = heads((12, 12, 32), 900)
    groups: Groups = ((10, 13), (4, 40), (2, LONGEST), (1, 130))
    whole, at = attend(q, k, v, groups, SIGHTS["all"]), 0
    for count, length in groups:
        last = slice(at + (count - 1) * length, at + count * length)
        own = [one[last].clone() for one in (q, k, v)]
        alone = attend(own[0], own[1], own[2], ((1, length),), SIGHTS["all"])
        assert torch.equal(alone, whole[last])
        at = last.stop


def test_what_is_not_finite_stays_within_its_text(library: ctypes.CDLL) -> None:
    q, k, v = (one.contiguous() for one in heads((2, 2, 8), 33))
    k[12, 1, 3], v[20] = torch.nan, torch.inf
    found = NativeTexts(library)(q, k, v, ((3, 11),), SIGHTS["all"])
    finite = found.isfinite().all(1)
    assert finite[:11].all() and finite[22:].all() and not finite[11:22].any()
