from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

from quire.sampling.keys import noise_key, noise_keys_for

KEYS_OF_SEEDS = (0x8209B480FAED1B10, 0x8B2FAAB3724AC25B)
KEYS_OF_NUMBERS = (0x8095AA2A28800D7A, 0x8F7B56222F7BB394)


def test_keys_never_change_between_versions() -> None:
    assert noise_key(0) == noise_key(0)
    assert (noise_key(0), noise_key(7)) == KEYS_OF_SEEDS
    assert tuple(noise_keys_for(0, 0, 2)) == KEYS_OF_NUMBERS


def test_seeds_and_request_numbers_share_no_key() -> None:
    keys = [noise_key(seed) for seed in range(-500, 2000)]
    keys += [key for seed in range(20) for key in noise_keys_for(seed, 0, 200)]
    assert len(set(keys)) == len(keys)
    assert all(0 <= key < 2**64 for key in keys)


def test_neighbouring_seeds_give_keys_that_differ_in_about_half_of_the_bits() -> None:
    flips = [(noise_key(seed) ^ noise_key(seed + 1)).bit_count() for seed in range(1000)]
    flips += [(a ^ b).bit_count() for a, b in pairwise(noise_keys_for(3, 0, 1001))]
    assert 31 < sum(flips) / len(flips) < 33
    assert min(flips) > 10


def test_seeds_of_any_size_have_a_key() -> None:
    assert noise_key(2**64 + 5) == noise_key(5)
    assert noise_key(-1) == noise_key(2**64 - 1)


def test_keys_can_be_made_without_torch() -> None:
    code = "import sys; import quire.sampling.keys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
