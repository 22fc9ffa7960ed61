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
from quire.weights.row_order import RowOrder, interleaved


@dataclass(frozen=True, slots=True)
class Part:
    """One stored tensor: what files call it, and how its rows stand in a GGUF file where that is
    not their order here."""

    hf: str
    gguf: str
    rows: int
    gguf_order: RowOrder | None = None


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
        if self.interleaved:  # v is not turned, so its rows stay
            orders = (*(interleaved(count, size) for count in heads[:2]), None)
            qkv = tuple(
                replace(part, gguf_order=order) for part, order in zip(qkv, orders, strict=True)
            )
        yield from self._linear("attn.qkv", self.hidden, qkv, bias=plan.qkv_bias)
        if plan.qk_norm:
            yield self._vector("attn.q_norm", names.q_norm, size)
            yield self._vector("attn.k_norm", names.k_norm, size)
        out = self._parts((names.o,), (self.hidden,))
        yield from self._linear("attn.o", plan.num_heads * size, out, bias=plan.o_bias)

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
