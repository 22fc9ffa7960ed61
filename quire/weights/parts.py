"""Weights and the stored parts that fill them, and the names of a layer's parts. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from quire.families.family import Family, LayerNames, Name
from quire.layer_plan import NormPlan
from quire.weights.row_order import RowOrder
from quire.weights.within import WHOLE, Within

# Gates and ups of all experts in one tensor, an option of llama.cpp's converters. Before 2024-04
# they wrote each expert separately.
GGUF_FUSED = "ffn_gate_up_exps"
# The tensors of all experts of a layer in modules of Transformers.
_STACKS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")


@dataclass(frozen=True, slots=True)
class Part:
    """One stored tensor that fills some rows of a weight.

    `gguf_order`: the order of its rows in GGUF files, relative to Hugging Face. `order`: the order
    in which quire wants Hugging Face's rows. `hf_added`: added to numbers of Hugging Face; in GGUF
    files it is already. `*_within`: the part of the stored tensor that it is. `zeros`: so many rows
    before it are not stored. `hf_else`, `gguf_else`: other places in files. `gguf_minus_exp`: GGUF
    files have -exp of the numbers."""

    hf: str
    gguf: str
    rows: int
    gguf_order: RowOrder | None = None
    order: RowOrder | None = None
    hf_added: float = 0.0
    hf_within: Within = WHOLE
    gguf_within: Within = WHOLE
    zeros: int = 0
    hf_else: tuple[str, Within] | None = None
    gguf_else: tuple[tuple[str, Within], ...] = ()
    gguf_minus_exp: bool = False


@dataclass(frozen=True, slots=True)
class Weight:
    """One final tensor, and the stored ones that fill it from the top. `is_wide`: it is always
    float32. `is_plain`: it stays a plain tensor, as other tensors are made of it."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    is_wide: bool = False
    is_plain: bool = False

    @property
    def is_matrix(self) -> bool:
        """Whether it is used in a product as it is, so that it may be rounded to fewer bits."""
        return len(self.shape) == 2 and not self.is_wide and not self.is_plain

    @property
    def has_zeros(self) -> bool:
        return any(part.zeros for part in self.parts)


def single(name: str, shape: tuple[int, ...], stored: Name, *, kind: str = "weight") -> Weight:
    part = Part(*stored.stored(kind), shape[0])
    if stored.hf_also:
        other = replace(stored, hf=stored.hf_also).stored(kind)[0]
        part = replace(part, hf_else=(other, WHOLE))
    return Weight(f"{name}.{kind}", shape, (part,))


def normed(
    name: str, stored: Name, size: int, plan: NormPlan, order: RowOrder | None = None
) -> Iterator[Weight]:
    """The weights of a norm, in the order of the normed numbers."""
    if not plan.learned:
        return
    for kind in ("weight", "bias") if plan.bias else ("weight",):
        made = single(name, (size,), stored, kind=kind)
        less = 1.0 if plan.one_plus and kind == "weight" else 0.0
        part = replace(made.parts[0], order=order, hf_added=less)
        yield replace(made, parts=(part,), is_wide=plan.is_wide)


@dataclass(frozen=True, slots=True)
class Stored:
    """A part of a matrix and of its bias, which share the beginning of their names."""

    name: Name
    part: Part

    def named(self, kind: str) -> Part:
        hf, gguf = self.name.stored(kind)
        within = self.part.hf_within
        if kind != "weight":
            within = replace(within, transposed=False)
        made = replace(self.part, hf=hf, gguf=gguf, hf_within=within)
        if kind != "weight":
            made = replace(made, hf_else=None)
        if self.name.hf_also:
            other = replace(self.name, hf=self.name.hf_also).stored(kind)[0]
            made = replace(made, hf_else=(other, within))
        return made


