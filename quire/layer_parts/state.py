"""What a layer computes that keeps a state instead of keys and values: a part of a LayerPlan. Knows
nothing of torch.

A state has the same size for a text of any length. It consists of matrices, which may be none, and
of the last inputs of a short convolution; backends/states.py says where they lie.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.layer_parts.norm import NormPlan

# Tokens that are computed together: their effect on each other is a triangle of this size, their
# effect on the state a single product.
CHUNK = 64


@dataclass(frozen=True, slots=True)
class _Matrices:
    """Matrices [key_dim, value_dim], one for each head, which tokens decay, write with a key and a
    value, and read with a query. Queries, keys and values are made by a product, go through a
    convolution over the last `reach` tokens, then silu. Several heads share a query and a key."""

    num_heads: int
    num_key_heads: int
    key_dim: int
    value_dim: int
    reach: int

    @property
    def value_width(self) -> int:
        """Numbers of values in all heads."""
        return self.num_heads * self.value_dim

    @property
    def key_width(self) -> int:
        """Numbers of keys in all heads that have some."""
        return self.num_key_heads * self.key_dim

    @property
    def channels(self) -> int:
        """Numbers that the convolution has for a token: queries, keys and values."""
        return 2 * self.key_width + self.value_width

    @property
    def matrix_numbers(self) -> int:
        return self.num_heads * self.key_dim * self.value_dim

    @property
    def state_numbers(self) -> int:
        """Numbers a row keeps: the matrices, and the last inputs of the convolution."""
        return self.matrix_numbers + (self.reach - 1) * self.channels

    @property
    def pass_numbers(self) -> int:
        """The most float32 numbers that a token needs at once: products, convolution, its line of a
        chunk in each head, what was read, its norm and its gate."""
        return 2 * self.channels + self.num_heads * CHUNK + 5 * self.value_width


@dataclass(frozen=True, slots=True)
class DeltaNetPlan(_Matrices):
    """Gated DeltaNet: each token decays every matrix, corrects it so that its k gives its v, then
    reads it with its q (backends/delta_rule.py). The result is normed per head by `norm` and gated
    by silu. Heads that share a q and a k: neighbours do (0 0 1 1), or, with `in_turn`, every
    num_key_heads-th does (0 1 0 1). A rate is a sigmoid times `most_rate`."""

    norm: NormPlan
    in_turn: bool = False
    most_rate: float = 1.0

    def weights(self, hidden: int) -> int:
        """Weights in its products, for hidden states of this size."""
        return (self.channels + 2 * self.value_width + 2 * self.num_heads) * hidden


@dataclass(frozen=True, slots=True)
class SharedPart:
    """Which part of a norm's `count` parts it is whose heads several ranks share, and how wide the
    whole part is."""

    index: int
    count: int
    width: int


@dataclass(frozen=True, slots=True)
class MambaPlan(_Matrices):
    """Mamba-2: each token decays every matrix, adds its key times its value to it, then reads it
    with its query (backends/decay_rule.py). Keys, values and queries are what Mamba calls B, x and
    C. Decay and size of what is added follow from a step: the softplus of a product and a learned
    number, at least `least_step`. Values times a learned number per head are added to what is read.
    The result is gated by silu, and then normed over each of num_key_heads equal parts by `norm`,
    if there is one; or before it is gated if `norm_first`. Neighbouring heads share a query and a
    key. `factors`: what queries, keys, values, the gate and steps are multiplied with as they come
    from their product; empty: with nothing. `shared`: of a rank with some heads of a part."""

    norm: NormPlan | None
    bias: bool = False  # of the first product
    o_bias: bool = False
    convolution_bias: bool = True
    least_step: float = 0.0
    norm_first: bool = False
    factors: tuple[float, ...] = ()
    shared: SharedPart | None = None

    def weights(self, hidden: int) -> int:
        """Weights in its products, for hidden states of this size."""
        return (self.channels + 2 * self.value_width + self.num_heads) * hidden


@dataclass(frozen=True, slots=True)
class ConvolutionPlan:
    """A short convolution by itself: a product makes a gate, another gate, and x, each as wide as
    the stream. The first gate times x goes through a convolution over the last `reach` tokens, is
    multiplied with the second gate, and goes through a product back. With `bias` the products and
    the convolution have one."""

    channels: int
    reach: int
    bias: bool = False

    @property
    def value_width(self) -> int:
        return self.channels

    @property
    def matrix_numbers(self) -> int:
        return 0

    @property
    def state_numbers(self) -> int:
        """Numbers a row keeps: the last inputs of the convolution."""
        return (self.reach - 1) * self.channels

    @property
    def pass_numbers(self) -> int:
        """The most numbers that a token needs at once: the product, x, and what was convolved."""
        return 5 * self.channels

    def weights(self, hidden: int) -> int:
        """Weights in its products, for hidden states of this size."""
        return 4 * self.channels * hidden


StatePlan = DeltaNetPlan | MambaPlan | ConvolutionPlan
