"""Passes over prompts: many tokens, logits for the few that draw.

A large pass keeps the device busy while the host launches its kernels one by one. A small one does
not, and the host has no time to spare while it admits hundreds of sequences. So the layers of small
passes are captured as well, padded to a bucket of tokens and of sequences, and only when a bucket
is needed a second time, as a capture costs as much as three passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from quire.executor.cuda.batch import PromptPass
from quire.executor.cuda.decoding import LogitsUses, Parts
from quire.executor.cuda.drawn_scores import Asking, new_entries
from quire.executor.cuda.graphs import GraphKey
from quire.executor.cuda.upload import Upload
from quire.executor.pass_media import PassMedia, has_media
from quire.layers.batch import Batch
from quire.layers.overlay import Overlay, WholeOverlay
from quire.spec import ModelSpec
from quire.step import Slice, StepPlan, no_ints
from quire.steps.row_schema import NOWHERE

if TYPE_CHECKING:
    from quire.executor.cuda.adapters import PackedLines

# Operations of a pass that takes as long as its launches: about 30 ms on an H200.
WORTH_CAPTURING = 20 * 10**12
LEAST_TOKENS = 256
# Padding costs time on the device: above this many tokens, at most an eighth of them.
FREE_ROUNDING = 2048
LARGE_TOKENS = 4096
SEQUENCES = (32, 256, 1024)
LONG_SLICE = 4096  # tokens


@dataclass(frozen=True, slots=True)
class Captured:
    """The most tokens of a pass that is worth capturing, and the most (query, key) pairs of its
    long slices. Larger passes keep the device busy longer than the host needs for launching, and
    padding them costs more."""

    num_tokens: int
    num_pairs: int

    @staticmethod
    def of(spec: ModelSpec) -> Captured:
        """Attention is about half as fast as products per operation, and may take half of the time
        of the launches."""
        attended = sum(
            4 * layer.attention.num_heads * layer.attention.head_dim
            for layer in spec.layers
            if layer.attention.window is None
        )
        return Captured(
            WORTH_CAPTURING // (2 * spec.body_weights), WORTH_CAPTURING // (4 * max(1, attended))
        )

    def __contains__(self, slices: Sequence[Slice]) -> bool:
        long = [s for s in slices if len(s.token_ids) >= LONG_SLICE]
        pairs = sum(len(s.token_ids) * (s.start + len(s.token_ids) // 2) for s in long)
        num_tokens = sum(len(s.token_ids) for s in slices)
        return num_tokens <= self.num_tokens and pairs <= self.num_pairs


NOTHING_CAPTURED = Captured(-1, -1)


@dataclass(frozen=True, slots=True)
class Bucket:
    """The padded numbers of tokens and sequences of a captured pass."""

    num_tokens: int
    num_sequences: int


def bucket_for(num_tokens: int, num_sequences: int, most_tokens: int) -> Bucket | None:
    """The bucket of a pass; None if padding would cost too much time or memory.

    Sizes are quarters between powers of two, 256 320 384 448 512 640 .. 4096, and the most tokens
    of a plan: 700 -> 768.
    """
    power = max(LEAST_TOKENS, 1 << max(num_tokens - 1, 1).bit_length() - 1)
    size = power + -(-max(0, num_tokens - power) // (power // 4)) * (power // 4)
    if size > LARGE_TOKENS:
        size = max(num_tokens, most_tokens)
    if size > FREE_ROUNDING and size - num_tokens > size // 8:
        return None
    sequences = next((s for s in SEQUENCES if s >= num_sequences), 0)
    return Bucket(size, sequences) if sequences else None


@dataclass(frozen=True, slots=True)
class LaidOut:
    """The slices of a plan, before its upload is sent."""

    work: PromptPass
    bucket: Bucket | None
    truncated: bool
    asking: Asking
    walks: bool = False  # the device follows a row's grammar
    adapted: PackedLines | None = None  # None: no token has an adapter


@dataclass(frozen=True, slots=True)
class Computed:
    """The results of a pass: `block` int32 [1, rows], the token (or FAILED, RESTS) of every row
    that drew; the hidden states, which the next pass may overwrite; and logprob entries."""

    block: Tensor
    hidden: Tensor
    entries: Tensor | None = None


class Prompts:
    """Computes the slices of plans whose rows all draw with the device's own sampling."""

    def __init__(
        self, parts: Parts, media: PassMedia, *, most_tokens: int, captured: Captured
    ) -> None:
        """Plans have at most `most_tokens`. Only passes within `captured` are captured."""
        self._parts, self._media, self._most_tokens = parts, media, most_tokens
        self.captured = captured
        self._seen: set[tuple[Bucket, bool]] = set()
        self._overlay: WholeOverlay | None = None  # shared by all buckets
        self._places: dict[Bucket, Batch] = {}
        self._hidden: dict[GraphKey, Tensor] = {}

    def lay_out(self, plan: StepPlan, upload: Upload) -> LaidOut:
        """Add the slices to the upload, padded if their bucket was seen before."""
        rows = np.array([row for s in plan.prefill for row in s.sample_into], np.int32)
        num_tokens = sum(len(s.token_ids) for s in plan.prefill)
        bucket = None
        if plan.prefill in self.captured and self._media.is_fixed(plan.prefill):
            bucket = bucket_for(num_tokens, len(plan.prefill), self._most_tokens)
        if bucket is not None and (bucket, has_media(plan.prefill)) not in self._seen:
            self._seen.add((bucket, has_media(plan.prefill)))
            bucket = None
        work = PromptPass(
            plan.prefill,
            upload,
            self._parts.block_size,
            num_tokens=bucket.num_tokens if bucket else 0,
            num_sequences=bucket.num_sequences if bucket else 0,
            resting=self._parts.columns.resting,
        )
        columns = self._parts.columns
        asking = Asking.pack(upload, "prompts", columns.num_logprobs[rows])
        upload.add("edited lines", np.flatnonzero(columns.edits.edited[rows]))
        adapted = None
        if (adapters := self._parts.adapters) is not None:
            size = bucket.num_tokens if bucket else num_tokens
            slots = adapters.rows.lines(plan.prefill, no_ints(), size)
            adapted = adapters.pack(upload, "prompt adapters", slots)
        truncated, walks = columns.drawing(rows).truncated, bool(columns.edits.walking[rows].any())
        return LaidOut(work, bucket, truncated, asking, walks, adapted)

    def run(
        self,
        laid_out: LaidOut,
        upload: Upload,
        bring_masks: Callable[[], None],
        looks: LogitsUses,
    ) -> Computed:
        """Called after the plan's changes. `looks` uses the logits and tokens that are drawn."""
        parts, work = self._parts, laid_out.work
        batch = self._media.joined(work.batch(parts.columns), work.prefill)
        heard = parts.media.heard(parts.model.kernels, upload.take("token rows"))
        batch = replace(batch, heard=heard)
        hidden = self._layers(batch, laid_out, upload)
        rows = upload.take("sampled rows")
        if not len(rows):
            return Computed(rows[None].to(torch.int32), hidden)
        if parts.adapters is not None:
            parts.adapters.rows.begin_logits(work.logit_tokens)
        logits = parts.model.logits(hidden.index_select(0, batch.logit_tokens))
        logits = work.drawn_logits(batch, logits)
        at = upload.take("drawn at")
        drawing = torch.where(parts.columns.live(rows), rows, NOWHERE).to(torch.int32)
        edited = upload.take("edited lines").to(torch.int32)
        bring_masks()
        tokens, failed = parts.ops.draw(
            *(logits, drawing, at.to(torch.int32)),
            truncated=laid_out.truncated,
            edited=edited if len(edited) else None,
        )
        looks.replace(logits, tokens, failed, 0)
        looks.look(logits, tokens, tokens, 0)
        entries = None
        if laid_out.asking:
            entries = new_entries(1, len(rows), parts.device)
            first = torch.zeros(1, dtype=torch.int32, device=parts.device)
            parts.ops.score(logits, drawing, tokens, failed, entries, first)
        block = parts.columns.accept(rows, tokens, at, failed)[None].to(torch.int32)
        if laid_out.walks:
            parts.ops.walk(edited, drawing, tokens, failed)
        return Computed(block, hidden, entries)

    def _layers(self, batch: Batch, laid_out: LaidOut, upload: Upload) -> Tensor:
        """The last hidden states, computed by a graph if there is a bucket."""
        parts, bucket = self._parts, laid_out.bucket
        variant = self._use_adapters(laid_out, upload)
        if bucket is None:
            return parts.model(batch, parts.cache)
        fixed = self._fixed(batch, bucket)
        key = GraphKey(
            *("prompts" if fixed.overlay is None else "prompts with media", bucket.num_tokens),
            truncated=False,
            prefixes=bucket.num_sequences,
            adapters=variant,
        )

        def compute() -> None:
            self._hidden[key] = parts.model(fixed, parts.cache)

        parts.graphs.prepare(key, compute)  # a prompt may be computed twice
        parts.graphs.run(key, compute, 1)
        return self._hidden[key]

    def _use_adapters(self, laid_out: LaidOut, upload: Upload) -> int | None:
        """Set the pass's adapters. Returns the number of their kernels, None without adapters."""
        adapters, packed = self._parts.adapters, laid_out.adapted
        if adapters is None:
            return None
        if packed is None:
            adapters.use(None)
            return None
        find = adapters.lines if laid_out.bucket is None else adapters.bring
        adapters.use(find(upload, packed))
        return adapters.variant

    def _fixed(self, batch: Batch, bucket: Bucket) -> Batch:
        """The batch, copied to the addresses of its bucket's graph."""
        moving = ("token_ids", "positions", "slots", "query_starts", "context_lens", "tables")
        if bucket not in self._places:
            with torch.inference_mode(False):
                kept: dict[str, Any] = {n: torch.empty_like(getattr(batch, n)) for n in moving}
                num_groups, _, width = self._parts.columns.tables.shape
                shape = (num_groups, bucket.num_sequences, width)
                kept["tables"] = batch.tables.new_zeros(shape)
            # Slices here have their positions as coordinates, so the first pass's coordinates,
            # which are the same for its tokens only, must not stay.
            kept |= {"coordinates": None, "overlay": None}
            self._places[bucket] = replace(
                batch, **kept, longest_query=bucket.num_tokens, longest_context=0
            )
        fixed = self._places[bucket]
        for name in moving[:-1]:
            getattr(fixed, name).copy_(getattr(batch, name))
        fixed.tables[..., : batch.tables.shape[2]].copy_(batch.tables)
        if batch.overlay is None:
            return fixed
        return replace(fixed, overlay=self._fixed_overlay(batch.overlay, bucket.num_tokens))

    def _fixed_overlay(self, overlay: Overlay, num_tokens: int) -> WholeOverlay:
        """The overlay, copied to addresses that all graphs share."""
        if self._overlay is None:
            most, like = max(self._most_tokens, LARGE_TOKENS), self._parts.model.dtype
            with torch.inference_mode(False):
                rows = overlay.rows.new_zeros(most, overlay.rows.shape[1], dtype=like)
                self._overlay = WholeOverlay(rows.new_zeros(most, 1, dtype=torch.bool), rows)
        there, rows = self._overlay.places[:num_tokens], self._overlay.rows[:num_tokens]
        there.zero_()
        there[overlay.places] = True
        rows[overlay.places] = overlay.rows.to(rows.dtype)
        return WholeOverlay(there, rows)

    def close(self) -> None:
        self._places.clear()
        self._hidden.clear()
        self._overlay = None
