"""RoPE: the angle by which each pair of a head's values is turned at each position.

The maths only; what a config file says about scaling was read by whoever made the spec.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from quire.errors import UnsupportedModel
from quire.spec import ModelSpec, RopeScaling


def frequencies(spec: ModelSpec) -> Tensor:
    """Radians per position of each pair: theta^(-2i / head_dim), then stretched. [head_dim / 2]"""
    powers = torch.arange(0, spec.head_dim, 2, dtype=torch.int64).float() / spec.head_dim
    plain = 1.0 / (spec.rope_theta**powers)
    if spec.rope_freq_factors is not None:
        return plain / torch.tensor(spec.rope_freq_factors, dtype=torch.float32)
    if spec.rope_scaling is None:
        return plain
    if spec.rope_scaling.kind == "linear":
        return plain / spec.rope_scaling.factor
    if spec.rope_scaling.kind == "llama3":
        return _llama3(plain, spec.rope_scaling)
    raise UnsupportedModel(
        f"rope scaling {spec.rope_scaling.kind!r} is not known; 'linear' and 'llama3' are."
    )


def _llama3(plain: Tensor, scaling: RopeScaling) -> Tensor:
    """Fast frequencies stay, slow ones are divided by the factor, those between are blended.

    Fast: at least high_freq_factor turns within the original length; slow: at most
    low_freq_factor turns.
    """
    turns = scaling.original_max_len * plain / (2 * math.pi)
    spread = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / spread).clamp(0, 1)
    return kept * plain + (1 - kept) * plain / scaling.factor


class Rotary:
    """cos and sin of every position up to a length, made once and in fp32.

    A table rather than a function of the step: each position has the same bits in every batch.
    """

    def __init__(self, spec: ModelSpec, max_len: int, device: torch.device) -> None:
        angles = torch.arange(max_len, dtype=torch.float32)[:, None] * frequencies(spec)
        self.cos, self.sin = angles.cos().to(device), angles.sin().to(device)

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[T] -> cos and sin, each [T, head_dim / 2]."""
        return self.cos.index_select(0, positions), self.sin.index_select(0, positions)
