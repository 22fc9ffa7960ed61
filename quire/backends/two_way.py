"""Two-way attention in spans of a prompt, whose tokens also see later tokens of the span, as those
of an image do in some models. Plain torch, for any device.

The kernels compute the pass as if every token saw only earlier ones; the results for tokens in
spans are then overwritten. A pass computes a span up to its last token. Earlier tokens of the span
may have been computed in an earlier pass, where they saw all of the span; their KV is in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.ops import AttentionInputs, HeadNorms, HeadShape, PlannedAttention
from quire.errors import EngineError


@dataclass(frozen=True, slots=True)
class TwoWaySpan:
    """Positions start .. end of a sequence. The pass computes those from `first` on; `first` is
    token `at` of the pass."""

    sequence: int
    at: int
    first: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """A span with the blocks that it sees: `count` keys, from `skipped` on. `mask` [queries, keys]
    is True where a query sees a key; None: everywhere."""

    span: TwoWaySpan
    blocks: Tensor
    skipped: int
    count: int
    mask: Tensor | None


class TwoWayAttention:
    """The attention of a pass with spans, on top of its attention without them."""

    def __init__(
        self,
        step: PlannedAttention,
        shape: HeadShape,
        inputs: AttentionInputs,
        window: int | None,
        spans: Sequence[TwoWaySpan],
    ) -> None:
        if shape.softcap is not None or shape.sinks:
            raise EngineError(
                "two-way spans where scores are bounded or have sinks. This is a bug."
            )
        self._step, self._shape = step, shape
        self._pieces = [self._piece(span, inputs.tables, window) for span in spans]

    def _piece(self, span: TwoWaySpan, tables: Tensor, window: int | None) -> _Piece:
        size, lowest, kept = self._shape.block_size, 0, 0
        if window is not None:
            lowest, kept = (max(0, at - window + 1) for at in (span.start, span.first))
        places = torch.arange(lowest // size, -(-span.end // size), device=tables.device)
        # Blocks behind the window of the first computed token were given back: the first block that
        # is there takes their place, and is masked.
        blocks = tables[span.sequence].index_select(0, places.clamp(min=kept // size)).long()
        mask = None
        if window is not None:
            keys = torch.arange(lowest, span.end, device=tables.device)
            mask = keys > torch.arange(span.start, span.end, device=tables.device)[:, None] - window
        return _Piece(span, blocks, lowest % size, span.end - lowest, mask)

    def rope_and_store(
        self,
        qk: Tensor,
        v: Tensor,
        cos: Tensor,
        sin: Tensor,
        keys: Tensor,
        values: Tensor,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        return self._step.rope_and_store(qk, v, cos, sin, keys, values, norms)

    def plain(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return self._step.plain(keys, values)

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        out = self._step.attend(q, keys, values, sinks)
        for piece in self._pieces:
            span = piece.span
            last = span.at + span.end - span.first
            # All queries of the span, also those computed before: the same products, and so the
            # same bits, wherever a pass begins.
            skipped = span.first - span.start
            own = q.new_zeros(span.end - span.start, *q.shape[1:])
            own[skipped:] = q[span.at : last]
            k, v = self._gathered(keys, values, piece, q.dtype)
            seen = F.scaled_dot_product_attention(
                *(own.transpose(0, 1)[None], k[None], v[None]),
                attn_mask=piece.mask,
                scale=self._shape.scale,
                enable_gqa=self._shape.group > 1,
            )[0]
            out[span.at : last] = seen.transpose(0, 1)[skipped:].flatten(1)
        return out

    def _gathered(
        self, keys: Tensor, values: Tensor, piece: _Piece, dtype: torch.dtype
    ) -> list[Tensor]:
        """Keys and values that a span sees, each [kv_heads, keys, D]."""
        shape, last = self._shape, piece.skipped + piece.count
        blocks = (cache.index_select(0, piece.blocks) for cache in (keys, values))
        return [
            x.transpose(0, 1)
            .reshape(shape.num_kv_heads, -1, shape.head_dim)[:, piece.skipped : last]
            .to(dtype)
            for x in self._step.plain(*blocks)
        ]
