"""IA3 of PEFT: numbers that what comes out of a module, or goes into it, is multiplied with. No
torch.

What goes into the product behind a gate is act(gate) * up: it is multiplied where `up` comes out.
"""

from __future__ import annotations

from collections.abc import Mapping

from quire.adapters.changes import Scale
from quire.adapters.config import MERGE
from quire.adapters.matching import Matcher
from quire.adapters.names import Kind, TensorName
from quire.adapters.sites import EMBEDDING, SitePart, Sites, is_of_expert
from quire.weights.formats import StoredTensor

_BEHIND_GATE, _GATED = ".down", ".gate_up"


def scales_of(
    matcher: Matcher, name: TensorName, found: Mapping[Kind, StoredTensor]
) -> list[Scale]:
    """What an adapter multiplies at one module: [rows, 1] what comes out, [1, columns] what goes
    in."""
    parts = matcher.parts_of(name)
    first = parts[0]
    if found.keys() != {"ia3_l"} or first.site == EMBEDDING or is_of_expert(first.site):
        what = ", ".join(sorted(found))
        raise matcher.wrong(name.module, f"has {what}: not built for ia3", MERGE)
    stored, rows = found["ia3_l"], first.within.of or first.rows
    biases = matcher.sites.biases
    if stored.shape == (rows, 1):
        return [Scale(one, stored, f"{one.module}.bias" in biases) for one in parts]
    if stored.shape != (1, first.columns):
        raise matcher.other_shape(stored, (rows, 1))
    up = _up_before(matcher.sites, first)
    if up is None:
        raise matcher.wrong(
            name.module,
            "is multiplied where something goes into it, which is built for the product behind a "
            "gate alone",
            MERGE,
        )
    return [Scale(up, stored, f"{up.module}.bias" in biases, of_last_rows=True)]


def _up_before(sites: Sites, down: SitePart) -> SitePart | None:
    """The part whose last rows make what goes through the gate before a product; None where no gate
    is."""
    if not down.site.endswith(_BEHIND_GATE):
        return None
    gated = f"{down.site.removesuffix(_BEHIND_GATE)}{_GATED}"
    every = (part for parts in sites.parts.values() for part in parts if part.site == gated)
    return max(every, key=lambda part: part.index, default=None)
