"""LayerPlan: what one layer of a decoder computes, part by part. Knows nothing of torch.

Every field is a fact about the architecture; the names of families stand in quire/families alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class LinearRope:
    """Every rotary frequency divided by one factor."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Rope:
    """Fast frequencies kept, slow ones divided by `factor`, those between blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_len: int


@dataclass(frozen=True, slots=True)
class YarnRope:
    """The same idea with a ramp over the pairs, and cos and sin times `attention_factor`.

    A pair that turns `beta_fast` times or more within the original length is kept, one that
    turns `beta_slow` times or less is divided; `truncate` puts the ends of the ramp on pairs."""

    factor: float
    original_max_len: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class FactorRope:
    """Frequency i divided by factor i (head_dim / 2 of them), cos and sin times a factor.

    Some GGUF files carry their scaling this way, and longrope its short and long one."""

    factors: tuple[float, ...]
    attention_factor: float = 1.0


RopeScaling = LinearRope | Llama3Rope | YarnRope | FactorRope


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions: the first `dims` numbers of a head are turned, the others are not.

    Number i and number i + dims / 2 are a pair."""

    theta: float
    dims: int
    scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Self-attention: products to heads, positions, what a query sees, and a product back."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: Rope
    window: int | None = None  # how many tokens back a query sees, itself included; None = all
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False  # RMSNorm over each head's q and k before they are turned


@dataclass(frozen=True, slots=True)
class MlpPlan:
    """A gated feed-forward: down(activation(gate(x)) * up(x))."""

    width: int
    activation: Literal["silu"] = "silu"
    bias: bool = False


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """Attention and feed-forward, each added to the stream, with a norm before it."""

    attention: AttentionPlan
    mlp: MlpPlan