@dataclass(frozen=True, slots=True)
class LayerParts:
    """One layer: quire's and the files' names of its weights, and their parts. `number`: of the
    layer in files, where a branch may be a layer of its own."""

    index: int
    hidden: int
    family: Family
    names: LayerNames
    number: int

    def norm(self, name: str, stored: Name, plan: NormPlan, size: int = 0) -> Iterator[Weight]:
        yield from normed(self.ours(name), self.stored(stored), size or self.hidden, plan)

    def linear(
        self, name: str, columns: int, parts: tuple[Stored, ...], bias: bool = False
    ) -> Iterator[Weight]:
        """A matrix and its bias, if any; both have the same parts."""
        rows = sum(one.part.rows for one in parts)
        for kind, shape in (("weight", (rows, columns)), ("bias", (rows,))):
            if kind == "weight" or bias:
                named = tuple(one.named(kind) for one in parts)
                yield Weight(f"{self.ours(name)}.{kind}", shape, named)

    def parts(
        self,
        names: tuple[Name, ...],
        rows: tuple[int, ...],
        *,
        expert: int | None = None,
        experts: int = 0,
    ) -> tuple[Stored, ...]:
        """The stored tensors with so many rows each, or the one with all rows. With `expert`, those
        of this one of so many `experts`; GGUF files may have all experts in one tensor."""
        if len(names) == 1:
            rows = (sum(rows),)
        made = []
        in_one = len({name.hf for name in names}) < len(names)  # of Hugging Face
        for number, (name, count) in enumerate(zip(names, rows, strict=True)):
            within = Within(transposed=name.transposed, piled=experts if name.piled else 0)
            if name.stacked or name.piled:
                within = replace(within, expert=expert)
            if in_one and name.alternating:
                within = replace(within, first=number, step=len(names), of=sum(rows))
            elif in_one:
                within = replace(within, first=sum(rows[:number]), of=sum(rows))
            stored = self.stored(replace(name, hf=name.hf.format(expert)))
            part = Part("", "", count, hf_within=within, gguf_within=Within(expert=expert))
            place = Within(expert=expert, first=sum(rows[:number]), of=sum(rows))
            if expert is not None:
                alone = f"{stored.gguf.removesuffix('_exps')}.{expert}.weight"
                fused = self.stored(Name("", GGUF_FUSED)).stored("weight")[1]
                others = ((alone, WHOLE), (fused, place))
                part = replace(part, gguf_else=others[: len(names)])
            if expert is not None and (stack := self._stack(name)) is not None:
                place = replace(place, either_way=self.names.stacks_either_way)
                part = replace(part, hf_else=(self.stored(Name(stack, "")).hf, place))
            made.append(Stored(stored, part))
        return tuple(made)

    def _stack(self, name: Name) -> str | None:
        """Another tensor that may hold this product of all experts."""
        stacks = self.names.expert_stacks
        if stacks is None:
            stacks = None if name.stacked or name.piled else _STACKS
        return None if stacks is None else stacks[name == self.names.expert_down]

    def ordered(self, name: Name, rows: int, order: RowOrder | None) -> tuple[Stored, ...]:
        return (Stored(self.stored(name), Part("", "", rows, order=order)),)

    def slices(self, name: Name, sizes: tuple[int, ...]) -> list[Stored]:
        """Its parts one after the other, with so many rows each."""
        return [first for (first,) in self.by_head(name, 1, sizes)]

    def by_head(self, name: Name, heads: int, sizes: tuple[int, ...]) -> list[tuple[Stored, ...]]:
        """For each of `sizes` its parts, head by head, cut from a tensor in which each head has
        rows of all sizes, one head after the other."""
        each, stored = sum(sizes), self.stored(name)
        made = []
        for number, rows in enumerate(sizes):
            firsts = (head * each + sum(sizes[:number]) for head in range(heads))
            places = (Within(first=first, of=heads * each) for first in firsts)
            parts = (Part("", "", rows, hf_within=one, gguf_within=one) for one in places)
            made.append(tuple(Stored(stored, part) for part in parts))
        return made

    def in_gguf(self, parts: tuple[Stored, ...], name: Name) -> Iterator[Stored]:
        """The parts, which a GGUF file has one after the other in a tensor of this name."""
        at, total = 0, sum(one.part.rows for one in parts)
        for one in parts:
            part = replace(one.part, gguf_within=Within(first=at, of=total))
            yield Stored(replace(one.name, gguf=self.stored(name).gguf), part)
            at += part.rows

    def stored(self, name: Name) -> Name:
        layer = self.family.outer_names.layer
        hf, gguf = (one.format(self.number) for one in (layer.hf, layer.gguf))
        also = name.hf_also and f"{hf}.{name.hf_also}"
        return replace(name, hf=f"{hf}.{name.hf}", gguf=f"{gguf}.{name.gguf}", hf_also=also)

    def ours(self, name: str) -> str:
        return f"layers.{self.index}.{name}"
