"""LoRA adapters on ranks: the engine's process reads them and sends them whole; each rank cuts them
like the products that they change.

If the rows of a product are divided, a rank takes its rows of B. If its columns are divided, a rank
takes its columns of A: ranks then add up parts of B (A x) together with parts of the product. Only
the first rank has the offset of such a product.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch import Tensor

from quire.adapters.read import AdapterWeights
from quire.adapters.sites import EMBEDDING
from quire.backends.adapter_ops import Added, OwnNumbers
from quire.config import AdapterOptions, EngineConfig
from quire.ranks.shares import RankShare
from quire.spec import ModelSpec
from quire.steps.ranked import AdapterPart, Bytes, OwnPart, RankAdapter
from quire.weights.cuts import Cut, cut_of
from quire.weights.load import rank_weights

_WEIGHT = ".weight"


class SentAdapters:
    """The numbers of the adapters that ranks have: the most recently used ones, as many as options
    let main memory hold."""

    def __init__(self, options: AdapterOptions | None) -> None:
        self._capacity = 0 if options is None else max(options.max_cpu_loras, options.max_loras)
        self._sent: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, number: int) -> bool:
        return number in self._sent

    def use(self, number: int) -> tuple[int, ...]:
        """Mark an adapter as sent and used. Returns the adapters that ranks must forget for it."""
        self._sent[number] = None
        self._sent.move_to_end(number)
        return tuple(self._sent.popitem(last=False)[0] for _ in range(self._num_over))

    @property
    def _num_over(self) -> int:
        return max(0, len(self._sent) - self._capacity)


def for_ranks(number: int, forgotten: tuple[int, ...], weights: AdapterWeights) -> RankAdapter:
    """The message about an adapter, the same for all ranks."""
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
    own = tuple(
        OwnPart(
            site,
            None if one.rows is None else one.rows.numpy(),
            None if one.weight is None else _bytes(one.weight),
            None if one.offset is None else one.offset.numpy(),
        )
        for site, one in weights.own.items()
    )
    return RankAdapter(number, forgotten, parts, own)


def _bytes(matrix: Tensor) -> Bytes:
    """The matrix as bytes, as numpy lacks some float types."""
    found: Bytes = matrix.contiguous().view(torch.uint8).numpy()
    return found


class RankAdapters:
    def __init__(self, spec: ModelSpec, share: RankShare, config: EngineConfig) -> None:
        """`spec` is of the whole model."""
        self._cuts = {} if config.adapters is None else site_cuts(spec, share)
        self._is_first = share.rank == 0
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
        own = {one.site: self._own(one) for one in given.own}
        whole = AdapterWeights({site: tuple(some) for site, some in added.items()}, own)
        self._known[given.number] = share_of(whole, self._cuts, is_first=self._is_first)

    def _own(self, given: OwnPart) -> OwnNumbers:
        rows, offset = (
            None if one is None else torch.from_numpy(one) for one in (given.rows, given.offset)
        )
        if given.weight is None:
            return OwnNumbers(rows, None, offset)
        of_norm = given.weight.ndim == 1
        weight = torch.from_numpy(given.weight).view(torch.float32 if of_norm else self._dtype)
        return OwnNumbers(rows, weight, offset)

    def weights(self, number: int) -> AdapterWeights:
        return self._known[number]


def site_cuts(spec: ModelSpec, share: RankShare) -> dict[str, Cut]:
    """The part of each product that a rank has, by the product's name."""
    return {
        weight.name.removesuffix(_WEIGHT): cut_of(weight, spec, share)
        for weight in rank_weights(spec, share)
        if weight.name.endswith(_WEIGHT)
    }


def share_of(whole: AdapterWeights, cuts: Mapping[str, Cut], *, is_first: bool) -> AdapterWeights:
    """A rank's share of an adapter. Every rank has all of an embedding."""
    added = {}
    for site, some in whole.added.items():
        own = some if site == EMBEDDING else tuple(_part(one, cuts[site]) for one in some)
        added[site] = tuple(one for one in own if one is not None)
    owned = {site: _own_share(one, cuts[site], is_first) for site, one in whole.own.items()}
    return AdapterWeights(added, owned)


def _own_share(one: OwnNumbers, cut: Cut, is_first: bool) -> OwnNumbers:
    wanted = torch.cat([torch.arange(rows.start, rows.stop) for rows in cut.rows])
    offset, rows, weight = one.offset, one.rows, one.weight
    if offset is not None and cut.columns is not None and not is_first:
        offset = None
    if offset is not None:
        offset = torch.cat([offset[wanted], torch.zeros(cut.height - len(wanted))])
    if rows is None or weight is None:
        return OwnNumbers(None, None, offset)
    places = torch.full((max(int(rows.max()) + 1, *(one.stop for one in cut.rows)),), -1)
    places[wanted] = torch.arange(len(wanted))
    has = places[rows] >= 0
    if not has.any():  # a rank may have no row of the head
        return OwnNumbers(None, None, offset)
    rows, weight = places[rows][has], weight[has]
    if cut.columns is not None:
        weight = weight[:, cut.columns.start : cut.columns.stop].contiguous()
    return OwnNumbers(rows, weight, offset)


def _part(one: Added, cut: Cut) -> Added | None:
    """A rank's share of one part of a product; None if the rank has no row of it."""
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
    # The ranges are in order, and so are the rows that a part has of them.
    rows = [place for _, place in places]
    columns = cut.columns
    return Added(
        one.part,
        places[0][0],
        one.a if columns is None else one.a[:, columns.start : columns.stop].contiguous(),
        torch.cat([one.b[place] for place in rows]),
        None if one.factor is None else torch.cat([one.factor[place] for place in rows]),
    )
