"""quire's own names for a model's weights, their shapes, and what files call the parts. No torch.

One entry per final tensor. Those made of several stored ones list them in row order: of
`layers.0.attn.qkv.weight` the first heads * head_dim rows are q_proj, then k_proj, then v_proj.
A family whose files have them as one tensor lists that one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from quire.families.family import LayerNames, Name
from quire.families.registry import family_named
from quire.layer_plan import AttentionPlan, LayerPlan, MlpPlan
from quire.spec import ModelSpec
from quire.weights.row_order import RowOrder, deinterleaved, paired


@dataclass(frozen=True, slots=True)
class Part:
    """One stored tensor: what files call it, how many rows it has, which of them a GGUF file has
    in another order than Hugging Face, and in which order quire wants those of Hugging Face."""

    hf: str
    gguf: str
    rows: int
    gguf_order: RowOrder | None = None
    order: RowOrder | None = None


@dataclass(frozen=True, slots=True)
class Weight:
    """One final tensor and the stored ones that fill it from the top."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]


def weights_of(spec: ModelSpec) -> Iterator[Weight]:
    """Every weight the model of this spec has."""
    vocab, hidden = spec.vocab_size, spec.hidden_size
    yield _single("embed.weight", (vocab, hidden), "model.embed_tokens.weight", "token_embd.weight")
    family = family_named(spec.family)
    for index, plan in enumerate(spec.layers):
        layer = _LayerWeights(index, hidden, family.names, interleaved=family.gguf_interleaved)
        yield from layer.all(plan)
    yield _single("norm.weight", (hidden,), "model.norm.weight", "output_norm.weight")
    if not spec.tied_embeddings:
        yield _single("head.weight", (vocab, hidden), "lm_head.weight", "output.weight")


def _single(name: str, shape: tuple[int, ...], hf: str, gguf: str) -> Weight:
    return Weight(name, shape, (Part(hf, gguf, shape[0]),))


@dataclass(frozen=True, slots=True)
class _LayerWeights:
    """The weights of one layer, by its plan."""

    index: int
    hidden: int
    names: LayerNames
    interleaved: bool

    def all(self, plan: LayerPlan) -> Iterator[Weight]:
        yield self._vector("attn_norm", self.names.attn_norm, self.hidden)
        yield from self._attention(plan.attention)
        yield self._vector("mlp_norm", self.names.mlp_norm, self.hidden)
        yield from self._mlp(plan.mlp)

    def _attention(self, plan: AttentionPlan) -> Iterator[Weight]:
        names, size = self.names, plan.head_dim
        heads = (plan.num_heads, plan.num_kv_heads, plan.num_kv_heads)
        qkv = self._parts(names.qkv, tuple(count * size for count in heads))
        # v is not turned, so its rows stay.
        turned = heads[:2] if len(qkv) > 1 else (sum(heads[:2]),)
        ordered = tuple(self._turned(*pair, plan) for pair in zip(qkv, turned, strict=False))
        qkv = (*ordered, *qkv[len(ordered) :])
        yield from self._linear("attn.qkv", self.hidden, qkv, bias=plan.qkv_bias)
        if plan.qk_norm:
            for ours, stored in (("attn.q_norm", names.q_norm), ("attn.k_norm", names.k_norm)):
                norm, order = self._vector(ours, stored, size), paired(1, size, plan.rope.dims)
                yield replace(norm, parts=(replace(norm.parts[0], order=order),))
        out = self._parts((names.o,), (self.hidden,))
        yield from self._linear("attn.o", plan.num_heads * size, out, bias=plan.o_bias)

    def _turned(self, part: Part, heads: int, plan: AttentionPlan) -> Part:
        """The part with the order of its first `heads` heads, which are turned."""
        size, dims = plan.head_dim, plan.rope.dims
        return replace(
            part,
            gguf_order=deinterleaved(heads, size, dims) if self.interleaved else None,
            order=paired(heads, size, dims),
        )

    def _mlp(self, plan: MlpPlan) -> Iterator[Weight]:
        gate_up = self._parts(self.names.gate_up, (plan.width, plan.width))
        yield from self._linear("mlp.gate_up", self.hidden, gate_up, bias=plan.bias)
        down = self._parts((self.names.down,), (self.hidden,))
        yield from self._linear("mlp.down", plan.width, down, bias=plan.bias)

    def _parts(self, names: tuple[Name, ...], rows: tuple[int, ...]) -> tuple[Part, ...]:
        """The stored tensors of so many rows each, or the one that has all of them."""
        if len(names) == 1:
            rows = (sum(rows),)
        return tuple(Part(*self._stored(n), count) for n, count in zip(names, rows, strict=True))

    def _stored(self, name: Name) -> tuple[str, str]:
        return f"model.layers.{self.index}.{name.hf}", f"blk.{self.index}.{name.gguf}"

    def _vector(self, name: str, stored: Name, size: int) -> Weight:
        hf, gguf = self._stored(stored)
        ours = f"layers.{self.index}.{name}.weight"
        return _single(ours, (size,), f"{hf}.weight", f"{gguf}.weight")

    def _linear(
        self, name: str, columns: int, parts: tuple[Part, ...], *, bias: bool
    ) -> Iterator[Weight]:
        """A matrix and, if the model has it, its bias; both are cut into the same parts."""
        rows = sum(part.rows for part in parts)
        for kind, shape in (("weight", (rows, columns)), ("bias", (rows,))):
            if kind == "weight" or bias:
                named = tuple(
                    replace(part, hf=f"{part.hf}.{kind}", gguf=f"{part.gguf}.{kind}")
                    for part in parts
                )
                yield Weight(f"layers.{self.index}.{name}.{kind}", shape, named)
