"""The noise that draws tokens: a pure function of (noise key, sample, position, token).

This is the definition for every device. Philox4x32-10 with key = (low, high) words of the noise
key and counter = (c, position, sample, 0) gives four 32-bit words, one for each of four tokens:

    token t takes word (t // 1024) % 4 of the block c = (t // 4096) * 1024 + t % 1024
    u = (float32(word) + 0.5) * 2**-32, at most 1 - 2**-24             float32
    gumbel = -log(-log1p(-u))                                          between -2.82 and 22.88
    next token = the t with the largest scores[t] + gumbel[t], the lowest t among equals (draw.py)

Worked example: token 5000 takes word 0 of block 1 * 1024 + 904 = 1928 (5000 = 4096 + 904), and
tokens 6024, 7048 and 8072 take words 1, 2 and 3 of the same block. With noise_key(7), sample 0,
position 12 that block is keyed by the counter (1928, 12, 0, 0).

The logarithms are taken in float64 and rounded once: vector code and the scalar code for the rest
of an array differ in the last bit, and a token must not depend on its place in an array.

Words live in 64-bit integers, uint64 numpy arrays on a CPU (several times faster there than
torch) and int64 tensors elsewhere; the arithmetic below is the same for both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

LANES = 4
LARGEST = 22.88  # no gumbel is above 33 * log(2) = 22.874
LANE = 1024  # neighbouring tokens of one lane, so that vector units can load them together
TILE = LANES * LANE

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)

# A numpy array on a CPU, a tensor elsewhere: the operators used on it mean the same for both.
Array = Any
Words = Array  # uint64 or int64


@dataclass(frozen=True, slots=True)
class NoiseKeys:
    """The keys of the noise of each line: four int64 tensors [lines] of 32-bit words."""

    low: Tensor
    high: Tensor
    sample: Tensor
    position: Tensor

    def __len__(self) -> int:
        return len(self.low)

    def take(self, lines: Tensor | slice) -> NoiseKeys:
        return NoiseKeys(
            self.low[lines], self.high[lines], self.sample[lines], self.position[lines]
        )

    def on_cpu(self) -> NoiseKeys:
        return NoiseKeys(self.low.cpu(), self.high.cpu(), self.sample.cpu(), self.position.cpu())


def philox(c0: Words, c1: Words, c2: Words, c3: Words, k0: Words, k1: Words) -> tuple[Words, ...]:
    """Philox4x32-10; the arguments broadcast against each other.

    Values that depend on few arguments are computed in their smaller shape: with c0 [1, blocks]
    and the rest [lines, 1] the first round and half of the second cost next to nothing.
    """
    for turn in range(10):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        # Bits above 32 in keys, c1 and c3 do no harm: the masks on c0 and c2 drop them.
        low, high = k0 + turn * _KEY_STEPS[0], k1 + turn * _KEY_STEPS[1]
        c0, c2 = ((p1 >> 32) ^ (c1 ^ low)) & _MASK, ((p0 >> 32) ^ (c3 ^ high)) & _MASK
        c1, c3 = p1, p0
    return c0, c1 & _MASK, c2, c3 & _MASK


def blocks(counters: Tensor, keys: NoiseKeys) -> tuple[Words, ...]:
    """The four words of each block. counters [lines or 1, any]; line i is keyed by keys[i]."""
    column = [_words(key[:, None]) for key in (keys.position, keys.sample, keys.low, keys.high)]
    zero = _words(torch.zeros(1, 1, dtype=torch.int64, device=counters.device))
    return philox(_words(counters), column[0], column[1], zero, column[2], column[3])


def uniform(words: tuple[Words, ...]) -> Array:
    """Uniforms in (0, 1), float32, of words of the same shape, stacked."""
    if isinstance(words[0], np.ndarray):
        # Converted to uint32 first, which is twice as fast as directly from 64 bits.
        stacked = np.stack(words, dtype=np.uint32, casting="unsafe").astype(np.float32)
        stacked += np.float32(0.5)
        stacked *= np.float32(2.0**-32)
        return np.minimum(stacked, np.float32(1 - 2.0**-24), out=stacked)
    return torch.stack(words).float().add_(0.5).mul_(2.0**-32).clamp_(max=1 - 2.0**-24)


def uniforms(tokens: Tensor, keys: NoiseKeys) -> Tensor:
    """The uniform of each token [lines, any]; line i of it is keyed by keys[i]."""
    by_lane = torch.as_tensor(uniform(blocks(tokens // TILE * LANE + tokens % LANE, keys)))
    return by_lane.gather(0, (tokens // LANE % LANES)[None])[0]


def gumbel(uniforms: Tensor) -> Tensor:
    """Standard Gumbel noise, float32, from uniforms in (0, 1)."""
    return torch.log(torch.log1p(uniforms.double().neg_()).neg_()).neg_().float()


def noise(tokens: Tensor, keys: NoiseKeys) -> Tensor:
    """The Gumbel noise of each token [lines, any]; line i of it is keyed by keys[i]."""
    return gumbel(uniforms(tokens, keys))


def _words(numbers: Tensor) -> Words:
    if numbers.device.type == "cpu":
        return numbers.numpy().view(np.uint64)
    return numbers
