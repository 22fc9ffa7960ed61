"""IA3 of PEFT: factors of the results or of the inputs of a module. No torch.

The input of the product after a gate is act(gate) * up: its factor is applied to the result of
`up`.
"""

from __future__ import annotations

from collections.abc import Mapping

from quire.adapters.changes import Scale
from quire.adapters.config import MERGE
from quire.adapters.matching import Matcher
from quire.adapters.names import Kind, TensorName
from quire.adapters.sites import EMBEDDING, SitePart, Sites, is_of_expert, is_of_pairs
from quire.weights.formats import StoredTensor

_BEHIND_GATE, _GATED = ".down", ".gate_up"


def scales_of(
    matcher: Matcher, name: TensorName, found: Mapping[Kind, StoredTensor]
) -> list[Scale]:
    """An adapter's factors at one module: [rows, 1] for results, [1, columns] for inputs."""
    parts = matcher.parts_of(name)
    first = parts[0]
    if found.keys() != {"ia3_l"} or _adds_only(first.site):
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


def _adds_only(site: str) -> bool:
    return site == EMBEDDING or is_of_expert(site) or is_of_pairs(site)


def _up_before(sites: Sites, down: SitePart) -> SitePart | None:
    """The part whose last rows make `up` before this product; None if there is no gate."""
    if not down.site.endswith(_BEHIND_GATE):
        return None
    gated = f"{down.site.removesuffix(_BEHIND_GATE)}{_GATED}"
    every = (part for parts in sites.parts.values() for part in parts if part.site == gated)
    return max(every, key=lambda part: part.first, default=None)
