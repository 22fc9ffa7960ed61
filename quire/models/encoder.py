"""Encoder: texts to hidden states, every token seeing its whole text. No KV cache, no padding.

The tokens of all texts of a pass lie behind each other in one tensor, so that a product has one row
per token and none for padding. Texts of one length lie together: attention then takes them as one
batch, by a view. What runs from layer to layer, and its norms, are float32 whatever type products
have: rounding it too would double the error of an embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.linear import LinearOp
from quire.layer_plan import Rope
from quire.layers.rotary import Angles
from quire.spec import EncoderSpec

MakeLinear = Callable[[Tensor, Tensor | None], LinearOp]
Padded = Callable[[int], int]  # how many rows products want for so many tokens
Weights = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of a pass: `groups` are (number of texts, tokens of each), one after the other.
    Tokens after the last of them only fill up."""

    token_ids: Tensor
    positions: Tensor
    groups: tuple[tuple[int, int], ...]


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function of that name."""
    return {
        "identity": lambda x: x,
        "tanh": torch.tanh,
        "relu": F.relu,
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "silu": F.silu,
        "sigmoid": torch.sigmoid,
    }[name]


@dataclass(frozen=True, slots=True)
class Norm:
    """LayerNorm over the last dimension."""

    weight: Tensor
    bias: Tensor | None
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True, slots=True)
class _Turned:
    """cos and sin of the tokens of a pass, [T, 1, D / 2] each."""

    cos: Tensor
    sin: Tensor

    def __call__(self, heads: Tensor) -> Tensor:
        """heads [T, heads, D]: number i and number i + D / 2 are a pair."""
        first, second = heads.float().chunk(2, -1)
        turned = [first * self.cos - second * self.sin, second * self.cos + first * self.sin]
        return torch.cat(turned, -1).to(heads.dtype)


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer."""

    num_heads: int
    dtype: torch.dtype  # of what is multiplied
    qkv: LinearOp
    out: LinearOp
    attn_norm: Callable[[Tensor], Tensor]
    up: LinearOp
    down: LinearOp
    mlp_norm: Norm
    activation: Callable[[Tensor], Tensor]
    gated: bool
    norm_before: bool
    theta: float | None
    window: int | None

    def __call__(self, x: Tensor, texts: Texts, turned: dict[float, _Turned]) -> Tensor:
        # x belongs to this layer alone, so that it may be written to.
        if self.norm_before:
            x = x.add_(self._attend(self.attn_norm(x), texts, turned))
            return x.add_(self._feed_forward(self.mlp_norm(x)))
        x = self.attn_norm(x.add_(self._attend(x, texts, turned)))
        return self.mlp_norm(x.add_(self._feed_forward(x)))

    def _attend(self, x: Tensor, texts: Texts, turned: dict[float, _Turned]) -> Tensor:
        q, k, v = self.qkv(x.to(self.dtype)).view(len(x), 3, self.num_heads, -1).unbind(1)
        if self.theta is not None:
            turn = turned[self.theta]
            q, k = turn(q), turn(k)
        made, at = torch.zeros(v.shape, dtype=v.dtype, device=v.device), 0
        for count, length in texts.groups:
            here = slice(at, at + count * length)
            mine = [a[here].view(count, length, *a.shape[1:]).transpose(1, 2) for a in (q, k, v)]
            seen = self._seen(length, x.device)
            attended = F.scaled_dot_product_attention(mine[0], mine[1], mine[2], attn_mask=seen)
            made[here].view(count, length, *v.shape[1:]).copy_(attended.transpose(1, 2))
            at += count * length
        return self.out(made.view(len(x), -1))

    def _seen(self, length: int, device: torch.device) -> Tensor | None:
        """Which tokens see which [length, length]; None where all see all."""
        if self.window is None or length <= self.window + 1:
            return None
        at = torch.arange(length, device=device)
        return (at[:, None] - at).abs() <= self.window

    def _feed_forward(self, x: Tensor) -> Tensor:
        made = self.up(x.to(self.dtype))
        if not self.gated:
            return self.down(self.activation(made))
        first, second = made.chunk(2, -1)
        return self.down(self.activation(first) * second)


