"""Where each weight of a built decoder lies, by quire's names for them: so that a model can be
given other weights while everything that was made around it stays."""

from __future__ import annotations

from torch import Tensor

from quire.backends.ops import WeightRows
from quire.errors import NotSupported
from quire.layers.embedding import Embedding
from quire.layers.linear import Linear, PlainRows

Places = dict[str, tuple[WeightRows, ...]]


def places_of_table(embedding: Embedding, head: Linear, *, tied: bool) -> Places:
    """The places of embedding and head, which may be one."""
    table = embedding.table
    places: Places = {"embed.weight": (head,)}  # a packed table that is tied is the head's
    if isinstance(table, Tensor):
        places["embed.weight"] = (PlainRows(table), *((head,) if tied else ()))
    elif not tied:
        places["embed.weight"] = (_writable(table),)
    if not tied:
        places["head.weight"] = (head,)
    return places


def _writable(table: object) -> WeightRows:
    if not isinstance(table, WeightRows):
        raise NotSupported(f"a table in {type(table).__name__} takes no other weights.")
    return table
