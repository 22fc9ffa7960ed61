"""Which rows and columns of each weight a rank has, and where they are in files.

Weights not named here cannot be divided yet, which is an error: if every rank had such a weight
whole, it would be added up several times. No torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from quire.errors import NotSupported
from quire.layer_parts.state import ConvolutionPlan, DeltaNetPlan, MambaPlan, StatePlan
from quire.layer_plan import AttentionPlan, ExpertsPlan, LatentPlan, LayerPlan, MlpPlan
from quire.ranks.shares import OPTION, RankShare
from quire.spec import ModelSpec
from quire.weights.parts import Weight
from quire.weights.quantised.stored import Source
from quire.weights.row_order import RowOrder

_LAYER = re.compile(r"layers\.(\d+)\.(.+)\.(weight|bias)")
_EXPERT = re.compile(r"experts\.\d+\.(.+)")
# Weights that every rank has whole: tables that are read by row, norms of the stream, and branches
# that are too narrow to be divided.
_WHOLE = (
    "embed",
    "embed_norm",
    "positions",
    "norm",
    "layer_embed",
    "layer_embed_product",
    "layer_embed_norm",
)
_WHOLE_IN_LAYER = ("scale", "embedding.gate", "embedding.out", "mlp.curve")
_WHOLE_ROOMS = ("streams.", "side.")  # their names begin so, in a layer or outside


@dataclass(frozen=True, slots=True)
class Cut:
    """A rank's share of a weight: ranges of its rows, and a range of its columns (None: all). The
    share has `height` rows; those after the ranges are zeros."""

    rows: tuple[range, ...]
    height: int
    columns: range | None = None

    @property
    def has_zeros(self) -> bool:
        return self.height > sum(map(len, self.rows))

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        if self.columns is None:
            return (self.height, *whole[1:])
        return (self.height, len(self.columns))


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a stored tensor that become rows first .. first + rows of a weight: their order, a
    number added to them, the wanted columns (None: all), and whether the file has -exp of the
    numbers."""

    first: int
    rows: int
    source: Source
    order: RowOrder | None
    added: float
    columns: range | None = None
    is_minus_exp: bool = False


def pieces_of(stored: Iterable[Piece], cut: Cut) -> Iterator[Piece]:
    """The pieces that a rank reads of a weight that is stored in these pieces."""
    at, whole = 0, tuple(stored)
    for wanted in cut.rows:
        for piece in whole:
            first = max(wanted.start, piece.first)
            last = min(wanted.stop, piece.first + piece.rows)
            if first < last:
                rows = range(first - piece.first, last - piece.first)
                into = at + first - wanted.start
                yield replace(_rows(piece, rows), first=into, columns=cut.columns)
        at += len(wanted)


def _rows(piece: Piece, rows: range) -> Piece:
    """Some rows of a piece; whole heads, if it has an order."""
    source, order = piece.source, piece.order
    if len(rows) < piece.rows:
        source = source.rows(rows.start, len(rows))
        if order is not None:
            before = rows.start // len(order.order)
            order = replace(order, heads=max(order.heads - before, 0))
    return replace(piece, rows=len(rows), source=source, order=order)


def whole_of(weight: Weight) -> Cut:
    return Cut((range(weight.shape[0]),), weight.shape[0])


def cut_of(weight: Weight, spec: ModelSpec, share: RankShare) -> Cut:
    """A rank's share of a weight."""
    if share.size == 1:
        return whole_of(weight)
    name, _, kind = weight.name.rpartition(".")
    if name in _WHOLE or name.startswith(_WHOLE_ROOMS):
        return whole_of(weight)
    if name == "head":
        return Cut((share.vocabulary(spec.vocab_size),), share.head_rows(spec.vocab_size))
    found = _LAYER.fullmatch(weight.name)
    if found is not None:
        layer = spec.layers[int(found[1])]
        cut = _LayerCut(share, layer, weight, is_bias=kind == "bias").of(found[2])
        if cut is not None:
            return cut
    raise NotSupported(
        f"{OPTION}={share.size}: the weight {weight.name!r} is not divided among ranks yet. Run "
        "replicas of the whole model: data_parallel_size."
    )


