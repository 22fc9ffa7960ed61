"""Decode steps of rows for which the device draws by itself, repeated without the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.executor.cuda.batch import padded, places_of
from quire.executor.cuda.device_ops import DeviceOps, Feed
from quire.executor.cuda.device_rows import DeviceColumns
from quire.executor.cuda.drawn_scores import ENTRY, Asking
from quire.executor.cuda.graphs import DecodePlaces, GraphKey, Graphs, buckets, edit_bucket
from quire.executor.cuda.row_media import RowMedia
from quire.executor.cuda.upload import Upload
from quire.layers.attention import Pass
from quire.layers.cross import HeardPages
from quire.models.model import KVCache, Model
from quire.step import StepPlan
from quire.steps.row_schema import NOWHERE

if TYPE_CHECKING:
    from quire.executor.cuda.adapters import CudaAdapters, PackedLines

ADAPTED = "decode adapters"  # a name in uploads and of fixed lines


class LogitsUses(Protocol):
    """Other uses of the logits of a block than the device's draw; see looks.py."""

    @property
    def replaces(self) -> bool: ...

    @property
    def num_steps(self) -> int: ...

    def replace(self, logits: Tensor, tokens: Tensor, failed: Tensor, step: int) -> None: ...

    def look(self, logits: Tensor, tokens: Tensor, made: Tensor, step: int) -> None: ...


class StepMasks(Protocol):
    """The masks of a plan; see masks.py."""

    def __call__(self) -> None: ...

    def lift(self) -> None: ...


class SmallBatchRows(Protocol):
    """A model's pass for steps of at most `most_rows` rows; see cuda/small_batch.py."""

    @property
    def most_rows(self) -> int: ...

    def __call__(self, token_ids: Tensor, shared: Pass, cache: KVCache) -> Tensor:
        """The logits [rows, V]."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What every pass needs. `few_rows` computes small decode steps, if it can; `least_places` is
    the smallest bucket."""

    model: Model
    cache: KVCache
    columns: DeviceColumns
    ops: DeviceOps
    graphs: Graphs
    block_size: int
    media: RowMedia
    few_rows: SmallBatchRows | None = None
    least_places: int = 1
    adapters: CudaAdapters | None = None

    @property
    def device(self) -> torch.device:
        return self.columns.device

    def logits(self, token_ids: Tensor, shared: Pass, *, adapted: bool = False) -> Tensor:
        """The logits of a decode step, [rows, V]. `adapted`: some rows have adapters."""
        few = self.few_rows is not None and len(token_ids) <= self.few_rows.most_rows
        if self.few_rows is not None and few and not adapted:
            return self.few_rows(token_ids, shared, self.cache)
        return self.model.logits(self.model.compute(token_ids, shared, self.cache))


@dataclass(frozen=True, slots=True)
class Halves:
    """Graphs of a step in two halves: the model; and the draw, of the first step and of later ones,
    which draw without masks."""

    forward: GraphKey
    first: GraphKey
    later: GraphKey


@dataclass(frozen=True, slots=True)
class Seated:
    """The decode rows of a plan, each with a place in a bucket."""

    places: DecodePlaces
    key: GraphKey
    num_rows: int
    repeat: int
    asking: Asking
    halves: Halves | None = None  # None: no step is in two halves
    num_halved: int = 0  # so many steps, the first ones, are in two halves
    adapted: PackedLines | None = None  # None: no row has an adapter


