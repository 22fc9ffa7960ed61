"""RoPE: the angle by which each pair of a head's values is turned at each position.

The maths only; what a config file says about scaling was read before, into a Rope.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from quire.layer_plan import FactorRope, LinearRope, Llama3Rope, Rope, YarnRope

Turn = tuple[Tensor, Tensor]  # cos and sin
STILL = Rope(1.0, 0)  # turns nothing


def frequencies(rope: Rope) -> Tensor:
    """Radians per position of each pair: theta^(-2i / dims), then stretched. [dims / 2]"""
    powers = torch.arange(0, rope.dims, 2, dtype=torch.int64).float() / max(1, rope.dims)
    periods = rope.theta**powers
    match rope.scaling:
        case None:
            return 1.0 / periods
        case LinearRope(factor):
            return 1.0 / periods / factor
        case Llama3Rope() as scaling:
            return _llama3(1.0 / periods, scaling)
        case YarnRope() as scaling:
            return _yarn(periods, rope, scaling)
        case FactorRope(factors):
            return 1.0 / (torch.tensor(factors, dtype=torch.float32) * periods)


def attention_factor(rope: Rope) -> float:
    """What cos and sin are multiplied with: its square is on every product of query and key."""
    scaling = rope.scaling
    return scaling.attention_factor if isinstance(scaling, YarnRope | FactorRope) else 1.0


def _llama3(plain: Tensor, scaling: Llama3Rope) -> Tensor:
    """Fast frequencies stay, slow ones are divided by the factor, those between are blended.

    Fast: at least high_freq_factor turns within the original length; slow: at most
    low_freq_factor turns.
    """
    turns = scaling.original_max_len * plain / (2 * math.pi)
    spread = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / spread).clamp(0, 1)
    return kept * plain + (1 - kept) * plain / scaling.factor


def _yarn(periods: Tensor, rope: Rope, scaling: YarnRope) -> Tensor:
    """Pairs before the ramp keep their frequency, those behind it have it divided."""

    def pair_that_turns(times: float) -> float:
        """The pair, as a fraction, that turns so often within the original length."""
        length = scaling.original_max_len / (times * 2 * math.pi)
        return rope.dims * math.log(length) / (2 * math.log(rope.theta))

    first, last = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope.dims - 1)
    if first == last:
        last += 0.001  # a step is a very steep ramp
    ramp = (torch.arange(rope.dims // 2, dtype=torch.float32) - first) / (last - first)
    kept = 1 - ramp.clamp(0, 1)
    return 1.0 / (scaling.factor * periods) * (1 - kept) + 1.0 / periods * kept


class Rotary:
    """The angles of every kind of layer, one table for each rope that a model has."""

    def __init__(
        self, ropes: Sequence[Rope | None], head_dim: int, max_len: int, device: torch.device
    ) -> None:
        self.ropes, self.device = tuple(ropes), device
        self._tables = [Angles(rope or STILL, head_dim, max_len, device) for rope in ropes]

    @property
    def has_axes(self) -> bool:
        return any(rope is not None and rope.axes for rope in self.ropes)

    def reach(self, max_len: int) -> None:
        """Make the tables for positions below `max_len`: known for good once the KV cache is, since
        a config may claim millions of positions that no memory holds."""
        for table in self._tables:
            table.reach(max_len)

    def __call__(self, positions: Tensor) -> tuple[Turn, ...]:
        """[T] -> cos and sin of each rope, [T, head_dim / 2]; or [3, T], three coordinates."""
        return tuple(table(positions) for table in self._tables)


class Angles:
    """cos and sin of every position up to a length, in fp32.

    A table rather than a function of the step: each position has the same bits in every batch.
    Of a head of `head_dim` numbers the first rope.dims are turned; the others stand in pairs, too
    (weights/row_order.py), whose angle is 0 at every position.
    """

    def __init__(self, rope: Rope, head_dim: int, max_len: int, device: torch.device) -> None:
        still = torch.zeros((head_dim - rope.dims) // 2)
        self._frequencies = torch.cat([frequencies(rope), still])
        self._factors = torch.cat(
            [torch.full((rope.dims // 2,), attention_factor(rope)), still + 1]
        )
        self._device = device
        self._axes = torch.tensor([*rope.axes, *([0] * len(still))], device=device)
        self.reach(max_len)

    def reach(self, max_len: int) -> None:
        angles = torch.arange(max_len, dtype=torch.float32)[:, None] * self._frequencies
        self.cos = angles.cos().mul_(self._factors).to(self._device)
        self.sin = angles.sin_().mul_(self._factors).to(self._device)

    def __call__(self, positions: Tensor) -> Turn:
        """[T] -> cos and sin, each [T, head_dim / 2]; of [3, T] each pair takes one coordinate."""
        if positions.ndim == 2:
            at = positions.index_select(0, self._axes).T
            return self.cos.gather(0, at), self.sin.gather(0, at)
        return self.cos.index_select(0, positions), self.sin.index_select(0, positions)
