"""LoRA adapters on ranks: read in the engine's process, sent whole, and cut by each rank as the
products are that they change.

A product whose rows are divided takes its rows of B. One whose columns are divided takes its
columns of A: what ranks add up are then parts of B (A x) beside parts of the product.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch import Tensor

from quire.adapters.read import AdapterWeights
from quire.adapters.sites import EMBEDDING
from quire.backends.adapter_ops import Added
from quire.config import AdapterOptions, EngineConfig
from quire.ranks.shares import RankShare
from quire.spec import ModelSpec
from quire.steps.ranked import AdapterPart, Bytes, RankAdapter
from quire.weights.cuts import Cut, cut_of
from quire.weights.load import rank_weights

_WEIGHT = ".weight"


class SentAdapters:
    """The numbers of adapters that ranks have: as many as main memory is to hold, those used
    last."""

    def __init__(self, options: AdapterOptions | None) -> None:
        self._capacity = 0 if options is None else max(options.max_cpu_loras, options.max_loras)
        self._sent: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, number: int) -> bool:
        return number in self._sent

    def use(self, number: int) -> tuple[int, ...]:
        """Ranks have it from now on; those that they forget for it."""
        self._sent[number] = None
        self._sent.move_to_end(number)
        return tuple(self._sent.popitem(last=False)[0] for _ in range(self._num_over))

    @property
    def _num_over(self) -> int:
        return max(0, len(self._sent) - self._capacity)


def for_ranks(number: int, forgotten: tuple[int, ...], weights: AdapterWeights) -> RankAdapter:
    """What goes to every rank."""
    parts = tuple(
        AdapterPart(
            site,
            one.part,
            one.first,
            _bytes(one.a),
            _bytes(one.b),
            None if one.factor is None else one.factor.contiguous().numpy(),
        )
        for site, some in weights.added.items()
        for one in some
    )
    return RankAdapter(number, forgotten, parts)


def _bytes(matrix: Tensor) -> Bytes:
    """numpy has no name for every type of float."""
    found: Bytes = matrix.contiguous().view(torch.uint8).numpy()
    return found


class RankAdapters:
    """What a rank has of each adapter, by number."""

    def __init__(self, spec: ModelSpec, share: RankShare, config: EngineConfig) -> None:
        """`spec` is of the whole model."""
        self._cuts = {} if config.adapters is None else site_cuts(spec, share)
        self._dtype: torch.dtype = getattr(torch, config.dtype)
        self._known: dict[int, AdapterWeights] = {}

    def take(self, given: RankAdapter) -> None:
        for number in given.forgotten:
            self._known.pop(number, None)
        added: dict[str, list[Added]] = {}
        for one in given.parts:
            a, b = (torch.from_numpy(x).view(self._dtype) for x in (one.a, one.b))
            factor = None if one.factor is None else torch.from_numpy(one.factor)
            added.setdefault(one.site, []).append(Added(one.part, one.first, a, b, factor))
        whole = AdapterWeights({site: tuple(some) for site, some in added.items()})
        self._known[given.number] = share_of(whole, self._cuts)

    def weights(self, number: int) -> AdapterWeights:
        return self._known[number]


def site_cuts(spec: ModelSpec, share: RankShare) -> dict[str, Cut]:
    """What a rank has of each product."""
    return {
        weight.name.removesuffix(_WEIGHT): cut_of(weight, spec, share)
        for weight in rank_weights(spec, share)
        if weight.name.endswith(_WEIGHT)
    }


def share_of(whole: AdapterWeights, cuts: Mapping[str, Cut]) -> AdapterWeights:
    """What a rank adds to its products; an embedding is every rank's."""
    added = {}
    for site, some in whole.added.items():
        own = some if site == EMBEDDING else tuple(_part(one, cuts[site]) for one in some)
        added[site] = tuple(one for one in own if one is not None)
    return AdapterWeights(added)


def _part(one: Added, cut: Cut) -> Added | None:
    """Of one part of a product; None where the rank has no row of it."""
    places, before = [], 0
    for wanted in cut.rows:
        first = max(wanted.start, one.first)
        last = min(wanted.stop, one.first + len(one.b))
        if first < last:
            places.append(
                (before + first - wanted.start, slice(first - one.first, last - one.first))
            )
        before += len(wanted)
    if not places:
        return None
    # Ranges follow each other, and so do a part's rows of them.
    rows = [place for _, place in places]
    columns = cut.columns
    return Added(
        one.part,
        places[0][0],
        one.a if columns is None else one.a[:, columns.start : columns.stop].contiguous(),
        torch.cat([one.b[place] for place in rows]),
        None if one.factor is None else torch.cat([one.factor[place] for place in rows]),
    )
