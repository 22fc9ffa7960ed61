"""Where each weight of a built decoder lies, by quire's names for them: so that a model can be
given other weights while everything that was made around it stays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from quire.backends.ops import WeightRows
from quire.errors import NotSupported
from quire.layers.attention import NormedHeads
from quire.layers.linear import Linear
from quire.models.decoder import Decoder


@dataclass(frozen=True, slots=True)
class _PlainRows:
    """A tensor as it is."""

    tensor: Tensor

    def write_rows(self, first: int, rows: Tensor) -> None:
        self.tensor[first : first + len(rows)] = rows


Places = dict[str, tuple[WeightRows, ...]]


def places_of(model: Decoder, *, tied_embeddings: bool) -> Places:
    """The places of every weight."""
    table, head = model.embedding.table, model.head
    places: Places = {"embed.weight": (head,)}  # a packed table that is tied is the head's
    if isinstance(table, Tensor):
        places["embed.weight"] = (_PlainRows(table), *((head,) if tied_embeddings else ()))
    elif not tied_embeddings:
        places["embed.weight"] = (_writable(table),)
    if not tied_embeddings:
        places["head.weight"] = (head,)
    places["layers.0.attn_norm.weight"] = (_PlainRows(model.first_norm.weight),)
    last = len(model.layers) - 1
    for i, layer in enumerate(model.layers):
        following = "norm.weight" if i == last else f"layers.{i + 1}.attn_norm.weight"
        places[following] = (_PlainRows(layer.next_norm.weight),)
        places[f"layers.{i}.mlp_norm.weight"] = (_PlainRows(layer.mlp_norm.weight),)
        attention, mlp = layer.attention, layer.mlp
        for name, linear in (
            ("attn.qkv", attention.qkv),
            ("attn.o", attention.out),
            ("mlp.gate_up", mlp.gate_up),
            ("mlp.down", mlp.down),
        ):
            places.update(_linear(f"layers.{i}.{name}", linear))
        if isinstance(attention.heads, NormedHeads):
            q_norm, k_norm = attention.heads.q_norm, attention.heads.k_norm
            places[f"layers.{i}.attn.q_norm.weight"] = (_PlainRows(q_norm.weight),)
            places[f"layers.{i}.attn.k_norm.weight"] = (_PlainRows(k_norm.weight),)
    return places


def _writable(table: object) -> WeightRows:
    if not isinstance(table, WeightRows):
        raise NotSupported(f"a table in {type(table).__name__} takes no other weights.")
    return table


def _linear(name: str, linear: Linear) -> Iterator[tuple[str, tuple[WeightRows, ...]]]:
    yield f"{name}.weight", (linear,)
    if linear.bias is not None:
        yield f"{name}.bias", (_PlainRows(linear.bias),)
