"""Reads the numbers of an adapter and prepares them for products.

Scales are multiplied into B, and rows are put into the order of the model's products. A DoRA
adapter's factor, m / ||W + s B A|| for each output row, needs the base's weights once; they are
read from the model's files, so that it does not depend on how the model stores them, unless they
were exchanged since.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from quire.adapters.changes import Change, Own, Scale
from quire.adapters.config import MERGE
from quire.adapters.forms import Form
from quire.adapters.plan import AdapterPlan
from quire.adapters.sites import EMBEDDING, SitePart
from quire.backends.adapter_ops import Added, OwnNumbers
from quire.errors import InvalidAdapter
from quire.weights.formats import StoredTensor
from quire.weights.read_rows import in_order, read_tensor

# How far two copies of a number may differ if one file has it in 16 bits.
ROUNDED, TINY = 2.0**-8, 1e-7
# (names of stored weights) -> name and float32 tensor of each
ReadBase = Callable[[Collection[str]], Iterable[tuple[str, Tensor]]]


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """What an adapter adds at each site, and its own numbers there, on the host."""

    added: dict[str, tuple[Added, ...]]
    own: dict[str, OwnNumbers] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        added = sum(one.num_bytes for some in self.added.values() for one in some)
        return added + sum(one.num_bytes for one in self.own.values())


@torch.no_grad()
def read_adapter(
    plan: AdapterPlan, dtype: torch.dtype, read_base: ReadBase, rows_of: Callable[[str], int]
) -> AdapterWeights:
    """Read all numbers of a plan, in `dtype`. `rows_of`: the rows of a site."""
    own = (*_unlike_base(plan, read_base), *plan.own)
    factors, columns = _factors(plan, read_base), _first_columns(plan, read_base)
    added: dict[str, list[Added]] = {}
    matrices = _Matrices()
    for change in plan.changes:
        factor = factors.get(change.part.module)
        a, b = matrices.of(change)
        if change.less_columns:
            q, r = columns[change.part.module]
            a, b = torch.cat([a, r]), torch.cat([b, -change.scale * q], 1)
        made = _added(change, a, b, factor, dtype)
        _append(added.setdefault(change.part.site, []), made)
    numbers = _own_numbers(own, _biases(_own_biases(own), read_base), dtype, rows_of)
    scaled = _Scaled(plan.scales)
    for part, factor in scaled.factors.values():
        added.setdefault(part.site, []).append(_factor_alone(part, factor, dtype))
    for site, offset in scaled.offsets(read_base, rows_of).items():
        before = numbers.get(site, OwnNumbers())
        offset = offset if before.offset is None else before.offset + offset
        numbers[site] = replace(before, offset=offset)
    return AdapterWeights({site: tuple(some) for site, some in added.items()}, numbers)


def _unlike_base(plan: AdapterPlan, read_base: ReadBase) -> list[Own]:
    """Embeddings stored beside the adapter that differ from the model's: the adapter was trained
    with them, and PEFT uses them in place of those."""
    wanted = {name for copy in plan.copies for name in copy.names}
    base = dict(read_base(wanted)) if wanted else {}
    has_own = {one.part.site for one in plan.own}
    found: list[Own] = []
    for copy in plan.copies:
        weight = next((base[name] for name in copy.names if name in base), None)
        if weight is not None and torch.allclose(read_tensor(copy.stored), weight, ROUNDED, TINY):
            continue
        if weight is None:
            raise InvalidAdapter(
                f"{copy.stored.path}: {copy.stored.name} is another matrix than the base's own. "
                f"{MERGE}",
                parameter=copy.stored.name,
            )
        found += [Own(part, "weight", copy.stored) for part in copy.parts]
    by_site = {one.part.site: one for one in found if one.part.site not in has_own}
    return list(by_site.values())


def _own_biases(own: Iterable[Own]) -> set[str]:
    """The names of the base's biases that are replaced."""
    return {f"{one.part.module}.bias" for one in own if one.kind == "bias"}


def _biases(wanted: set[str], read_base: ReadBase) -> dict[str, Tensor]:
    found = dict(read_base(wanted)) if wanted else {}
    if missing := wanted - found.keys():
        raise InvalidAdapter(
            f"what the adapter does to biases needs the base's, and {min(missing)} is not among "
            f"the model's files. {MERGE}",
            parameter="bias",
        )
    return found


