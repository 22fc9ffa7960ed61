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

Op = Callable[[Tensor], Tensor]
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


def _same(x: Tensor) -> Tensor:
    return x


def activation(name: str) -> Op:
    """The function of that name."""
    named: dict[str, Op] = {
        "identity": _same,
        "tanh": torch.tanh,
        "relu": F.relu,
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "silu": F.silu,
        "sigmoid": torch.sigmoid,
    }
    return named[name]


@dataclass(frozen=True, slots=True)
class Norm:
    """LayerNorm over the last dimension."""

    weight: Tensor
    bias: Tensor | None
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True, slots=True)
class _RootMeanSquare:
    """RMSNorm over the last dimension, in float32."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(x.dtype)


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
    """One layer. `head_norms` are those of q and k; `post_norms` are of what the branches make,
    where that is normed before it is added."""

    spec: EncoderSpec
    dtype: torch.dtype  # of what is multiplied
    qkv: LinearOp
    out: LinearOp
    attn_norm: Op
    up: LinearOp
    down: LinearOp
    mlp_norm: Op
    activation: Op
    theta: float | None
    window: int | None
    slopes: Tensor | None  # by head: what a score loses for each token between two
    head_norms: tuple[Op, Op] | None
    post_norms: tuple[Op, Op]

    def __call__(self, x: Tensor, texts: Texts, turned: dict[float, _Turned]) -> Tensor:
        # x belongs to this layer alone, so that it may be written to.
        if self.spec.norms != "after":
            first, second = self.post_norms
            x = x.add_(first(self._attend(self.attn_norm(x), texts, turned)))
            return x.add_(second(self._feed_forward(self.mlp_norm(x))))
        x = self.attn_norm(x.add_(self._attend(x, texts, turned)))
        return self.mlp_norm(x.add_(self._feed_forward(x)))

    def _attend(self, x: Tensor, texts: Texts, turned: dict[float, _Turned]) -> Tensor:
        spec = self.spec
        heads = self.qkv(x.to(self.dtype)).view(len(x), -1, spec.head_dim)
        q, k, v = heads.tensor_split((spec.num_heads, spec.num_heads + spec.num_kv_heads), 1)
        if self.head_norms is not None:
            q, k = self.head_norms[0](q), self.head_norms[1](k)
        if self.theta is not None:
            turn = turned[self.theta]
            q, k = turn(q), turn(k)
        made, at = torch.zeros(q.shape, dtype=v.dtype, device=v.device), 0
        for count, length in texts.groups:
            here = slice(at, at + count * length)
            mine = [a[here].view(count, length, *a.shape[1:]).transpose(1, 2) for a in (q, k, v)]
            attended = F.scaled_dot_product_attention(
                *(mine[0], mine[1], mine[2], self._seen(length, x.device)),
                scale=spec.scale,
                enable_gqa=spec.num_kv_heads < spec.num_heads,
            )
            made[here].view(count, length, *q.shape[1:]).copy_(attended.transpose(1, 2))
            at += count * length
        return self.out(made.view(len(x), -1))

    def _seen(self, length: int, device: torch.device) -> Tensor | None:
        """Which tokens see which [length, length], or what their scores lose [heads, length,
        length]; None where all see all alike."""
        at = torch.arange(length, device=device)
        if self.slopes is not None:
            return (-self.slopes[:, None, None] * (at[:, None] - at).abs()).to(self.dtype)
        if self.window is None or length <= self.window + 1:
            return None
        return (at[:, None] - at).abs() <= self.window

    def _feed_forward(self, x: Tensor) -> Tensor:
        made = self.up(x.to(self.dtype))
        if not self.spec.gated:
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
        self._norm = parts.norm("norm")
        # Rounded as the words are.
        scale = torch.tensor(spec.embedding_scale, dtype=self._words.dtype, device=device)
        self._scale = scale.float()

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
        return self._norm(x)

    def _embedded(self, texts: Texts) -> Tensor:
        ids, vocab = texts.token_ids, self.spec.vocab_size
        x = F.embedding(ids % vocab, self._words).float() * self._scale
        if self._types is not None:
            x += F.embedding(ids // vocab, self._types)
        if self._positions is not None:
            x += F.embedding(texts.positions + self.spec.first_position, self._positions)
        return x


class _Parts:
    """Makes layers out of named weights."""

    def __init__(self, spec: EncoderSpec, weights: Weights, make_linear: MakeLinear) -> None:
        self.spec, self.weights, self.make_linear = spec, weights, make_linear
        up = weights["layers.0.mlp.up.weight"]
        self.dtype = up.dtype
        self.slopes = alibi_slopes(spec.num_heads).to(up.device) if spec.alibi else None

    def norm(self, name: str) -> Op:
        """The norm of that name; nothing, where the model has none in this place."""
        weight, bias = (self.weights.pop(f"{name}.{kind}", None) for kind in ("weight", "bias"))
        if weight is None:
            return _same
        if self.spec.norm_kind == "rms_one_plus":
            return _RootMeanSquare(1 + weight, self.spec.norm_eps)
        return Norm(weight, bias, self.spec.norm_eps)

    def linear(self, name: str) -> LinearOp:
        weights = self.weights
        return self.make_linear(weights.pop(f"{name}.weight"), weights.pop(f"{name}.bias", None))

    def layer(self, index: int) -> _Layer:
        spec, name = self.spec, f"layers.{index}"
        q_norm, k_norm = (self.norm(f"{name}.attn.{one}_norm") for one in "qk")
        return _Layer(
            spec=spec,
            dtype=self.dtype,
            qkv=self.linear(f"{name}.attn.qkv"),
            out=self.linear(f"{name}.attn.o"),
            attn_norm=self.norm(f"{name}.attn_norm"),
            up=self.linear(f"{name}.mlp.up"),
            down=self.linear(f"{name}.mlp.down"),
            mlp_norm=self.norm(f"{name}.mlp_norm"),
            activation=activation(spec.activation),
            theta=spec.thetas[index] if spec.thetas else None,
            window=spec.windows[index] if spec.windows else None,
            slopes=self.slopes,
            head_norms=(q_norm, k_norm) if spec.qk_norm else None,
            post_norms=(self.norm(f"{name}.attn_post_norm"), self.norm(f"{name}.mlp_post_norm")),
        )


def alibi_slopes(num_heads: int) -> Tensor:
    """2^(-8 i / n) of the heads i = 1 ... n, where n is a power of two; else those of the power
    below, and of the one above every second until there are enough. [heads]"""
    below = 1 << (num_heads.bit_length() - 1)
    first = [2 ** (-8 * (i + 1) / below) for i in range(below)]
    between = [2 ** (-4 * (2 * i + 1) / below) for i in range(num_heads - below)]
    return torch.tensor(first + between)


def order_texts(lengths: Sequence[int]) -> tuple[list[int], tuple[tuple[int, int], ...]]:
    """Texts in an order in which those of one length lie together, and the groups they make:
    3 5 3 -> [0 2 1], ((2, 3), (1, 5))."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    groups: list[tuple[int, int]] = []
    for i in order:
        count = groups.pop()[0] if groups and groups[-1][1] == lengths[i] else 0
        groups.append((count + 1, lengths[i]))
    return order, tuple(groups)