class Encoder:
    """Token ids to the last hidden states."""

    def __init__(
        self,
        spec: EncoderSpec,
        weights: Weights,
        make_linear: MakeLinear,
        padded: Padded,
        max_len: int,
    ) -> None:
        """Takes the weights out of the dict, so that a packed one never lies beside its source."""
        self.spec, self.padded = spec, padded
        self._words = weights.pop("embed.weight")
        self._types = weights.pop("types.weight", None)
        self._positions = weights.pop("positions.weight", None)
        device = self._words.device
        self._rotary = {
            theta: Angles(Rope(theta, spec.head_dim), spec.head_dim, max_len, device)
            for theta in set(spec.thetas)
        }
        parts = _Parts(spec, weights, make_linear)
        self._embed_norm = parts.norm("embed_norm")
        self._layers = [parts.layer(i) for i in range(spec.num_layers)]
        self._norm = parts.norm("norm") if spec.norm_before else None

    @property
    def device(self) -> torch.device:
        return self._words.device

    def __call__(self, texts: Texts) -> Tensor:
        """[T, H]"""
        x = self._embed_norm(self._embedded(texts))
        turned = {}
        for theta, rotary in self._rotary.items():
            cos, sin = rotary(texts.positions)
            turned[theta] = _Turned(cos[:, None], sin[:, None])
        for layer in self._layers:
            x = layer(x, texts, turned)
        return x if self._norm is None else self._norm(x)

    def _embedded(self, texts: Texts) -> Tensor:
        ids, vocab = texts.token_ids, self.spec.vocab_size
        x = F.embedding(ids % vocab, self._words).float()
        if self._types is not None:
            x += F.embedding(ids // vocab, self._types)
        if self._positions is not None:
            x += F.embedding(texts.positions + self.spec.first_position, self._positions)
        return x


class _Parts:
    """Makes layers out of named weights."""

    def __init__(self, spec: EncoderSpec, weights: Weights, make_linear: MakeLinear) -> None:
        self.spec, self.weights, self.make_linear = spec, weights, make_linear
        self.dtype = weights["layers.0.mlp.up.weight"].dtype

    def norm(self, name: str) -> Norm:
        weights = self.weights
        bias = weights.pop(f"{name}.bias", None)
        return Norm(weights.pop(f"{name}.weight"), bias, self.spec.norm_eps)

    def linear(self, name: str) -> LinearOp:
        weights = self.weights
        return self.make_linear(weights.pop(f"{name}.weight"), weights.pop(f"{name}.bias", None))

    def layer(self, index: int) -> _Layer:
        spec, name = self.spec, f"layers.{index}"
        has_norm = bool(index) or not spec.norm_before
        return _Layer(
            num_heads=spec.num_heads,
            dtype=self.dtype,
            qkv=self.linear(f"{name}.attn.qkv"),
            out=self.linear(f"{name}.attn.o"),
            # What the embedding gives is normed already.
            attn_norm=self.norm(f"{name}.attn_norm") if has_norm else activation("identity"),
            up=self.linear(f"{name}.mlp.up"),
            down=self.linear(f"{name}.mlp.down"),
            mlp_norm=self.norm(f"{name}.mlp_norm"),
            activation=activation(spec.activation),
            gated=spec.gated,
            norm_before=spec.norm_before,
            theta=spec.thetas[index] if spec.thetas else None,
            window=spec.windows[index] if spec.windows else None,
        )


def order_texts(lengths: Sequence[int]) -> tuple[list[int], tuple[tuple[int, int], ...]]:
    """Texts in an order in which those of one length lie together, and the groups they make:
    3 5 3 -> [0 2 1], ((2, 3), (1, 5))."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    groups: list[tuple[int, int]] = []
    for i in order:
        count = groups.pop()[0] if groups and groups[-1][1] == lengths[i] else 0
        groups.append((count + 1, lengths[i]))
    return order, tuple(groups)
