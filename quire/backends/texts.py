"""Attention of encoders: whole texts, one after the other, each of which sees only itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

Groups = tuple[tuple[int, int], ...]  # (number of texts, tokens of each), one after the other


@dataclass(frozen=True, slots=True)
class Sight:
    """Which tokens of its text a token sees, and how scores change with distance."""

    scale: float
    window: int | None = None  # tokens on each side; None: all
    slopes: Tensor | None = None  # [heads]: subtracted from a score per token of distance
    gains: Tensor | None = None  # [heads, 2 L - 1]: added at distances 1 - L to L - 1


class AttendTexts(Protocol):
    """Attention within each text."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, groups: Groups, sight: Sight, /) -> Tensor:
        """q [T, heads, D], k and v [T, kv heads, D] -> [T, heads * D]; zeros for padding at the
        end."""


def attend_texts(q: Tensor, k: Tensor, v: Tensor, groups: Groups, sight: Sight) -> Tensor:
    """In torch; texts of one length are one batch, by a view."""
    made, at = torch.zeros(q.shape, dtype=v.dtype, device=v.device), 0
    for count, length in groups:
        here = slice(at, at + count * length)
        mine = [a[here].view(count, length, *a.shape[1:]).transpose(1, 2) for a in (q, k, v)]
        attended = F.scaled_dot_product_attention(
            *(mine[0], mine[1], mine[2], _seen(sight, length, v.dtype, v.device)),
            scale=sight.scale,
            enable_gqa=k.shape[1] < q.shape[1],
        )
        made[here].view(count, length, *q.shape[1:]).copy_(attended.transpose(1, 2))
        at += count * length
    return made.flatten(1)


def _seen(sight: Sight, length: int, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """A mask [length, length], or what is added to scores [heads, length, length]; None:
    neither."""
    at = torch.arange(length, device=device)
    if sight.gains is not None:
        return sight.gains[:, at - at[:, None] + sight.gains.shape[1] // 2].to(dtype)
    if sight.slopes is not None:
        return (-sight.slopes[:, None, None] * (at[:, None] - at).abs()).to(dtype)
    if sight.window is None or length <= sight.window + 1:
        return None
    return (at[:, None] - at).abs() <= sight.window
