"""What the plans of a spec mean: a whole text at once, in float64 and plain torch."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.layer_parts.state import ConvolutionPlan, DeltaNetPlan, MambaPlan
from quire.layer_parts.streams import StreamsPlan
from quire.layer_plan import (
    AttentionPlan,
    ExpertsPlan,
    LatentPlan,
    LayerPlan,
    MlpPlan,
    NormPlan,
    Rope,
)
from quire.layers.rotary import attention_factor, frequencies
from quire.spec import ModelSpec

ACTIVATIONS = {
    "silu": F.silu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu": F.gelu,
    "relu": F.relu,
    "relu2": lambda x: F.relu(x) ** 2,
    "clamped_silu": lambda x: x * torch.sigmoid(1.702 * x),
}


class PlanOracle:
    """Logits of a text, from weights by quire's names."""

    def __init__(self, spec: ModelSpec, weights: dict[str, Tensor]) -> None:
        self.spec, self.weights = spec, {name: w.double() for name, w in weights.items()}
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}  # keys and values by layer

    def logits(self, text: list[int]) -> Tensor:
        spec, w = self.spec, self.weights
        x = w["embed.weight"][text] * spec.embedding_scale
        if spec.embed_norm is not None:
            x = self._normed("embed_norm", spec.embed_norm, x)
        embeddings, self.kept = self._layer_embeddings(text, x), {}
        if spec.learned_positions is not None:
            x = x + w["positions.weight"][spec.learned_positions.offset :][: len(text)]
        if spec.waves is not None:
            half = spec.hidden_size // 2
            rates = 10_000.0 ** (-torch.arange(half).double() / (half - 1))
            angles = (torch.arange(len(text)) + spec.waves.offset)[:, None] * rates
            x = x + torch.cat([angles.sin(), angles.cos()], dim=1)
        joined: Tensor | None = None
        if spec.streams is not None:
            return self._finished(self._through_streams(spec.streams, x, embeddings))
        for index, plan in enumerate(spec.layers):
            name = f"layers.{index}."
            read = self._normed(f"{name}attn_norm", plan.norm, x) if plan.joins_next else None
            x, joined = self._layer(name, plan, x, joined), read
            if plan.embedding is not None:
                name = f"layers.{index}.embedding"
                opened = ACTIVATIONS[plan.embedding.activation](self._linear(f"{name}.gate", x))
                made = self._linear(f"{name}.out", opened * embeddings[:, index])
                x = x + self._normed(f"{name}_post_norm", plan.norm, made)
            if plan.is_scaled:
                x = x * w[f"layers.{index}.scale.weight"]
        return self._finished(x)

    def _finished(self, x: Tensor) -> Tensor:
        spec, w = self.spec, self.weights
        x = self._normed("norm", spec.norm, x)
        logits = x @ w["embed.weight" if spec.tied_embeddings else "head.weight"].T
        if spec.logits.bias:
            logits = logits + w["head.bias"]
        return capped(logits * spec.logits.scale, spec.logits.softcap)

    def _layer(self, name: str, plan: LayerPlan, x: Tensor, joined: Tensor | None) -> Tensor:
        """`joined`: what its first branch reads, if that is what another layer has normed."""

        def before(branch: str) -> Tensor:
            if plan.norms == "after":
                return x
            if joined is not None and branch == "attn":
                return joined
            norm = "attn" if plan.norms == "parallel" else branch
            return self._normed(f"{name}{norm}_norm", plan.norm, x)

        def after(branch: str, made: Tensor) -> Tensor:
            if plan.norms in ("after", "both"):
                made = self._normed(f"{name}{branch}_post_norm", plan.norm, made)
            own = branch == "mlp" and plan.mlp_scale is not None
            return made * ((own and plan.mlp_scale) or plan.branch_scale)

        if plan.state is None:
            mixed = self._attention(f"{name}attn.", plan.attention, before("attn"))
        elif isinstance(plan.state, MambaPlan):
            mixed = self._mamba(f"{name}attn.", plan.state, before("attn"))
        elif isinstance(plan.state, ConvolutionPlan):
            mixed = self._short_convolution(f"{name}attn.", before("attn"))
        else:
            mixed = self._delta_net(f"{name}attn.", plan.state, before("attn"))
        attended = after("attn", mixed)
        if plan.mlp is None:
            return x + attended
        if plan.norms.startswith("parallel"):
            return x + attended + after("mlp", self._behind(name, plan.mlp, before("mlp")))
        x = x + attended
        made = self._behind(name, plan.mlp, before("mlp"))
        if plan.beside is not None:
            read = self._normed(f"{name}beside_norm", plan.norm, x)
            mixed = self._experts(f"{name}beside.", plan.beside, read, routed_by=x)
            made = self._normed(f"{name}mlp_own_norm", plan.norm, made)
            made = made + self._normed(f"{name}beside_post_norm", plan.norm, mixed)
        return x + after("mlp", made)

    def _through_streams(self, plan: StreamsPlan, x: Tensor, embeddings: Tensor) -> Tensor:
        products = (self._linear(f"streams.spread.{i}", x) for i in range(plan.count - 1))
        streams = [x, *(sized(product, x) for product in products)]
        for index, layer in enumerate(self.spec.layers):
            streams = self._streams_layer(index, layer, plan, streams, embeddings)
        others = (self._linear(f"streams.joined.{i}", one) for i, one in enumerate(streams[1:]))
        total = torch.stack([streams[0], *(sized(one, streams[0]) for one in others)])
        return total.mean(0)

    def _streams_layer(
        self,
        index: int,
        layer: LayerPlan,
        plan: StreamsPlan,
        streams: list[Tensor],
        embeddings: Tensor,
    ) -> list[Tensor]:
        name, norm = f"layers.{index}.", layer.norm
        routed = self._routed(name, norm, streams[plan.active])
        factors = self._linear(f"{name}streams.predicting", routed)
        factors = factors.view(len(routed), plan.count, plan.count)
        streams = [
            one + torch.stack([factors[:, i, j, None] * x for j, x in enumerate(streams)]).sum(0)
            for i, one in enumerate(streams)
        ]
        active = streams[plan.active]
        read = self._normed(f"{name}attn_norm", norm, active)
        side = self._linear(f"{name}side.wide", self._linear(f"{name}side.narrow", read))
        side = read + self._normed(f"{name}side_norm", norm, side)
        mixed = self._attention(f"{name}attn.", layer.attention, read)
        mixed = active + self._normed(f"{name}attn_post_norm", norm, mixed)
        made = (mixed + side) / 2**0.5
        assert isinstance(layer.mlp, MlpPlan)
        behind = self._mlp(f"{name}mlp.", layer.mlp, self._normed(f"{name}mlp_norm", norm, made))
        made = made + self._normed(f"{name}mlp_post_norm", norm, behind)
        factors = 1 + self._linear(f"{name}streams.correcting", self._routed(name, norm, made))
        streams = [one + factors[:, i, None] * (made - active) for i, one in enumerate(streams)]
        if layer.embedding is None:
            return streams
        read = streams[plan.active] * self.weights[f"{name}streams.scale.weight"]
        opened = self._linear(f"{name}embedding.gate", read)
        opened = ACTIVATIONS[layer.embedding.activation](opened) * embeddings[:, index]
        made = self._linear(f"{name}embedding.out", opened)
        made = self._normed(f"{name}embedding_post_norm", norm, made)
        return [streams[0], *(one + made for one in streams[1:])]

    def _routed(self, name: str, norm: NormPlan, x: Tensor) -> Tensor:
        read = self._normed(f"{name}streams.router_norm", norm, x) / x.shape[1]
        return self._linear(f"{name}streams.router", read).tanh()

    def _behind(self, name: str, plan: MlpPlan | ExpertsPlan, x: Tensor) -> Tensor:
        if isinstance(plan, MlpPlan):
            return self._mlp(f"{name}mlp.", plan, x)
        return self._experts(f"{name}mlp.", plan, x)

    def _layer_embeddings(self, text: list[int], x: Tensor) -> Tensor:
        plan = self.spec.layer_embeddings
        if plan is None:
            return x
        made = self._linear("layer_embed_product", x) / x.shape[1] ** 0.5
        normed = self._normed("layer_embed_norm", plan.norm, made.view(len(x), -1, plan.width))
        rows = [token if token < plan.count else 0 for token in text]
        own = self.weights["layer_embed.weight"][rows] * plan.width**0.5
        return (normed + own.view(normed.shape)) / 2**0.5

    def _attention(self, name: str, plan: AttentionPlan, x: Tensor) -> Tensor:
        if plan.latent is not None:
            return self._latent(name, plan, plan.latent, x)
        count, size, kv = len(x), plan.head_dim, plan.num_kv_heads
        qkv = self._linear(f"{name}qkv", x).view(count, -1, size).transpose(0, 1)
        q, *others = qkv.split([plan.num_heads, kv, kv][: plan.num_parts])
        if plan.kv_from is None:
            k, v = others[0], others[-1]
            if plan.value_norm is not None:
                v = v * torch.rsqrt(v.square().mean(-1, keepdim=True) + plan.value_norm)
            v = clipped(v, plan)
            self.kept[int(name.split(".")[1])] = k, v = self._turned(f"{name}k_norm", plan, k), v
        else:
            k, v = self.kept[plan.kv_from]
        q = self._turned(f"{name}q_norm", plan, q)
        if plan.query_growth is not None:
            by, length = plan.query_growth.beta, plan.query_growth.original_max_len
            places = range(plan.query_growth.first, count + plan.query_growth.first)
            factors = [1 + by * math.log(1 + at // length) for at in places]
            q = q * torch.tensor(factors, dtype=q.dtype)[:, None]
        k, v = (y.repeat_interleave(plan.num_heads // plan.num_kv_heads, 0) for y in (k, v))
        scores = capped(q @ k.transpose(1, 2) * plan.scale, plan.softcap)
        at = torch.arange(count)
        apart = at[:, None] - at[None]
        seen = (apart >= 0) & (apart < (plan.window or count))
        own = plan.chunk or count
        seen &= at[:, None] // own == at[None] // own
        scores = scores.masked_fill(~seen, -torch.inf)
        if plan.sinks:
            column = self.weights[f"{name}sinks.weight"][:, None, None].expand(-1, count, 1)
            scores = torch.cat([scores, column], -1)
        made = (scores.softmax(-1)[..., :count] @ v).transpose(0, 1).flatten(1)
        if plan.output_gate:
            made = made * self._linear(f"{name}gate", x).sigmoid()
        if plan.inner_norm is not None:
            made = self._normed(f"{name}inner_norm", plan.inner_norm, made)
        return self._linear(f"{name}o", made)

    def _short_convolution(self, name: str, x: Tensor) -> Tensor:
        before, behind, inner = self._linear(f"{name}gated", x).chunk(3, -1)
        return self._linear(f"{name}o", behind * self._convolved(name, before * inner))

    def _convolved(self, name: str, x: Tensor) -> Tensor:
        taps, bias = (self.weights.get(f"{name}convolution.{one}") for one in ("weight", "bias"))
        assert taps is not None
        padded = F.pad(x.T, (taps.shape[-1] - 1, 0))[None]
        return F.conv1d(padded, taps, bias, groups=x.shape[1])[0].T

    def _delta_net(self, name: str, plan: DeltaNetPlan, x: Tensor) -> Tensor:
        """Token by token, and head by head."""
        qkvz, w = self._linear(f"{name}qkvz", x), self.weights
        mixed = F.silu(self._convolved(name, qkvz[:, : plan.channels]))
        keys = plan.num_key_heads * plan.key_dim
        q, k = (one.view(len(x), -1, plan.key_dim) for one in mixed[:, : 2 * keys].chunk(2, -1))
        q, k = (y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt() for y in (q, k))
        v, z = (
            one.reshape(len(x), -1, plan.value_dim)
            for one in (mixed[:, 2 * keys :], qkvz[:, plan.channels :])
        )
        rate, steps = self._linear(f"{name}rates", x).chunk(2, -1)
        rates = plan.most_rate * rate.sigmoid()
        slopes = -w[f"{name}log_slopes.weight"].exp()
        decay = (slopes * F.softplus(steps + w[f"{name}shifts.bias"])).exp()
        out = torch.empty_like(v)
        for head in range(plan.num_heads):
            of = head * plan.num_key_heads // plan.num_heads
            of = head % plan.num_key_heads if plan.in_turn else of
            state = x.new_zeros(plan.key_dim, plan.value_dim)
            for t in range(len(x)):
                state = state * decay[t, head]
                missing = v[t, head] - k[t, of] @ state
                state = state + torch.outer(k[t, of], rates[t, head] * missing)
                out[t, head] = q[t, of] @ state / plan.key_dim**0.5
        gated = self._normed(f"{name}head_norm", plan.norm, out) * F.silu(z)
        return self._linear(f"{name}o", gated.flatten(1))

    def _mamba(self, name: str, plan: MambaPlan, x: Tensor) -> Tensor:
        """Token by token, and head by head."""
        qkvz, w, keys = self._linear(f"{name}qkvz", x), self.weights, plan.key_width
        factors = plan.factors or (1.0,) * 5
        sizes = [keys, keys, plan.value_width, plan.value_width]
        split = zip(qkvz.split(sizes, -1), factors, strict=False)
        qkvz = torch.cat([one * factor for one, factor in split], -1)
        mixed = F.silu(self._convolved(name, qkvz[:, : plan.channels]))
        q, k = (one.view(len(x), -1, plan.key_dim) for one in mixed[:, : 2 * keys].chunk(2, -1))
        v = mixed[:, 2 * keys :].reshape(len(x), -1, plan.value_dim)
        steps = F.softplus(self._linear(f"{name}rates", x) * factors[4] + w[f"{name}shifts.bias"])
        steps = steps.clamp(min=plan.least_step)
        decay = (-w[f"{name}log_slopes.weight"].exp() * steps).exp()
        out = v * w[f"{name}skips.weight"][:, None]
        for head in range(plan.num_heads):
            of = head * plan.num_key_heads // plan.num_heads
            state = x.new_zeros(plan.key_dim, plan.value_dim)
            for t in range(len(x)):
                state = state * decay[t, head]
                state = state + torch.outer(k[t, of], steps[t, head] * v[t, head])
                out[t, head] += q[t, of] @ state
        made, gate = out.flatten(1), F.silu(qkvz[:, plan.channels :])
        made = made if plan.norm_first else made * gate
        if plan.norm is not None:
            parts = made.view(len(x), plan.num_key_heads, -1)
            size = (parts.square().mean(-1, keepdim=True) + plan.norm.eps).sqrt()
            made = (parts / size).flatten(1) * w[f"{name}gated_norm.weight"]
        return self._linear(f"{name}o", made * gate if plan.norm_first else made)

    def _latent(self, name: str, plan: AttentionPlan, latent: LatentPlan, x: Tensor) -> Tensor:
        """With keys and values of every head made of the rows."""
        count, heads = len(x), plan.num_heads
        if latent.q_rank is None:
            q = self._linear(f"{name}q", x)
        else:
            low = self._normed(f"{name}q_a_norm", latent.norm, self._linear(f"{name}q_a", x))
            q = self._linear(f"{name}q_b", low)
        plain, turning = (
            q.view(count, heads, -1)
            .transpose(0, 1)
            .split([latent.plain_dims, latent.rope_dims], dim=-1)
        )
        row, shared = self._linear(f"{name}kv_a", x).split([latent.kv_rank, latent.rope_dims], -1)
        row = self._normed(f"{name}kv_a_norm", latent.norm, row)
        pairs = self._linear(f"{name}kv_b", row).view(count, heads, -1).transpose(0, 1)
        keys, values = pairs.split([latent.plain_dims, latent.value_dims], dim=-1)
        scores = plain @ keys.mT + turned(turning, plan.rope) @ turned(shared[None], plan.rope).mT
        hidden = torch.ones(count, count, dtype=torch.bool).triu(1)
        chances = (scores * plan.scale).masked_fill(hidden, -torch.inf).softmax(-1)
        return self._linear(f"{name}o", (chances @ values).transpose(0, 1).flatten(1))

    def _turned(self, norm: str, plan: AttentionPlan, y: Tensor) -> Tensor:
        if plan.qk_norm is not None and plan.qk_norm_behind:
            return self._heads(norm, plan, turned(y, plan.rope))
        if plan.qk_norm is not None:
            y = self._heads(norm, plan, y)
        return turned(clipped(y, plan), plan.rope)

    def _heads(self, name: str, plan: AttentionPlan, y: Tensor) -> Tensor:
        assert plan.qk_norm is not None
        if plan.qk_norm_over == "head":
            return self._normed(name, plan.qk_norm, y)
        wide = self._normed(name, plan.qk_norm, y.transpose(0, 1).flatten(1))
        return wide.view(len(wide), -1, plan.head_dim).transpose(0, 1)

    def _down(self, name: str, plan: MlpPlan, made: Tensor) -> Tensor:
        if plan.inner_norm is not None:
            made = self._normed(f"{name}inner_norm", plan.inner_norm, made)
        return self._linear(f"{name}down", made)

    def _mlp(self, name: str, plan: MlpPlan, x: Tensor) -> Tensor:
        if plan.activation == "xielu":
            opened = xielu(self._linear(f"{name}up", x), self.weights[f"{name}curve.weight"])
            return self._down(name, plan, opened)
        activation = ACTIVATIONS[plan.activation]
        if not plan.gated:
            return self._down(name, plan, activation(self._linear(f"{name}up", x)))
        gate, up = self._linear(f"{name}gate_up", x).chunk(2, -1)
        if plan.sparse is not None:
            assert plan.sparse.width == plan.width
            spread = gate.std(-1, keepdim=True, unbiased=False) * plan.sparse.deviations
            gate = (gate - gate.mean(-1, keepdim=True) - spread).relu()
        gate = gate * plan.gate_scale
        if plan.activation == "clamped_silu":
            gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0) + 1
        return self._down(name, plan, activation(gate) * up)

    def _experts(
        self, name: str, plan: ExpertsPlan, x: Tensor, routed_by: Tensor | None = None
    ) -> Tensor:
        read = x if routed_by is None else routed_by
        if plan.router_norm is not None:
            read = self._normed(f"{name}router_norm", plan.router_norm, read) / x.shape[1] ** 0.5
        products = self._linear(f"{name}router", read)
        if plan.apart is not None:
            return self._one_by_one(name, plan, x, products)
        scores = products.softmax(-1) if plan.score == "softmax" else products.sigmoid()
        by = scores + self.weights[f"{name}choice.bias"] if plan.choice_bias else scores
        chosen = torch.stack([best_of(row, plan) for row in by])
        best = scores.gather(-1, chosen)
        if plan.renormalise:
            best = best / best.sum(-1, keepdim=True)
        best, out = best * plan.factor, torch.zeros_like(x)
        if plan.has_factors:
            best = best * self.weights[f"{name}factors.weight"][chosen]
        for expert in range(plan.count):
            score = (best * (chosen == expert)).sum(-1, keepdim=True)
            if plan.scores_inputs:
                out = out + self._mlp(f"{name}experts.{expert}.", plan.expert, x * score)
                continue
            out = out + self._mlp(f"{name}experts.{expert}.", plan.expert, x) * score
        if plan.shared is not None:
            opened = self._linear(f"{name}shared_gate", x).sigmoid() if plan.shared_gate else 1.0
            out = out + plan.shared_factor * opened * self._mlp(f"{name}shared.", plan.shared, x)
        return out

    def _one_by_one(self, name: str, plan: ExpertsPlan, x: Tensor, products: Tensor) -> Tensor:
        """Token by token, and choice by choice."""
        assert plan.apart is not None
        made = [self._mlp(f"{name}experts.{one}.", plan.expert, x) for one in range(plan.count)]
        out = torch.zeros_like(x)
        for t, row in enumerate(products.tolist()):
            left = dict(enumerate(row))
            for _ in range(plan.per_token):
                best = max(left, key=lambda one: left[one])
                top = left[best]
                close = [s for s in left.values() if (top - s) / max(abs(s), top) <= plan.apart]
                del left[best]
                out[t] += made[best][t] / sum(math.exp(s - top) for s in close)
        return out

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def _normed(self, name: str, plan: NormPlan, x: Tensor) -> Tensor:
        if plan.kind == "layer":
            x = x - x.mean(-1, keepdim=True)
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + plan.eps)
        bias = self.weights.get(f"{name}.bias")
        if plan.learned:
            x = x * self.weights[f"{name}.weight"]
        return x if bias is None else x + bias


def sized(x: Tensor, like: Tensor) -> Tensor:
    """Rows scaled to the size of others."""
    own, theirs = (one.square().mean(-1, keepdim=True) for one in (x, like))
    return x * (theirs / own.clamp(min=1e-5)).sqrt()


def capped(x: Tensor, softcap: float | None) -> Tensor:
    return x if softcap is None else softcap * (x / softcap).tanh()


def xielu(x: Tensor, numbers: Tensor) -> Tensor:
    """Number by number."""
    p, n, slope, last = numbers.tolist()
    rising, falling = math.log1p(math.exp(p)), slope + math.log1p(math.exp(n))

    def one(y: float) -> float:
        bent = rising * y * y if y > 0 else falling * (math.exp(min(y, last)) - 1 - y)
        return bent + slope * y

    made = [one(y) for y in x.flatten().tolist()]
    return torch.tensor(made, dtype=x.dtype).view(x.shape)


def clipped(heads: Tensor, plan: AttentionPlan) -> Tensor:
    return heads if plan.clip is None else heads.clamp(-plan.clip, plan.clip)


def turned(x: Tensor, rope: Rope | None) -> Tensor:
    """Heads [heads, T, D] as kernels have them: number i and number i + D / 2 are a pair."""
    if rope is None:
        return x
    half, turning = x.shape[-1] // 2, rope.dims // 2
    angles = torch.arange(x.shape[1])[:, None] * frequencies(rope).double()
    angles = F.pad(angles, (0, half - turning))
    by = torch.ones(half, dtype=torch.float64)
    by[:turning] = attention_factor(rope)
    cos, sin = angles.cos() * by, angles.sin() * by
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def best_of(scores: Tensor, plan: ExpertsPlan) -> Tensor:
    """The experts that one token takes."""
    size = plan.count // plan.groups
    groups = [scores[i * size : (i + 1) * size] for i in range(plan.groups)]
    most = 2 if plan.group_score == "best_two" else 1
    counted = [float(group.sort(descending=True).values[:most].sum()) for group in groups]
    taken = sorted(range(plan.groups), key=lambda i: -counted[i])[: plan.groups_taken]
    there = [i for i in range(plan.count) if i // size in taken]
    return torch.tensor(sorted(there, key=lambda i: -float(scores[i]))[: plan.per_token])