class Decoding:
    """Whole decode steps: feed, model, draw, accept.

    If rows draw with masks, a plan's first step is computed in two halves: the model runs while the
    host still fills the masks, and only the draw waits for them. Steps whose logits have other uses
    are computed in two halves as well.
    """

    def __init__(self, parts: Parts, *, max_repeat: int) -> None:
        self._parts, self._max_repeat = parts, max_repeat
        self._buckets = buckets(parts.columns.num_rows, parts.least_places)
        self._places: dict[int, DecodePlaces] = {}
        self._entries: Tensor | None = None  # of one plan; shared by all buckets
        self._logits: Tensor | None = None  # of one first half; shared by all buckets
        self._fed: dict[GraphKey, Feed] = {}
        self._drawn: dict[GraphKey, Tensor] = {}
        self._heard: dict[GraphKey, HeardPages] = {}

    def seat(self, plan: StepPlan, upload: Upload, looks: LogitsUses, first: int = 0) -> Seated:
        """Before the upload is sent: find places for the rows, and capture their step if it is new.
        The rows begin at line `first` of the result."""
        columns, num_rows = self._parts.columns, len(plan.decode)
        places = self._bucket(num_rows)
        drawing = columns.drawing(plan.decode.rows)
        prefixes = self._parts.ops.list_prefixes(places.size, plan.groups, places_of(plan))
        edited = np.flatnonzero(columns.edits.edited[plan.decode.rows])
        num_edited = edit_bucket(len(edited))
        adapted, variant = self._pack_adapters(plan, upload, places.size)
        key = GraphKey(
            *("decode", places.size, drawing.truncated, drawing.scored, num_edited),
            *(bool(columns.edits.walking[plan.decode.rows].any()), prefixes),
            ahead=_goes_ahead_within_limits(plan, columns.truncated),
            adapters=variant,
        )
        num_halved = max(int(plan.masks is not None), looks.num_steps)
        halves = self._prepare_halves(places, key, num_halved) if num_halved else None
        if num_halved < plan.repeat:
            self._parts.graphs.prepare(key, lambda: self._step(places, key))
        resting = np.full(places.size - num_rows, columns.resting, np.int32)
        upload.add("seated", np.concatenate([plan.decode.rows, resting]))
        upload.add("edited places", padded(edited, num_edited - len(edited), NOWHERE))
        num_logprobs = columns.num_logprobs[plan.decode.rows]
        asking = Asking.pack(upload, "decode rows", num_logprobs, first)
        return Seated(places, key, num_rows, plan.repeat, asking, halves, num_halved, adapted)

    def _pack_adapters(
        self, plan: StepPlan, upload: Upload, num_places: int
    ) -> tuple[PackedLines | None, int | None]:
        """The adapters of all places, and the number of the kernels that these need."""
        adapters = self._parts.adapters
        if adapters is None:
            return None, None
        slots = adapters.rows.lines((), plan.decode.rows, num_places)
        packed = adapters.pack(upload, ADAPTED, slots)
        return packed, None if packed is None else adapters.variant

    def run(self, seated: Seated, upload: Upload, masks: StepMasks, looks: LogitsUses) -> Tensor:
        """Called after the plan's changes. Returns each row's token, FAILED or RESTS for every
        step, int32 [K, rows]. `looks` uses the logits and tokens of steps in two halves."""
        places, key = seated.places, seated.key
        places.rows.copy_(upload.take("seated"))
        places.step.zero_()
        if self._parts.adapters is not None and seated.adapted is not None:
            self._parts.adapters.bring(upload, seated.adapted)
        if key.num_edited:
            places.edited[: key.num_edited].copy_(upload.take("edited places"))
        if seated.halves is not None:
            self._run_halves(seated, seated.halves, masks, looks)
        whole = seated.repeat - seated.num_halved
        self._parts.graphs.run(key, lambda: self._step(places, key), whole)
        # A copy, as the next plan may write here before this one's tokens are on the host.
        block = places.made[: seated.repeat, : seated.num_rows].clone()
        # All places are idle again, so that the step can run for another capture.
        places.rows.fill_(self._parts.columns.resting)
        places.step.zero_()
        return block

    def entries(self, seated: Seated) -> Tensor | None:
        """The logprob entries that the run wrote, [K, places, ENTRY], or None if no row asked. The
        next run overwrites them."""
        return self._entries_of(seated.places)[: seated.repeat] if seated.asking else None

    def _entries_of(self, places: DecodePlaces) -> Tensor:
        if self._entries is None:
            size = self._max_repeat * self._buckets[-1] * ENTRY
            with torch.inference_mode(False):
                self._entries = torch.zeros(size, dtype=torch.int32, device=self._parts.device)
        shape = (self._max_repeat, places.size, ENTRY)
        return self._entries[: self._max_repeat * places.size * ENTRY].view(shape)

    def _bucket(self, num_rows: int) -> DecodePlaces:
        size = next(size for size in self._buckets if size >= num_rows)
        if size not in self._places:
            columns = self._parts.columns
            with torch.inference_mode(False):
                self._places[size] = DecodePlaces.make(
                    size, self._max_repeat, columns.resting, columns.device
                )
        return self._places[size]

    def _step(self, places: DecodePlaces, key: GraphKey) -> None:
        """Feed every row's last token, draw the next, accept it."""
        fed = self._parts.ops.feed(places, key.prefixes)
        self._draw(places, key, fed, self._pass(fed, key))

    def _prepare_halves(self, places: DecodePlaces, key: GraphKey, num_halved: int) -> Halves:
        graphs, later = self._parts.graphs, changed(key, kind="draw")
        first = changed(later, ahead=False)
        forward = GraphKey(
            "forward", places.size, False, prefixes=key.prefixes, adapters=key.adapters
        )
        graphs.prepare(forward, lambda: self._forward(places, forward))

        def rest() -> None:
            # The first half may have been captured by an earlier plan, whose rows would then count
            # and keep what is drawn here.
            self._fed[forward] = self._parts.ops.feed(places, forward.prefixes)

        for draw in (first, later) if num_halved > 1 else (first,):
            graphs.prepare(draw, partial(self._second_half, places, draw, forward), rest)
        return Halves(forward, first, later)

    def _run_halves(
        self,
        seated: Seated,
        halves: Halves,
        masks: StepMasks,
        looks: LogitsUses,
    ) -> None:
        forward, places, graphs = halves.forward, seated.places, self._parts.graphs
        for step in range(seated.num_halved):
            draw = halves.first if step == 0 else halves.later
            graphs.run(forward, lambda: self._forward(places, forward), 1)
            masks()
            if looks.replaces:
                self._second_half(places, draw, forward, partial(looks.replace, step=step))
            else:
                graphs.run(draw, partial(self._second_half, places, draw, forward), 1)
            if self._logits is not None:
                looks.look(self._logits[: places.size], self._drawn[draw], places.made[step], step)
            if step == 0 and seated.repeat > 1:
                masks.lift()

    def _forward(self, places: DecodePlaces, key: GraphKey) -> None:
        """Feed every row's last token, and keep the logits for the second half."""
        fed = self._fed[key] = self._parts.ops.feed(places, key.prefixes)
        logits = self._pass(fed, key)
        self._logits_of(logits).copy_(logits)

    def _second_half(
        self,
        places: DecodePlaces,
        key: GraphKey,
        forward: GraphKey,
        replace: Callable[[Tensor, Tensor, Tensor], None] | None = None,
    ) -> None:
        if self._logits is None:
            raise RuntimeError("the first half of a step comes before the second")
        self._draw(places, key, self._fed[forward], self._logits[: places.size], replace)

    def _logits_of(self, like: Tensor) -> Tensor:
        """Memory for logits, at the same address for all buckets."""
        if self._logits is None:
            shape = (self._buckets[-1], like.shape[1])
            with torch.inference_mode(False):
                self._logits = torch.zeros(shape, dtype=like.dtype, device=like.device)
        return self._logits[: like.shape[0]]

    def _pass(self, fed: Feed, key: GraphKey) -> Tensor:
        parts, adapted = self._parts, key.adapters is not None
        if parts.adapters is not None:
            parts.adapters.use(parts.adapters.fixed(ADAPTED, key.size) if adapted else None)
        turns = parts.model.rotary(parts.media.turned_at(fed))
        shared = Pass(fed.positions, turns, fed.slots, fed.attention, states=fed.states)
        if (heard := parts.media.heard(parts.model.kernels, fed.rows)) is not None:
            self._heard[key] = heard  # kept alive: a graph reads its tensors
            shared = changed(shared, heard=heard)
        return parts.logits(fed.token_ids, shared, adapted=adapted)

    def _draw(
        self,
        places: DecodePlaces,
        key: GraphKey,
        fed: Feed,
        logits: Tensor,
        replace: Callable[[Tensor, Tensor, Tensor], None] | None = None,
    ) -> None:
        """Draw and accept. `replace` may change the tokens in between."""
        parts = self._parts
        edited = places.edited[: key.num_edited] if key.num_edited else None
        tokens, failed = parts.ops.draw(
            *(logits, fed.rows, fed.next_at),
            truncated=key.truncated,
            edited=edited,
            ahead=key.ahead,
        )
        self._drawn[key] = tokens
        if replace is not None:
            replace(logits, tokens, failed)
        if key.scored:
            entries = self._entries_of(places)
            parts.ops.score(logits, fed.rows, tokens, failed, entries, places.step)
        parts.ops.accept(places, tokens, failed)
        if edited is not None and key.walks:
            parts.ops.walk(edited, fed.rows, tokens, failed)

    def close(self) -> None:
        self._places.clear()
        self._fed.clear()
        self._drawn.clear()
        self._heard.clear()
        self._entries = self._logits = None


def _goes_ahead_within_limits(plan: StepPlan, truncated: npt.NDArray[np.bool_]) -> bool:
    """Whether a row with top_k, top_p or min_p draws without its mask in some steps."""
    if plan.masks is None or plan.repeat == 1:
        return False
    ahead = plan.tried[(plan.num_tried > 1) & np.isin(plan.tried, plan.masks.rows)]
    return bool(truncated[ahead].any())
