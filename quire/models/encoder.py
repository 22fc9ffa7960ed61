"""Encoder: texts to hidden states, where every token sees its whole text. No KV cache, no padding.

The tokens of all texts of a pass are in one tensor, one text after the other, so that a product has
one row per token. Texts of one length are next to each other, the shortest first, so that attention
may take them as one batch, by a view. The residual stream and its norms are float32, whatever the
dtype of products: rounding them too would double the error of an embedding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.texts import AttendTexts, Groups, Sight
from quire.layer_plan import Rope
from quire.layers.rotary import Angles
from quire.models.encoder_ops import EncoderOps, Norm, NormOp, Op, no_norm
from quire.spec import EncoderSpec

Weights = dict[str, Tensor]
_FARTHEST = 128  # tokens; all distances from here on share one learned number


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of a pass: `groups` are (number of texts, tokens of each), one after the other.
    Tokens after the last group are padding."""

    token_ids: Tensor
    positions: Tensor
    groups: Groups


@dataclass(frozen=True, slots=True)
class _RootMeanSquare:
    """RMSNorm over the last dimension, in float32."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        x = no_norm(x, added)
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(x.dtype)


@dataclass(frozen=True, slots=True)
class _Turned:
    """cos and sin for the tokens of a pass, [T, 1, D / 2] each. Calling it rotates heads."""

    cos: Tensor
    sin: Tensor

    def __call__(self, heads: Tensor) -> Tensor:
        """heads [T, heads, D]: number i and number i + D / 2 are a pair."""
        first, second = heads.float().chunk(2, -1)
        turned = [first * self.cos - second * self.sin, second * self.cos + first * self.sin]
        return torch.cat(turned, -1).to(heads.dtype)


@dataclass(frozen=True, slots=True)
class _FeedForward:
    """The feed-forward of a layer, or one expert of it."""

    dtype: torch.dtype  # of the inputs of products
    up: Op
    activation: Op
    down: Op

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x.to(self.dtype))))


@dataclass(frozen=True, slots=True)
class _Mixture:
    """A mixture of experts: each token is computed by the experts with the highest probabilities,
    and their results are multiplied with these and added in the order of the experts. Products have
    a padded number of rows, so that the bits of a token do not depend on the others."""

    router: Tensor  # float32 [experts, H]
    experts: tuple[Op, ...]
    after: Tensor  # [H]
    num_chosen: int
    padded: Callable[[int], int]

    def __call__(self, x: Tensor) -> Tensor:
        likely = (x.float().unsqueeze(1) * self.router).sum(-1).softmax(-1)
        worth, chosen = likely.topk(self.num_chosen)
        made = self.after.expand_as(x).clone()
        for i, expert in enumerate(self.experts):
            tokens, places = (chosen == i).nonzero(as_tuple=True)
            if len(tokens):
                rows = x.new_zeros(self.padded(len(tokens)), x.shape[1])
                rows[: len(tokens)] = x[tokens]
                found = expert(rows)[: len(tokens)].float()
                made.index_add_(0, tokens, found * worth[tokens, places, None])
        return made


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer. `head_norms` are of q and k. `post_norms` are of the results of the branches, for
    models that norm them before adding."""

    spec: EncoderSpec
    dtype: torch.dtype  # of the inputs of products
    qkv: Op
    out: Op
    attn_norm: NormOp
    feed_forward: Op
    mlp_norm: NormOp
    theta: float | None
    attend: AttendTexts
    sight: Sight
    head_norms: tuple[Op, Op] | None
    post_norms: tuple[Op, Op]

    def __call__(self, x: Tensor, texts: Texts, turned: dict[float, _Turned]) -> Tensor:
        if self.spec.norms != "after":
            first, second = self.post_norms
            x = x.add_(first(self._attend(self.attn_norm(x), texts, turned)))
            return x.add_(second(self.feed_forward(self.mlp_norm(x))))
        x = self.attn_norm(x, self._attend(x, texts, turned))
        return self.mlp_norm(x, self.feed_forward(x))

    def _attend(self, x: Tensor, texts: Texts, turned: dict[float, _Turned]) -> Tensor:
        spec = self.spec
        heads = self.qkv(x.to(self.dtype)).view(len(x), -1, spec.head_dim)
        q, k, v = heads.tensor_split((spec.num_heads, spec.num_heads + spec.num_kv_heads), 1)
        if self.head_norms is not None:
            q, k = self.head_norms[0](q), self.head_norms[1](k)
        if self.theta is not None:
            turn = turned[self.theta]
            q, k = turn(q), turn(k)
        return self.out(self.attend(q, k, v, texts.groups, self.sight))


