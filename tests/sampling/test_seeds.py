from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.sampling.keys import noise_key
from quire.sampling.seeds import NoiseKeys, gumbel, noise, philox
from tests.sampling.making import keys_for

KNOWN = [
    # counter, key, answer
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_philox_gives_the_published_answers_in_numpy_and_in_torch(
    counter: tuple[int, ...], key: tuple[int, ...], answer: tuple[int, ...]
) -> None:
    in_numpy = philox(*(np.asarray([word], np.uint64) for word in (*counter, *key)))
    in_torch = philox(*(torch.tensor([word]) for word in (*counter, *key)))
    assert tuple(int(word[0]) for word in in_numpy) == answer
    assert tuple(int(word[0]) for word in in_torch) == answer


def scalar_philox(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    c0, c1, c2, c3 = counter
    for turn in range(10):
        low = (key[0] + turn * 0x9E3779B9) % 2**32
        high = (key[1] + turn * 0xBB67AE85) % 2**32
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ low, p1 % 2**32, p0 >> 32 ^ c3 ^ high, p0 % 2**32
    return c0, c1, c2, c3


@given(
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**31 - 1),
    sample=st.integers(0, 2**14),
    token=st.integers(0, 300_000),
)
def test_noise_is_what_its_definition_says(
    seed: int, position: int, sample: int, token: int
) -> None:
    key = noise_key(seed)
    block = token // 4096 * 1024 + token % 1024
    words = scalar_philox((block, position, sample, 0), (key & 0xFFFFFFFF, key >> 32))
    word = np.float32(words[token // 1024 % 4])
    u = min((word + np.float32(0.5)) * np.float32(2**-32), np.float32(1 - 2**-24))
    expected = -math.log(-math.log1p(-float(u)))
    made = noise(torch.tensor([[token]]), keys_for([seed], position, sample))
    assert made.item() == pytest.approx(expected, rel=1e-6, abs=1e-7)


def test_the_smallest_and_the_largest_word_give_finite_noise() -> None:
    ends = gumbel(torch.tensor([2.0**-33, 1 - 2.0**-24]))
    assert ends[0].item() == pytest.approx(33 * math.log(2), rel=1e-6)
    assert ends[1].item() == pytest.approx(-math.log(24 * math.log(2)), rel=1e-6)


def test_the_numpy_words_equal_the_torch_words() -> None:
    counters = torch.arange(50_000)
    words = [torch.tensor([word]) for word in (12, 3, 0, 0xDEADBEEF, 0x12345678)]
    in_torch = philox(counters, *words)
    in_numpy = philox(*(word.numpy().astype(np.uint64) for word in (counters, *words)))
    for one, other in zip(in_torch, in_numpy, strict=True):
        assert (one.numpy().astype(np.uint64) == other).all()
        exact = torch.from_numpy(other.astype(np.float32))
        assert torch.equal(one.to(torch.float32), exact)


def test_every_part_of_the_key_changes_the_noise() -> None:
    tokens = torch.arange(4096)[None, :]

    def made(low: int, high: int, sample: int, position: int) -> torch.Tensor:
        parts = (torch.tensor([part]) for part in (low, high, sample, position))
        return noise(tokens, NoiseKeys(*parts))

    first = made(1, 2, 3, 4)
    for other in (made(9, 2, 3, 4), made(1, 9, 3, 4), made(1, 2, 9, 4), made(1, 2, 3, 9)):
        assert abs(torch.corrcoef(torch.cat([first, other]))[0, 1].item()) < 0.07
        assert (first != other).sum() > 4000
