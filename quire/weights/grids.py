"""Stored blocks of one to three bits a weight -> numbers, in torch, on the device of the bytes.

Runs of eight or four weights are points of a grid, of which the format lists 256 to 2,048; a code
is the index of a point. grids.bin has the lists one after the other, with two bits for a number, or
four if it has one of eight values. As in dequantise.py, every function fills `out [blocks, 256]`
from `raw [blocks, bytes per block]` and is bitwise the format's definition.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

_TWO = (8, 25, 43)
_FILE = Path(__file__).with_name("grids.bin")
# For each grid: its offset in the file, its points, and the numbers of its codes.
_GRIDS: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "IQ2_XXS": (0, 256, _TWO),
    "IQ2_XS": (512, 512, _TWO),
    "IQ2_S": (1536, 1024, _TWO),
    "IQ3_XXS": (3584, 256, (4, 12, 20, 28, 36, 44, 52, 62)),
    "IQ3_S": (4096, 512, (1, 3, 5, 7, 9, 11, 13, 15)),
    "IQ1": (5120, 2048, (-1, 0, 1)),
}
DELTA = 0.125  # the shift of IQ1's points


@cache
def _grid(name: str, device: torch.device) -> Tensor:
    """[points, weights of a point]"""
    at, points, values = _GRIDS[name]
    bits = 2 if len(values) == 3 else 4
    raw = np.fromfile(_FILE, np.uint8, points * 2, offset=at)  # two bytes a point
    codes = raw[:, None] >> np.arange(0, 8, bits, dtype=np.uint8) & (1 << bits) - 1
    made = np.array(values, np.float32)[codes].reshape(points, -1)
    return torch.from_numpy(made).to(device)


def _points(name: str, codes: Tensor) -> Tensor:
    """The weights of every point, [blocks, 256]."""
    return _grid(name, codes.device)[codes.long()].flatten(1)


def _half(raw: Tensor) -> Tensor:
    return raw.contiguous().view(torch.float16).float()


def _words(raw: Tensor, size: int) -> Tensor:
    """Numbers of `size` bytes, the lowest byte first, as int64 [blocks, bytes / size]."""
    parts = raw.view(raw.shape[0], -1, size).long()
    return (parts << 8 * torch.arange(size, device=raw.device)).sum(-1)


def _fields(words: Tensor, *shifts: int, mask: int) -> Tensor:
    """Some bits of every word, those at each shift: [blocks, words * shifts]."""
    places = torch.tensor(shifts, dtype=words.dtype, device=words.device)
    return ((words[..., None] >> places) & mask).flatten(1)


def _signs(packed: Tensor) -> Tensor:
    """+1 or -1 for every bit of every byte, [blocks, bytes * 8]."""
    return 1.0 - 2.0 * _fields(packed, *range(8), mask=1)


def _even(packed: Tensor) -> Tensor:
    """Seven signs, and an eighth that makes the number of minus signs even."""
    ones = _fields(packed, *range(7), mask=1).view(*packed.shape, 7).sum(-1)
    return _signs(packed | (ones & 1) << 7)


def _fill(out: Tensor, scales: Tensor, weights: Tensor) -> None:
    """Weights times scales; each scale is for an equal run of weights."""
    out.copy_((scales[..., None] * weights.view(*scales.shape, -1)).view(out.shape))


def _iq2_xxs(out: Tensor, raw: Tensor) -> None:
    words = _words(raw[:, 2:], 4)  # four points, then their signs and a scale
    points, rest = _fields(words[:, ::2], 0, 8, 16, 24, mask=255), words[:, 1::2]
    scales = _half(raw[:, :2]) * (0.5 + (rest >> 28)) * 0.25
    signs = _even(_fields(rest, 0, 7, 14, 21, mask=127))
    _fill(out, scales, _points("IQ2_XXS", points) * signs)


def _iq2_xs(out: Tensor, raw: Tensor) -> None:
    words = _words(raw[:, 2:66], 2)
    scales = _half(raw[:, :2]) * (0.5 + _fields(raw[:, 66:], 0, 4, mask=15)) * 0.25
    _fill(out, scales, _points("IQ2_XS", words & 511) * _even(words >> 9))


def _iq2_s(out: Tensor, raw: Tensor) -> None:
    codes = raw[:, 2:34].long() | _fields(raw[:, 66:74].long(), 0, 2, 4, 6, mask=3) << 8
    scales = _half(raw[:, :2]) * (0.5 + _fields(raw[:, 74:], 0, 4, mask=15)) * 0.25
    _fill(out, scales, _points("IQ2_S", codes) * _signs(raw[:, 34:66]))


def _iq3_xxs(out: Tensor, raw: Tensor) -> None:
    rest = _words(raw[:, 66:], 4)
    scales = _half(raw[:, :2]) * (0.5 + (rest >> 28)) * 0.5
    signs = _even(_fields(rest, 0, 7, 14, 21, mask=127))
    _fill(out, scales, _points("IQ3_XXS", raw[:, 2:66]) * signs)


def _iq3_s(out: Tensor, raw: Tensor) -> None:
    codes = raw[:, 2:66].long() | _fields(raw[:, 66:74].long(), *range(8), mask=1) << 8
    scales = _half(raw[:, :2]) * (1 + 2 * _fields(raw[:, 106:], 0, 4, mask=15))
    _fill(out, scales, _points("IQ3_S", codes) * _signs(raw[:, 74:106]))


def _iq1_s(out: Tensor, raw: Tensor) -> None:
    high = _words(raw[:, 34:], 2)
    codes = raw[:, 2:34].long() | _fields(high, 0, 3, 6, 9, mask=7) << 8
    scales = _half(raw[:, :2]) * (2 * ((high >> 12) & 7) + 1)
    shifts = (DELTA - 2 * DELTA * (high >> 15)).repeat_interleave(32, 1)
    _fill(out, scales, _points("IQ1", codes) + shifts)


def _iq1_m(out: Tensor, raw: Tensor) -> None:
    words = _words(raw[:, 48:], 2)  # each has four scales, and four bits of a common factor
    above = (words >> 12 << torch.arange(0, 16, 4, device=raw.device)).sum(-1, keepdim=True)
    bits = torch.where(above < 1 << 15, above, above - (1 << 16)).to(torch.int16)
    scales = _half(bits.view(torch.uint8)) * (2 * _fields(words, 0, 3, 6, 9, mask=7) + 1)
    high = _fields(raw[:, 32:48].long(), 0, 4, mask=15)
    codes = raw[:, :32].long() | (high & 7) << 8
    shifts = (DELTA - 2 * DELTA * (high >> 3)).repeat_interleave(8, 1)
    _fill(out, scales, _points("IQ1", codes) + shifts)


KERNELS: dict[str, Callable[[Tensor, Tensor], None]] = {
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
}
