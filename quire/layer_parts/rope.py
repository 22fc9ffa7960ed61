"""Rotary positions: how heads rotate, and what scales their frequencies. Knows nothing of torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearRope:
    """Every rotary frequency divided by one factor; if it is negative, heads rotate backwards."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Rope:
    """Fast frequencies are kept, slow ones divided by `factor`, those between blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_len: int


@dataclass(frozen=True, slots=True)
class YarnRope:
    """As Llama3Rope, but blended by a ramp over the pairs; cos and sin times `attention_factor`.

    A pair that turns `beta_fast` times or more within the original length is kept, one that
    turns `beta_slow` times or less is divided; `truncate` rounds the ramp's ends to whole pairs."""

    factor: float
    original_max_len: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class FactorRope:
    """Frequency i is divided by factor i (head_dim / 2 of them); cos and sin times a factor.

    Some GGUF files give their scaling in this form. Longrope has `factors` for texts within the
    original length, and `long` for texts up to `long_len`, whose cos and sin may be multiplied with
    another factor (`long_attention`; None: with the same)."""

    factors: tuple[float, ...]
    attention_factor: float = 1.0
    long: tuple[float, ...] = ()
    long_len: int = 0
    long_attention: float | None = None


RopeScaling = LinearRope | Llama3Rope | YarnRope | FactorRope


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions: the first `dims` numbers of a head are rotated, the others are not.

    Numbers i and i + dims / 2 of a head are a pair. In the files of a model whose pairs are
    `interleaved`, numbers 2 i and 2 i + 1 are a pair; loading moves them apart. `axes`: which of
    three coordinates rotates pair i, where positions have three; empty where they have one.
    `turning`: only so many of the pairs rotate, the first ones; None: all."""

    theta: float
    dims: int
    scaling: RopeScaling | None = None
    interleaved: bool = False
    axes: tuple[int, ...] = ()
    turning: int | None = None
