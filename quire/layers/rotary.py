"""RoPE: the angle by which each pair of numbers of a head is rotated at each position.

Only the maths: quire/families has read the scaling out of the config file, into a Rope.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from quire.layer_parts.rope import FactorRope, LinearRope, Llama3Rope, YarnRope
from quire.layer_plan import Rope, Rotation

Turn = tuple[Tensor, Tensor]  # cos and sin
STILL = Rope(1.0, 0)


def frequencies(rope: Rope) -> Tensor:
    """Radians per position of each pair: theta^(-2i / dims), changed as `scaling` says. [dims /
    2]"""
    made = _scaled(rope)
    if rope.turning is not None:
        made[rope.turning :] = 0
    return made


def _scaled(rope: Rope) -> Tensor:
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
    """The factor of cos and sin. Every product of a query and a key gets its square."""
    scaling = rope.scaling
    return scaling.attention_factor if isinstance(scaling, YarnRope | FactorRope) else 1.0


def _llama3(plain: Tensor, scaling: Llama3Rope) -> Tensor:
    """Keep fast frequencies, divide slow ones by the factor, and blend those in between.

    Fast: at least high_freq_factor full rotations within the original length. Slow: at most
    low_freq_factor full rotations. Where both are the same nothing is blended.
    """
    turns = scaling.original_max_len * plain / (2 * math.pi)
    spread = scaling.high_freq_factor - scaling.low_freq_factor
    kept = (
        ((turns - scaling.low_freq_factor) / spread).clamp(0, 1)
        if spread
        else (turns >= scaling.low_freq_factor).float()
    )
    return kept * plain + (1 - kept) * plain / scaling.factor


def _yarn(periods: Tensor, rope: Rope, scaling: YarnRope) -> Tensor:
    """Pairs before the ramp keep their frequency, that of pairs after it is divided by the
    factor."""

    def pair_that_turns(times: float) -> float:
        """The pair (a fraction) that makes `times` rotations within the original length."""
        length = scaling.original_max_len / (times * 2 * math.pi)
        return rope.dims * math.log(length) / (2 * math.log(rope.theta))

    first, last = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope.dims - 1)
    if first == last:
        last += 0.001  # no division by zero; the ramp is nearly a step
    ramp = (torch.arange(rope.dims // 2, dtype=torch.float32) - first) / (last - first)
    kept = 1 - ramp.clamp(0, 1)
    return 1.0 / (scaling.factor * periods) * (1 - kept) + 1.0 / periods * kept


class Rotary:
    """The angles for all layers: one table for each rotation of the model (ModelSpec.rotations)."""

    def __init__(self, rotations: Sequence[Rotation], max_len: int, device: torch.device) -> None:
        self.rotations, self.device = tuple(rotations), device
        self._tables = [Angles(rope or STILL, dims, max_len, device) for rope, dims in rotations]

    @property
    def has_axes(self) -> bool:
        return any(rope is not None and rope.axes for rope, _ in self.rotations)

    def reach(self, max_len: int) -> None:
        """Recompute the tables for positions below `max_len`. It is called when the size of the KV
        cache is known, since a config may promise millions of positions that no memory holds."""
        for table in self._tables:
            table.reach(max_len)

    def __call__(self, positions: Tensor) -> tuple[Turn, ...]:
        """Positions [T], or three coordinates [3, T] -> cos and sin [T, dims / 2] of each
        rotation."""
        return tuple(table(positions) for table in self._tables)


class Angles:
    """cos and sin of every position up to a length, in float32.

    They are read from a table and not computed in each step, so that a position has the same bits
    in every batch. Of a head of `head_dim` numbers the first rope.dims are rotated. The others are
    in pairs as well (weights/row_order.py), with an angle of 0 at every position.
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
        """Positions [T] -> cos and sin, each [T, head_dim / 2]. Of [3, T] a pair uses one line."""
        if positions.ndim == 2:
            at = positions.index_select(0, self._axes).T
            return self.cos.gather(0, at), self.sin.gather(0, at)
        return self.cos.index_select(0, positions), self.sin.index_select(0, positions)