def _own_numbers(
    own: Iterable[Own],
    biases: Mapping[str, Tensor],
    dtype: torch.dtype,
    rows_of: Callable[[str], int],
) -> dict[str, OwnNumbers]:
    """The numbers that replace the base's, by site."""
    made: dict[str, OwnNumbers] = {}
    for one in own:
        part, before = one.part, made.get(one.part.site, OwnNumbers())
        numbers = _finite(one.stored)
        if one.kind == "weight":
            rows, weight = _own_rows(one, numbers, dtype)
            if before.rows is not None and before.weight is not None:
                rows, weight = torch.cat([before.rows, rows]), torch.cat([before.weight, weight])
            made[part.site] = replace(before, rows=rows, weight=weight)
            continue
        numbers = numbers * one.scale
        if one.kind == "bias":
            numbers = numbers - biases[f"{part.module}.bias"]
        offset = torch.zeros(rows_of(part.site)) if before.offset is None else before.offset
        offset[part.first : part.first + part.rows] += _in_place(numbers[:, None], part)[:, 0]
        made[part.site] = replace(before, offset=offset)
    return made


def _own_rows(one: Own, numbers: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The rows of a site and their numbers; for a norm in float32."""
    part = one.part
    if one.tokens is not None:
        return torch.tensor(one.tokens), numbers.to(dtype)
    rows = torch.arange(part.first, part.first + part.rows)
    if numbers.dim() == 1:
        return rows, _in_place(numbers[:, None] + part.less, part)[:, 0]
    wide = numbers.T if part.transposed else numbers
    return rows, _in_place(wide, part).to(dtype).contiguous()


def _in_place(numbers: Tensor, part: SitePart) -> Tensor:
    """The rows of a stored tensor for a part, in the model's order."""
    rows = part.within.of_tensor(numbers, part.rows).contiguous()
    return rows if part.order is None else in_order(rows, part.order)


def _added(
    change: Change, a: Tensor, b: Tensor, factor: Tensor | None, dtype: torch.dtype
) -> Added:
    part = change.part
    if part.site == EMBEDDING:
        return Added(0, 0, a.to(dtype), b.to(dtype))
    if factor is not None:
        b = b * factor[:, None]
        factor = _in_place(factor[:, None], part)[:, 0]
    b = _in_place(b, part)
    return Added(part.index, part.first, a.to(dtype), b.to(dtype).contiguous(), factor)


def _append(some: list[Added], made: Added) -> None:
    """Add what an adapter adds to some rows. Rows of the same module share A, so that neighbours
    are joined."""
    last = some[-1] if some else None
    if last is None or last.part != made.part or last.first + len(last.b) != made.first:
        some.append(made)
        return
    factor = None
    if last.factor is not None and made.factor is not None:
        factor = torch.cat([last.factor, made.factor])
    some[-1] = replace(last, b=torch.cat([last.b, made.b]), factor=factor)


def _factor_alone(part: SitePart, factor: Tensor, dtype: torch.dtype) -> Added:
    """A factor alone, with an A and a B that add nothing."""
    a, b = torch.zeros(1, part.columns, dtype=dtype), torch.zeros(part.rows, 1, dtype=dtype)
    return Added(part.index, part.first, a, b, factor)


class _Scaled:
    """IA3: y = W x + b must become l * y, but a factor alone makes l * W x + b; an offset adds the
    rest."""

    def __init__(self, scales: Iterable[Scale]) -> None:
        self._biased: dict[tuple[str, int], SitePart] = {}
        self.factors: dict[tuple[str, int], tuple[SitePart, Tensor]] = {}  # in the model's order
        for one in scales:
            part, factor = one.part, _finite(one.stored).flatten()
            if one.of_last_rows:
                factor = torch.cat([torch.ones(part.rows - len(factor)), factor])
            else:
                factor = _in_place(factor[:, None], part)[:, 0]
            key = part.site, part.first
            if key in self.factors:  # a factor of the result, and one of the next input
                factor = factor * self.factors[key][1]
            self.factors[key] = part, factor
            if one.has_bias:
                self._biased[key] = part

    def offsets(self, read_base: ReadBase, rows_of: Callable[[str], int]) -> dict[str, Tensor]:
        """By site the offset that completes l * b."""
        wanted = {f"{part.module}.bias" for part in self._biased.values()}
        biases, made = _biases(wanted, read_base), dict[str, Tensor]()
        for key, part in self._biased.items():
            offset = made.setdefault(part.site, torch.zeros(rows_of(part.site)))
            bias = _in_place(biases[f"{part.module}.bias"][:, None], part)[:, 0]
            offset[part.first : part.first + part.rows] += (self.factors[key][1] - 1) * bias
        return made


def _finite(stored: StoredTensor) -> Tensor:
    """The tensor in float32; InvalidAdapter if a number is not finite."""
    tensor = read_tensor(stored)
    if not tensor.isfinite().all():
        raise InvalidAdapter(
            f"{stored.path}: {stored.name} holds numbers that are not finite. Its training "
            "went wrong; use an earlier checkpoint.",
            parameter=stored.name,
        )
    return tensor


class _Matrices:
    """Reads A and B; tensors for all experts are read once."""

    def __init__(self) -> None:
        self._last: tuple[str, Tensor, Tensor] | None = None

    def of(self, change: Change) -> tuple[Tensor, Tensor]:
        """A, and B times the scale, in float32."""
        if self._last is None or self._last[0] != change.a.name:
            pair = _finite(change.a), _finite(change.b)
            if change.formed is not None:
                pair = _made(change.formed.form, *map(_finite, change.formed.matrices))
            self._last = change.a.name, pair[0], pair[1] * change.scale
        _, a, b = self._last
        if change.stacked is None:
            return a, b
        experts, expert = change.stacked.experts, change.part.expert
        a = a.view(experts, change.rank, -1)[expert]
        b = b.view(len(b), change.rank, experts)[:, :, expert]
        return (b.T.contiguous(), a.T) if change.stacked.swapped else (a, b)


def _made(form: Form, *given: Tensor) -> tuple[Tensor, Tensor]:
    """A and B from the matrices of a form; see forms.py."""
    if form == "adalora":
        a, b, e = given
        return a * e, b
    if form == "loha":
        w1_a, w1_b, w2_a, w2_b = given
        b = (w1_a[:, :, None] * w2_a[:, None, :]).flatten(1)
        return (w1_b[:, None] * w2_b[None]).flatten(0, 1), b
    *outer, w2_a, w2_b = given
    w1 = outer[0] if len(outer) == 1 else outer[0] @ outer[1]
    if len(w1) <= w1.shape[1]:
        return torch.kron(w1, w2_b), torch.kron(torch.eye(len(w1)), w2_a)
    return torch.kron(torch.eye(w1.shape[1]), w2_b), torch.kron(w1, w2_a)


def _factors(plan: AdapterPlan, read_base: ReadBase) -> dict[str, Tensor]:
    """The factor of each module with a magnitude, in the order of the files' rows."""
    changes = {f"{c.part.module}.weight": c for c in plan.changes if c.magnitude is not None}
    found: dict[str, Tensor] = {}
    for name, weight in read_base(changes) if changes else ():
        change = changes[name]
        if change.magnitude is None:
            continue
        a, b = _Matrices().of(change)
        wide = weight.float().T if change.part.transposed else weight.float()
        length = torch.linalg.vector_norm(wide + b @ a, dim=1)
        magnitude = read_tensor(change.magnitude).flatten()
        found[change.part.module] = magnitude / length.clamp_min(torch.finfo(torch.float32).tiny)
    _check_found(plan, "DoRA", changes.values(), found)
    return found


def _first_columns(plan: AdapterPlan, read_base: ReadBase) -> dict[str, tuple[Tensor, Tensor]]:
    """Q [rows, r] and R [r, columns] of each module for OLoRA: the part of W = Q R that the first r
    columns span."""
    changes = {f"{c.part.module}.weight": c for c in plan.changes if c.less_columns}
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for name, weight in read_base(changes) if changes else ():
        change = changes[name]
        q = torch.linalg.qr(weight.float()[:, : change.rank // 2])[0]
        found[change.part.module] = q, q.T @ weight.float()
    _check_found(plan, "OLoRA", changes.values(), found)
    return found


def _check_found(
    plan: AdapterPlan, what: str, changes: Iterable[Change], found: Collection[str]
) -> None:
    if missing := {change.part.module for change in changes} - {*found}:
        raise InvalidAdapter(
            f"{plan.directory}: {what} needs the base's own weights, and {min(missing)} is not "
            "among the model's files. Merge the adapter into its base.",
            parameter="lora_path",
            value=what,
        )
