"""quire's own names for a model's weights, their shapes, and what files call the parts. No torch.

One entry per final tensor. Those made of several stored ones list them in row order: of
`layers.0.attn.qkv.weight` the first heads * head_dim rows are q_proj, then k_proj, then v_proj.
A family whose files have them as one tensor lists that one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from quire.families.family import Family, LayerNames, Name
from quire.families.registry import family_named
from quire.layer_plan import (
    AttentionPlan,
    DeltaNetPlan,
    ExpertsPlan,
    LatentPlan,
    LayerPlan,
    MlpPlan,
    NormPlan,
)
from quire.spec import ModelSpec
from quire.weights.row_order import RowOrder, deinterleaved, ordered_by, turned_at_the_end
from quire.weights.within import WHOLE, Within, latent_pairs

AFTER = ("after", "both")  # the places of norms that stand behind the branches, too


@dataclass(frozen=True, slots=True)
class Part:
    """One stored tensor: what files call it, how many rows it has, which of them a GGUF file has
    in another order than Hugging Face, in which order quire wants those of Hugging Face, and what
    is to be added to the numbers of Hugging Face, which a GGUF file holds added. Where it is only
    some of a stored tensor, `within` says which. `zeros`: so many rows of those before it are
    stored nowhere. `hf_else`: where else files of Hugging Face may have it. `gguf_minus_exp`: a
    GGUF file has -exp of it."""

    hf: str
    gguf: str
    rows: int
    gguf_order: RowOrder | None = None
    order: RowOrder | None = None
    hf_less: float = 0.0
    hf_within: Within = WHOLE
    gguf_within: Within = WHOLE
    zeros: int = 0
    hf_else: tuple[str, Within] | None = None
    gguf_minus_exp: bool = False


@dataclass(frozen=True, slots=True)
class Weight:
    """One final tensor and the stored ones that fill it from the top; `is_wide`: it is kept in
    float32 whatever the others are; `is_plain`: it is kept as plain numbers, since others are made
    of it."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    is_wide: bool = False
    is_plain: bool = False

    @property
    def is_matrix(self) -> bool:
        """Whether it is multiplied with as it is, so that it may be rounded to fewer bits."""
        return len(self.shape) == 2 and not self.is_wide and not self.is_plain

    @property
    def has_zeros(self) -> bool:
        return any(part.zeros for part in self.parts)


def weights_of(spec: ModelSpec) -> Iterator[Weight]:
    """Every weight the model of this spec has."""
    family, vocab, hidden = family_named(spec.family), spec.vocab_size, spec.hidden_size
    names = family.outer_names
    yield _single("embed", (vocab, hidden), names.embed)
    if spec.learned_positions is not None:
        rows = spec.learned_positions.count
        yield replace(_single("positions", (rows, hidden), names.positions), is_wide=True)
    for index, plan in enumerate(spec.layers):
        names_there = family.names_by_norms.get(plan.norms, family.names)
        yield from _LayerWeights(index, hidden, family, names_there).all(plan)
    yield from _norm("norm", names.norm, hidden, spec.norm)
    if not spec.tied_embeddings:
        yield _single("head", (vocab, hidden), names.head)
    if spec.logits.bias:
        yield _single("head", (vocab,), names.head, kind="bias")


def _single(name: str, shape: tuple[int, ...], stored: Name, *, kind: str = "weight") -> Weight:
    part = Part(*stored.stored(kind), shape[0])
    return Weight(f"{name}.{kind}", shape, (part,))


def _norm(
    name: str, stored: Name, size: int, plan: NormPlan, order: RowOrder | None = None
) -> Iterator[Weight]:
    """The weights of a norm, which stand in the order of what is normed."""
    for kind in ("weight", "bias") if plan.bias else ("weight",):
        made = _single(name, (size,), stored, kind=kind)
        less = 1.0 if plan.one_plus and kind == "weight" else 0.0
        part = replace(made.parts[0], order=order, hf_less=less)
        yield replace(made, parts=(part,), is_wide=plan.is_wide)


