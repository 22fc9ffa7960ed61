"""The numbers of an adapter, read and made ready to be multiplied with.

Scales are folded into B, and rows put into the order that the model's products have. A DoRA
adapter's factor, m / ||W + s B A|| of each output row, needs the base's own weights once; they are
read from the model's files, so that it does not depend on how the model keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.adapters.config import MERGE
from quire.adapters.plan import AdapterPlan, Change
from quire.adapters.sites import EMBEDDING
from quire.backends.adapter_ops import Added
from quire.errors import InvalidAdapter
from quire.weights.read_rows import in_order, read_tensor

# How far a number is from itself where one of two files has it in 16 bits.
ROUNDED, TINY = 2.0**-8, 1e-7
# (weights of these names, as stored) -> name and float32 tensor of each
ReadBase = Callable[[Collection[str]], Iterable[tuple[str, Tensor]]]


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """What an adapter adds at each site, on the host."""

    added: dict[str, tuple[Added, ...]]

    @property
    def num_bytes(self) -> int:
        return sum(one.num_bytes for some in self.added.values() for one in some)


@torch.no_grad()
def read_adapter(plan: AdapterPlan, dtype: torch.dtype, read_base: ReadBase) -> AdapterWeights:
    """Everything a plan names, in `dtype`."""
    _check_copies(plan, read_base)
    factors = _factors(plan, read_base)
    added: dict[str, list[Added]] = {}
    for change in plan.changes:
        factor = factors.get(change.part.module)
        added.setdefault(change.part.site, []).append(_added(change, factor, dtype))
    return AdapterWeights({site: tuple(some) for site, some in added.items()})


def _check_copies(plan: AdapterPlan, read_base: ReadBase) -> None:
    """Embeddings of the base that stand beside the adapter must be the model's own: it was trained
    with them."""
    wanted = {name for copy in plan.copies for name in copy.names}
    own = dict(read_base(wanted)) if wanted else {}
    for copy in plan.copies:
        weight = next((own[name] for name in copy.names if name in own), None)
        if weight is None or not torch.allclose(read_tensor(copy.stored), weight, ROUNDED, TINY):
            raise InvalidAdapter(
                f"{copy.stored.path}: {copy.stored.name} is another matrix than the base's own. "
                f"{MERGE}",
                parameter=copy.stored.name,
            )


def _added(change: Change, factor: Tensor | None, dtype: torch.dtype) -> Added:
    part = change.part
    a, b = _matrices(change)
    if part.site == EMBEDDING:
        return Added(0, 0, a.to(dtype), b.to(dtype))
    if factor is not None:
        b = b * factor[:, None]
        factor = part.within.of_tensor(factor[:, None], part.rows)[:, 0].contiguous()
    b = part.within.of_tensor(b, part.rows).contiguous()
    if part.order is not None:
        b = in_order(b, part.order)
        factor = None if factor is None else in_order(factor[:, None], part.order)[:, 0]
    return Added(part.index, part.first, a.to(dtype), b.to(dtype).contiguous(), factor)


def _matrices(change: Change) -> tuple[Tensor, Tensor]:
    """A, and B with the scale in it, in float32; InvalidAdapter where a number is none."""
    a, b = read_tensor(change.a), read_tensor(change.b) * change.scale
    for tensor, stored in ((a, change.a), (b, change.b)):
        if not tensor.isfinite().all():
            raise InvalidAdapter(
                f"{stored.path}: {stored.name} holds numbers that are not finite. Its training "
                "went wrong; use an earlier checkpoint.",
                parameter=stored.name,
            )
    return a, b


def _factors(plan: AdapterPlan, read_base: ReadBase) -> dict[str, Tensor]:
    """Of each module with a magnitude its factor, in the order of the files' rows."""
    changes = {f"{c.part.module}.weight": c for c in plan.changes if c.magnitude is not None}
    found: dict[str, Tensor] = {}
    for name, weight in read_base(changes) if changes else ():
        change = changes[name]
        if change.magnitude is None:
            continue
        a, b = _matrices(change)
        wide = weight.float().T if change.part.turned else weight.float()
        length = torch.linalg.vector_norm(wide + b @ a, dim=1)
        magnitude = read_tensor(change.magnitude).flatten()
        found[change.part.module] = magnitude / length.clamp_min(torch.finfo(torch.float32).tiny)
    missing = {c.part.module for c in changes.values()} - found.keys()
    if missing:
        raise InvalidAdapter(
            f"{plan.directory}: DoRA needs the base's own weights, and {min(missing)} is not "
            "among the model's files. Merge the adapter into its base.",
            parameter="use_dora",
            value=True,
        )
    return found
