"""Adapters whose A and B are made of other matrices: AdaLoRA, LoHa and LoKr of PEFT. No torch.

All of them add s * dW to a weight [rows, columns], where dW = B A has a low rank:
- AdaLoRA: B diag(E) A.
- LoHa: (w1_a w1_b) * (w2_a w2_b), elementwise: rank r * r.
- LoKr: w1 (x) (w2_a w2_b), each number of w1 [a, b] times a matrix [c, d]: rank min(a, b) * r.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from quire.adapters.names import Kind
from quire.weights.formats import StoredTensor

Form = Literal["lora", "adalora", "loha", "lokr", "ia3"]
_LOHA: tuple[Kind, ...] = ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")
_KINDS: dict[Form, tuple[tuple[Kind, ...], ...]] = {
    "adalora": (("A", "B", "E"),),
    "loha": (_LOHA,),
    "lokr": (
        ("lokr_w1", "lokr_w2_a", "lokr_w2_b"),
        ("lokr_w1_a", "lokr_w1_b", "lokr_w2_a", "lokr_w2_b"),
    ),
}
_ALL = (kind for some in _KINDS.values() for kinds in some for kind in kinds)
# The last two have no low rank.
FORM_KINDS: frozenset[Kind] = frozenset((*_ALL, "lokr_w2", "ia3_l"))


@dataclass(frozen=True, slots=True)
class Formed:
    """The matrices of one module, in the order above; the shape of the weight; the rank of what
    they add; and the rank in the scale."""

    form: Form
    matrices: tuple[StoredTensor, ...]
    shape: tuple[int, int]
    rank: int
    inner: int


def formed(form: Form, found: Mapping[Kind, StoredTensor]) -> Formed | None:
    """The Formed of a module's matrices; None if they are not those of the form, or do not fit
    together."""
    kinds = next((one for one in _KINDS.get(form, ()) if {*one} == found.keys()), None)
    if kinds is None or any(len(found[kind].shape) != 2 for kind in kinds):
        return None
    matrices = tuple(found[kind] for kind in kinds)
    shapes = [one.shape for one in matrices]
    if form == "adalora":
        (rank, columns), (rows, inner), e = shapes
        fits, shape = inner == rank and e == (rank, 1), (rows, columns)
    elif form == "loha":
        (rows, inner), (first, columns), *others = shapes
        fits, shape, rank = first == inner and others == shapes[:2], (rows, columns), inner * inner
    else:
        *outer, (rows, inner), (first, columns) = shapes
        sides = outer[0][0], outer[-1][1]
        fits = first == inner and (len(outer) == 1 or outer[0][1] == outer[1][0])
        shape, rank = (sides[0] * rows, sides[1] * columns), min(sides) * inner
    return Formed(form, matrices, shape, rank, inner) if fits else None