class Encoder:
    """Token ids to the last hidden states."""

    def __init__(
        self,
        spec: EncoderSpec,
        weights: Weights,
        ops: EncoderOps,
        max_len: int,
    ) -> None:
        """Takes the weights out of the dict, so that a weight and its packed form are not in memory
        together."""
        self.spec, self.padded = spec, ops.padded
        self._words = weights.pop("embed.weight")
        self._types = weights.pop("types.weight", None)
        self._positions = weights.pop("positions.weight", None)
        device = self._words.device
        self._rotary = {
            theta: Angles(Rope(theta, spec.head_dim), spec.head_dim, max_len, device)
            for theta in set(spec.thetas)
        }
        parts = _Parts(spec, weights, ops, max_len)
        self._embed_norm = parts.norm("embed_norm")
        self._product = parts.linear("embed_product") if spec.embedding_width else None
        self._dtype = parts.dtype
        self._layers = [parts.layer(i) for i in range(spec.num_layers)]
        self._norm = parts.norm("norm")
        # The scale is rounded to the dtype of the embeddings, as in training.
        scale = torch.tensor(spec.embedding_scale, dtype=self._words.dtype, device=device)
        self._scale = scale.float()

    @property
    def device(self) -> torch.device:
        return self._words.device

    def __call__(self, texts: Texts) -> Tensor:
        """[T, H]"""
        x = self._embed_norm(self._embedded(texts))
        if self._product is not None:
            x = self._product(x.to(self._dtype)).float()
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
    """Makes layers from named weights."""

    def __init__(self, spec: EncoderSpec, weights: Weights, ops: EncoderOps, max_len: int) -> None:
        self.spec, self.weights, self.ops = spec, weights, ops
        one = weights["layers.0.attn.o.weight"]
        self.dtype = ops.takes or one.dtype
        self.slopes = alibi_slopes(spec.num_heads).to(one.device) if spec.alibi else None
        learned = weights.pop("distances.weight", None)
        self.gains = None if learned is None else distance_gains(learned, max_len)

    def norm(self, name: str) -> NormOp:
        """The norm of that name, or `no_norm` where the model has none at this place."""
        weight, bias = (self.weights.pop(f"{name}.{kind}", None) for kind in ("weight", "bias"))
        if weight is None:
            return no_norm
        if self.spec.norm_kind != "layer":
            more = 1 if self.spec.norm_kind == "rms_one_plus" else 0
            return _RootMeanSquare(weight + more, self.spec.norm_eps)
        return Norm(weight, bias, self.spec.norm_eps, self.ops.layer_norm)

    def linear(self, name: str) -> Op:
        weights = self.weights
        return self.ops.make_linear(
            weights.pop(f"{name}.weight"), weights.pop(f"{name}.bias", None)
        )

    def joined(self, up: Op, down: Op, *, gated: bool) -> Op:
        ops, name = self.ops, self.spec.activation
        made = None if gated else ops.join(up, down, name)
        return made or _FeedForward(self.dtype, up, ops.activation(name, gated), down)

    def feed_forward(self, index: int) -> Op:
        spec, name = self.spec, f"layers.{index}.mlp"
        if not spec.has_experts(index):
            up, down = (self.linear(f"{name}.{one}") for one in ("up", "down"))
            return self.joined(up, down, gated=spec.gated)
        first, second = (
            self.weights.pop(f"{name}.{one}.weight").chunk(spec.num_experts)
            for one in ("first", "second")
        )
        make = self.ops.make_linear
        return _Mixture(
            router=self.weights.pop(f"{name}.router.weight").float(),
            experts=tuple(
                self.joined(make(a, None), make(b.T.contiguous(), None), gated=False)
                for a, b in zip(first, second, strict=True)
            ),
            after=self.weights.pop(f"{name}.after.bias").float(),
            num_chosen=spec.num_chosen,
            padded=self.ops.padded,
        )

    def layer(self, index: int) -> _Layer:
        spec, name = self.spec, f"layers.{index}"
        q_norm, k_norm = (self.norm(f"{name}.attn.{one}_norm") for one in "qk")
        scale = spec.head_dim**-0.5 if spec.scale is None else spec.scale
        return _Layer(
            spec=spec,
            dtype=self.dtype,
            qkv=self.linear(f"{name}.attn.qkv"),
            out=self.linear(f"{name}.attn.o"),
            attn_norm=self.norm(f"{name}.attn_norm"),
            feed_forward=self.feed_forward(index),
            mlp_norm=self.norm(f"{name}.mlp_norm"),
            theta=spec.thetas[index] if spec.thetas else None,
            attend=self.ops.attend,
            sight=Sight(
                scale, spec.windows[index] if spec.windows else None, self.slopes, self.gains
            ),
            head_norms=(q_norm, k_norm) if spec.qk_norm else None,
            post_norms=(self.norm(f"{name}.attn_post_norm"), self.norm(f"{name}.mlp_post_norm")),
        )


def alibi_slopes(num_heads: int) -> Tensor:
    """ALiBi slopes [heads]: 2^(-8 i / n) for heads i = 1 ... n, if n is a power of two. Else the
    slopes of the power of two below n, then every second one of the power above."""
    below = 1 << (num_heads.bit_length() - 1)
    first = [2 ** (-8 * (i + 1) / below) for i in range(below)]
    between = [2 ** (-4 * (2 * i + 1) / below) for i in range(num_heads - below)]
    return torch.tensor(first + between)


def distance_gains(learned: Tensor, max_len: int) -> Tensor:
    """What is added to scores by distance, from learned numbers [N, heads] ->
    [heads, 2 max_len - 1].

    The first half of the numbers is for keys before the query, the second for keys after it. In
    each half the first numbers are for one distance each; the others are for ranges of distances,
    and these grow with the distance."""
    half = len(learned) // 2
    near = half // 2
    ahead = torch.arange(1 - max_len, max_len, device=learned.device)
    far = ahead.abs()
    shared = torch.log(far.float().clamp(min=near) / near) / math.log(_FARTHEST / near)
    place = torch.where(far < near, far, near + (shared * (half - near)).long()).clamp(max=half - 1)
    return learned[place + half * (ahead > 0)].T.contiguous()


def order_texts(lengths: Sequence[int]) -> tuple[list[int], Groups]:
    """The order that puts texts of one length next to each other, and the groups that this makes: 3
    5 3 -> [0 2 1], ((2, 3), (1, 5))."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    groups: list[tuple[int, int]] = []
    for i in order:
        count = groups.pop()[0] if groups and groups[-1][1] == lengths[i] else 0
        groups.append((count + 1, lengths[i]))
    return order, tuple(groups)