@dataclass(frozen=True, slots=True)
class _LayerCut:
    share: RankShare
    layer: LayerPlan
    weight: Weight
    is_bias: bool

    def of(self, name: str) -> Cut | None:
        whole = name in _WHOLE_IN_LAYER or name.startswith(_WHOLE_ROOMS)
        inside = name.startswith("attn.") or name.endswith(".inner_norm")
        if whole or (name.endswith("_norm") and not inside):
            return whole_of(self.weight)
        if name.startswith("attn."):
            name = name.removeprefix("attn.")
            if self.layer.state is not None:
                return self._state(name, self.layer.state)
            return self._attention(name, self.layer.attention)
        if name.startswith("cross."):
            return self._cross(name.removeprefix("cross."), self.layer.attention)
        branch, _, name = name.partition(".")
        mlp = {"mlp": self.layer.mlp, "beside": self.layer.beside}.get(branch)
        if isinstance(mlp, MlpPlan):
            return self._feed_forward(name, mlp.width)
        return None if mlp is None else self._experts(name, mlp)

    def _attention(self, name: str, plan: AttentionPlan) -> Cut | None:
        if plan.latent is not None:
            return self._latent(name, self.share.heads(plan), plan.latent)
        heads, kv, size = self.share.heads(plan), self.share.kv_heads(plan), plan.head_dim
        if name == "qkv":
            ends = (0, plan.num_heads, plan.num_heads + plan.num_kv_heads)
            pairs = list(zip(ends, (heads, kv, kv), strict=True))[: plan.num_parts]
            return self._of_rows(*(_times(one, size, first) for first, one in pairs))
        if name == "o":
            return self._of_columns(_times(heads, size))
        if name in ("gate", "inner_norm"):
            return self._of_rows(_times(heads, size))
        if name == "sinks":
            return self._of_rows(heads)
        if name in ("q_norm", "k_norm"):
            if plan.qk_norm_over == "head":
                return whole_of(self.weight)
            return self._of_rows(_times(heads if name == "q_norm" else kv, size))
        return None

    def _state(self, name: str, plan: StatePlan) -> Cut | None:
        if not isinstance(plan, ConvolutionPlan):
            return self._matrices(name, plan)
        own = self.share.inner(plan.channels)
        if name == "gated":
            firsts = range(0, 3 * plan.channels, plan.channels)
            return self._of_rows(*(_behind(first, own) for first in firsts))
        if name == "convolution":
            return self._of_rows(own)
        return self._of_columns(own) if name == "o" else None

    def _matrices(self, name: str, plan: DeltaNetPlan | MambaPlan) -> Cut | None:
        keys = _times(self.share.keys(plan.num_key_heads), plan.key_dim)
        heads = self.share.heads_over(plan.num_heads, plan.num_key_heads)
        values, width = _times(heads, plan.value_dim), plan.key_width
        mixed = keys, _behind(width, keys), _behind(2 * width, values)
        if name == "qkvz":
            return self._of_rows(*mixed, _behind(plan.channels, values))
        if name == "convolution":
            return self._of_rows(*mixed)
        if name == "rates" and isinstance(plan, DeltaNetPlan):
            return self._of_rows(heads, _behind(plan.num_heads, heads))
        if name in ("rates", "log_slopes", "shifts", "skips"):
            return self._of_rows(heads)
        if name == "head_norm":
            return whole_of(self.weight)
        if name == "gated_norm":
            return self._of_rows(values)
        return self._of_columns(values) if name == "o" else None

    def _cross(self, name: str, plan: AttentionPlan) -> Cut | None:
        """A rank's tower makes the keys and values of its heads (models/towers/hearing.py)."""
        own = _times(self.share.heads(plan), plan.head_dim)
        if name == "q":
            return self._of_rows(own)
        return self._of_columns(own) if name == "o" else None

    def _latent(self, name: str, heads: range, plan: LatentPlan) -> Cut | None:
        """Every rank makes and keeps the row of a token; weights of single heads are divided."""
        if name in ("q_a", "q_a_norm", "kv_a", "kv_a_norm"):
            return whole_of(self.weight)
        if name in ("q", "q_b"):
            return self._of_rows(_times(heads, plan.query_dims))
        if name == "kv_b":
            return self._of_rows(_times(heads, plan.pair_dims))
        return self._of_columns(_times(heads, plan.value_dims)) if name == "o" else None

    def _experts(self, name: str, plan: ExpertsPlan) -> Cut | None:
        if name in ("router", "factors", "choice", "shared_gate"):
            return whole_of(self.weight)
        if plan.shared is not None and name.startswith("shared."):
            return self._feed_forward(name.removeprefix("shared."), plan.shared.width)
        found = _EXPERT.fullmatch(name)
        return None if found is None else self._feed_forward(found[1], plan.expert.width)

    def _feed_forward(self, name: str, width: int) -> Cut | None:
        own = self.share.inner(width)
        if name in ("up", "inner_norm"):
            return self._of_rows(own)
        if name == "gate_up":
            return self._of_rows(own, _behind(width, own))
        return self._of_columns(own) if name == "down" else None

    def _of_rows(self, *rows: range) -> Cut:
        return Cut(rows, sum(map(len, rows)))

    def _of_columns(self, columns: range) -> Cut:
        """For a product whose results are added up over ranks: only the first rank has its bias."""
        if not self.is_bias:
            return replace(whole_of(self.weight), columns=columns)
        height = self.weight.shape[0]
        return Cut((range(height),) if self.share.rank == 0 else (), height)


def _behind(first: int, rows: range) -> range:
    return range(first + rows.start, first + rows.stop)


def _times(heads: range, size: int, first: int = 0) -> range:
    return range((first + heads.start) * size, (first + heads.stop) * size)
