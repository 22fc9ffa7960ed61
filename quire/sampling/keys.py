"""64-bit noise keys from seeds. Integers, no torch, so any room may import this.

A key names one endless stream of noise; seeds.py turns (key, sample, position, token) into a
number. Keys are one-to-one in seeds, and in the numbers of requests, so two seeds, or two requests
of one LLM, never share a stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_MASK = 2**64 - 1
# Odd 64-bit constants without a pattern; the two kinds of keys use different ones.
_STEP = 0x9E3779B97F4A7C15
_SEEDED = 0xD1B54A32D192ED03
_NUMBERED = 0x8CB92BA72F3D8DD7


def noise_key(seed: int) -> int:
    """The key of a request with `SamplingParams.seed = seed`; the same in every LLM and call."""
    return int(_mix((seed & _MASK) ^ _SEEDED))


def noise_keys_for(llm_seed: int, first: int, count: int) -> list[int]:
    """The keys of requests first .. first + count - 1 of an LLM made with `seed=llm_seed`."""
    stream = np.uint64(_mix((llm_seed & _MASK) ^ _NUMBERED))
    numbers = np.arange(first, first + count, dtype=np.uint64)
    keys: list[int] = _mix(stream + numbers * np.uint64(_STEP)).tolist()
    return keys


def _mix(word: Any) -> Any:
    """A one-to-one scramble of 64 bits: every input bit moves about half of the output bits. Takes
    arrays, too."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)