@dataclass(frozen=True, slots=True)
class _LayerWeights:
    """The weights of one layer, by its plan."""

    index: int
    hidden: int
    family: Family
    names: LayerNames

    def all(self, plan: LayerPlan) -> Iterator[Weight]:
        names, before, after = self.names, plan.norms != "after", plan.norms in AFTER
        if before:
            yield from self._norm("attn_norm", names.attn_norm, plan.norm)
        if plan.state is None:
            yield from self._attention(plan.attention)
        else:
            yield from self._delta_net(plan.state)
        if after:
            yield from self._norm("attn_post_norm", names.attn_post_norm, plan.norm)
        if plan.cross is not None:
            yield from self._norm("cross_norm", names.cross_norm, plan.norm)
            yield from self._cross(plan.attention)
        if before and plan.norms != "parallel":
            yield from self._norm("mlp_norm", names.mlp_norm, plan.norm)
        yield from self._mlp(plan.mlp)
        if after:
            yield from self._norm("mlp_post_norm", names.mlp_post_norm, plan.norm)

    def _norm(self, name: str, stored: Name, plan: NormPlan, size: int = 0) -> Iterator[Weight]:
        yield from _norm(self._ours(name), self._stored(stored), size or self.hidden, plan)

    def _attention(self, plan: AttentionPlan) -> Iterator[Weight]:
        if plan.latent is not None:
            yield from self._latent(plan, plan.latent)
            return
        names, size = self.names, plan.head_dim
        for weight in self._linear("attn.qkv", self.hidden, self._qkv(plan), bias=plan.qkv_bias):
            is_whole = plan.k_bias or len(weight.shape) > 1
            yield weight if is_whole else _without_second(weight)
        if plan.qk_norm is not None:
            for ours, stored, count in (
                ("attn.q_norm", names.q_norm, plan.num_heads),
                ("attn.k_norm", names.k_norm, plan.num_kv_heads),
            ):
                count = count if plan.qk_norm_over == "width" else 1
                order = ordered_by(plan.rope, count, size)
                named = (self._ours(ours), self._stored(stored), count * size)
                yield from _norm(*named, plan.qk_norm, order)
        if plan.sinks:
            sinks = self._ours("attn.sinks"), (plan.num_heads,), self._stored(names.sinks)
            yield replace(_single(*sinks), is_wide=True)
        if plan.output_gate:
            _, gates = self._gated_queries(plan)
            yield from self._linear("attn.gate", self.hidden, gates, bias=plan.qkv_bias)
        out = self._parts((names.o,), (self.hidden,))
        yield from self._linear("attn.o", plan.num_heads * size, out, bias=plan.o_bias)

    def _delta_net(self, plan: DeltaNetPlan) -> Iterator[Weight]:
        names, heads, width = self.names, plan.num_heads, plan.value_width
        if names.qkvz[0].hf != names.qkvz[1].hf:
            qkvz = self._parts(names.qkvz, (plan.channels, width))
            rates = self._parts(names.rates, (heads, heads))
        else:
            qkvz, rates = self._by_key_head(plan)
        yield from self._linear("attn.qkvz", self.hidden, qkvz, bias=False)
        for weight in self._linear("attn.rates", self.hidden, rates, bias=False):
            yield replace(weight, is_wide=True)
        for ours, stored, shape, kind in (
            ("attn.convolution", names.convolution, (plan.channels, 1, plan.reach), "weight"),
            ("attn.log_slopes", names.log_slopes, (heads,), "weight"),
            ("attn.shifts", names.shifts, (heads,), "bias"),
        ):
            weight = _single(self._ours(ours), shape, self._stored(stored), kind=kind)
            part = replace(weight.parts[0], gguf_minus_exp=stored is names.log_slopes)
            yield replace(weight, parts=(part,), is_wide=True)
        yield from self._norm("attn.head_norm", names.state_norm, plan.norm, plan.value_dim)
        out = self._parts((names.state_out,), (self.hidden,))
        yield from self._linear("attn.o", width, out, bias=False)

    def _cross(self, plan: AttentionPlan) -> Iterator[Weight]:
        """Keys and values are the encoder's (models/towers)."""
        width = plan.num_heads * plan.head_dim
        for name, stored, rows, columns, bias in (
            ("cross.q", self.names.cross_q, width, self.hidden, plan.qkv_bias),
            ("cross.o", self.names.cross_o, self.hidden, width, plan.o_bias),
        ):
            yield from self._linear(name, columns, self._parts((stored,), (rows,)), bias=bias)

    def _latent(self, plan: AttentionPlan, latent: LatentPlan) -> Iterator[Weight]:
        names, hidden, heads, rope = self.names.latent, self.hidden, plan.num_heads, plan.rope
        biased, queries, inner = plan.qkv_bias, heads * latent.query_dims, latent.q_rank
        order = turned_at_the_end(rope, heads, latent.query_dims)
        if inner is None:
            yield from self._linear("attn.q", hidden, self._ordered(names.q, queries, order))
        else:
            yield from self._linear("attn.q_a", hidden, self._parts((names.q_a,), (inner,)), biased)
            yield from self._norm("attn.q_a_norm", names.q_a_norm, latent.norm, inner)
            yield from self._linear("attn.q_b", inner, self._ordered(names.q_b, queries, order))
        rows = latent.kv_rank + latent.rope_dims
        kept = self._ordered(names.kv_a, rows, turned_at_the_end(rope, 1, rows))
        yield from self._linear("attn.kv_a", hidden, kept, biased)
        yield from self._norm("attn.kv_a_norm", names.kv_a_norm, latent.norm, latent.kv_rank)
        pairs = tuple(
            _Stored(self._stored(name), Part("", "", count, hf_within=hf, gguf_within=gguf))
            for name, count, hf, gguf in latent_pairs((names.k_b, names.v_b), heads, latent)
        )
        for weight in self._linear("attn.kv_b", latent.kv_rank, pairs):
            yield replace(weight, is_plain=True)
        out = self._parts((self.names.o,), (hidden,))
        yield from self._linear("attn.o", heads * latent.value_dims, out, bias=plan.o_bias)

    def _ordered(self, name: Name, rows: int, order: RowOrder | None) -> tuple[_Stored, ...]:
        return (_Stored(self._stored(name), Part("", "", rows, order=order)),)

    def _by_key_head(self, plan: DeltaNetPlan) -> tuple[tuple[_Stored, ...], tuple[_Stored, ...]]:
        """q, k, v and the gate, and rates with decays, each of one tensor that has them by head of
        k. A GGUF file has q, k and v in one, the gate in another."""
        names, keys, per_key = self.names, plan.num_key_heads, plan.num_heads // plan.num_key_heads
        sizes = (plan.key_dim, plan.key_dim, *(per_key * plan.value_dim,) * 2)
        q, k, v, gate = self._by_head(names.qkvz[0], keys, sizes)
        qkv = self._in_gguf((*q, *k, *v), names.qkvz[0])
        rates = self._by_head(names.rates[0], keys, (per_key, per_key))
        return (*qkv, *self._in_gguf(gate, names.qkvz[1])), (*rates[0], *rates[1])

    def _qkv(self, plan: AttentionPlan) -> tuple[_Stored, ...]:
        names, size = self.names, plan.head_dim
        heads = (plan.num_heads, plan.num_kv_heads, plan.num_kv_heads)
        if names.qkv_by_group:
            return tuple(self._by_group(names.qkv[0], plan))
        qkv = self._parts(names.qkv, tuple(count * size for count in heads))
        if plan.output_gate:
            queries, _ = self._gated_queries(plan)
            ordered = tuple(self._turned(one, 1, plan) for one in queries)
            return (*ordered, self._turned(qkv[1], heads[1], plan), qkv[2])
        # v is not turned, so its rows stay.
        turned = heads[:2] if len(qkv) > 1 else (sum(heads[:2]),)
        ordered = tuple(self._turned(*pair, plan) for pair in zip(qkv, turned, strict=False))
        return (*ordered, *qkv[len(ordered) :])

    def _gated_queries(self, plan: AttentionPlan) -> list[tuple[_Stored, ...]]:
        """q, and the gate of what it attends to, which q's tensor has by head."""
        return self._by_head(self.names.qkv[0], plan.num_heads, (plan.head_dim, plan.head_dim))

    def _by_head(self, name: Name, heads: int, sizes: tuple[int, ...]) -> list[tuple[_Stored, ...]]:
        """For each of `sizes` its parts, head by head, cut out of a tensor that has all of a head
        one after the other, then those of the next."""
        each, stored = sum(sizes), self._stored(name)
        made = []
        for number, rows in enumerate(sizes):
            firsts = (head * each + sum(sizes[:number]) for head in range(heads))
            places = (Within(first=first, of=heads * each) for first in firsts)
            parts = (Part("", "", rows, hf_within=one, gguf_within=one) for one in places)
            made.append(tuple(_Stored(stored, part) for part in parts))
        return made

    def _by_group(self, name: Name, plan: AttentionPlan) -> Iterator[_Stored]:
        """q, k and v, cut out of a tensor that has them by KV head in files of Hugging Face, and in
        this order in GGUF files."""
        queries, size = plan.num_heads // plan.num_kv_heads, plan.head_dim
        q, k, v = self._by_head(name, plan.num_kv_heads, (queries * size, size, size))
        q = tuple(self._turned(one, queries, plan) for one in q)
        k = tuple(self._turned(one, 1, plan) for one in k)
        yield from self._in_gguf((*q, *k, *v), name)

    def _in_gguf(self, parts: tuple[_Stored, ...], name: Name) -> Iterator[_Stored]:
        """Parts that a GGUF file has one after the other, in a tensor of this name."""
        at, total = 0, sum(one.part.rows for one in parts)
        for one in parts:
            part = replace(one.part, gguf_within=Within(first=at, of=total))
            yield _Stored(replace(one.name, gguf=self._stored(name).gguf), part)
            at += part.rows

    def _turned(self, stored: _Stored, heads: int, plan: AttentionPlan) -> _Stored:
        """The part with the order of its first `heads` heads, which are turned."""
        size, rope = plan.head_dim, plan.rope
        dims = size if rope is None else rope.dims
        order = deinterleaved(heads, size, dims) if self.family.gguf_interleaved else None
        ordered = replace(stored.part, gguf_order=order, order=ordered_by(rope, heads, size))
        return replace(stored, part=ordered)

    def _mlp(self, plan: MlpPlan | ExpertsPlan) -> Iterator[Weight]:
        if isinstance(plan, ExpertsPlan):
            yield from self._experts(plan)
            return
        names, rows = self.names, (plan.width,)
        first, up = ("mlp.up", self._parts((names.up,), rows))
        if plan.gated:
            first, up = ("mlp.gate_up", self._parts(names.gate_up, rows * 2))
        yield from self._linear(first, self.hidden, up, bias=plan.bias)
        down = self._parts((names.down,), (self.hidden,))
        yield from self._linear("mlp.down", plan.width, down, bias=plan.bias)

    def _experts(self, plan: ExpertsPlan) -> Iterator[Weight]:
        names, inner, bias = self.names, plan.expert.width, plan.expert.bias
        yield from self._router(plan)
        for i in range(plan.count):
            up = self._parts(names.expert_gate_up, (inner, inner), expert=i)
            yield from self._linear(f"mlp.experts.{i}.gate_up", self.hidden, up, bias=bias)
            down = self._parts((names.expert_down,), (self.hidden,), expert=i)
            yield from self._linear(f"mlp.experts.{i}.down", inner, down, bias=bias)
        if plan.shared is not None:
            width = plan.shared.width
            up = self._parts(names.shared_gate_up, (width, width))
            yield from self._linear("mlp.shared.gate_up", self.hidden, up, bias=False)
            down = self._parts((names.shared_down,), (self.hidden,))
            yield from self._linear("mlp.shared.down", width, down, bias=False)
        if plan.shared is not None and plan.shared_gate:
            gate = self._parts((names.shared_gate,), (1,))
            for weight in self._linear("mlp.shared_gate", self.hidden, gate, bias=False):
                yield replace(weight, is_wide=True)

    def _router(self, plan: ExpertsPlan) -> Iterator[Weight]:
        names = self.names
        router = self._parts((names.router,), (plan.count,))
        for weight in self._linear("mlp.router", self.hidden, router, bias=plan.router_bias):
            yield replace(weight, is_wide=True)
        if plan.choice_bias:
            named = self._ours("mlp.choice"), (plan.count,), self._stored(names.router_choice)
            yield replace(_single(*named, kind="bias"), is_wide=True)

    def _parts(
        self, names: tuple[Name, ...], rows: tuple[int, ...], *, expert: int | None = None
    ) -> tuple[_Stored, ...]:
        """The stored tensors of so many rows each, or the one that has all of them. Those of a GGUF
        file are by expert, if they are."""
        if len(names) == 1:
            rows = (sum(rows),)
        made = []
        in_one = len({name.hf for name in names}) < len(names)  # of Hugging Face
        for number, (name, count) in enumerate(zip(names, rows, strict=True)):
            within = Within(expert=expert if name.stacked else None, turned=name.turned)
            if in_one and name.alternating:
                within = replace(within, first=number, step=len(names), of=sum(rows))
            elif in_one:
                within = replace(within, first=sum(rows[:number]), of=sum(rows))
            stored = self._stored(replace(name, hf=name.hf.format(expert)))
            part = Part("", "", count, hf_within=within, gguf_within=Within(expert=expert))
            if expert is not None and self.names.expert_stacks is not None:
                stack = self._stored(Name(self.names.expert_stacks[len(names) == 1], "")).hf
                place = Within(expert=expert, first=sum(rows[:number]), of=sum(rows))
                part = replace(part, hf_else=(stack, place))
            made.append(_Stored(stored, part))
        return tuple(made)

    def _stored(self, name: Name) -> Name:
        layer = self.family.outer_names.layer
        hf, gguf = (one.format(self.index) for one in (layer.hf, layer.gguf))
        return replace(name, hf=f"{hf}.{name.hf}", gguf=f"{gguf}.{name.gguf}")

    def _ours(self, name: str) -> str:
        return f"layers.{self.index}.{name}"

    def _linear(
        self, name: str, columns: int, parts: tuple[_Stored, ...], bias: bool = False
    ) -> Iterator[Weight]:
        """A matrix and, if the model has it, its bias; both are cut into the same parts."""
        rows = sum(one.part.rows for one in parts)
        for kind, shape in (("weight", (rows, columns)), ("bias", (rows,))):
            if kind == "weight" or bias:
                named = tuple(one.named(kind) for one in parts)
                yield Weight(f"{self._ours(name)}.{kind}", shape, named)


def _without_second(weight: Weight) -> Weight:
    """The same where files have no second part: it is zeros."""
    first, second, third = weight.parts
    return replace(weight, parts=(first, replace(third, zeros=second.rows)))


@dataclass(frozen=True, slots=True)
class _Stored:
    """A part of a matrix and of its bias, under the name that both begin with."""

    name: Name
    part: Part

    def named(self, kind: str) -> Part:
        hf, gguf = self.name.stored(kind)
        within = (
            self.part.hf_within if kind == "weight" else replace(self.part.hf_within, turned=False)
        )
        return replace(self.part, hf=hf, gguf=gguf, hf_within=within)
