"""RowAdapters: which slot of the model's products holds the LoRA adapter of each row.

A plan names adapters by number. An adapter without a slot is loaded into a slot that no row uses.
The scheduler never lets rows use more adapters than there are slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.adapters.sites import HEAD, is_seldom, sites_of, sites_of_products
from quire.adapters.taken_room import Need, TakenRoom, needs_of
from quire.backends.adapter_ops import AdapterLines, AdapterRoom
from quire.backends.ops import Kernels
from quire.config import AdapterOptions, EngineConfig
from quire.layers.adapted import AdapterSites
from quire.layers.tp import TensorParallel
from quire.models.fallback.loaded import LoadedModule, products_of
from quire.request import Ints
from quire.spec import ModelSpec
from quire.step import RowStart, Slice
from quire.steps.handles import Handles

NONE = -1


def make_sites(
    options: AdapterOptions,
    model: ModelSpec | LoadedModule,
    kernels: Kernels,
    dtype: torch.dtype,
    device: torch.device,
    tp: TensorParallel,
) -> AdapterSites:
    """Slots for all products that adapters may change, of a model or of a rank's share of it."""
    room = AdapterRoom(options.max_loras, options.max_lora_rank, dtype, device)
    made = kernels.make_adapters(room)
    heads, norms = frozenset({HEAD}), frozenset[str]()
    if isinstance(model, ModelSpec):
        found = sites_of(model, divided=tp.size > 1)
        sites, norms = dict(found.sites), frozenset(one.site for one in found.norms.values())
        if HEAD in sites:
            sites[HEAD] = replace(sites[HEAD], rows=(tp.head_rows(model.vocab_size),))
    else:
        sites = dict(sites_of_products(products_of(model.module)).sites)
        body = f"{model.call.path}."
        heads = frozenset(name for name in sites if not name.startswith(body))
    rows = {name: site.rows for name, site in sites.items()}
    return AdapterSites(
        made,
        rows,
        {name: site.columns for name, site in sites.items()},
        heads,
        norms,
        frozenset(filter(is_seldom, sites)),
    )


def row_adapters(
    config: EngineConfig, sites: AdapterSites | None, handles: Handles
) -> RowAdapters | None:
    """The RowAdapters of an executor, None if the model has no slots."""
    if sites is None or config.adapters is None:
        return None
    return RowAdapters(sites, config.adapters.max_loras, config.max_num_seqs, handles)


class RowAdapters:
    """The slots of one model, and the rows that use them."""

    def __init__(
        self, sites: AdapterSites, num_slots: int, num_rows: int, handles: Handles
    ) -> None:
        """`handles` returns the weights of an adapter by its number."""
        self.sites, self._handles = sites, handles
        self.slot_of = np.full(num_rows, NONE, np.int32)  # by row
        self._numbers = [0] * num_slots  # the adapter's number in each slot; 0: empty
        self._last_use = [0] * num_slots
        self._uses = 0
        self._pass: AdapterLines | None = None  # the lines of the pass begun last
        self._room: TakenRoom | None = None
        self._rank = 0

    def watch_room(self, rank: int, free: Callable[[], int]) -> None:
        """Refuse adapters before they are loaded if they take more memory than is free on the
        device. `rank`: the slots already have room for A and B of this rank."""
        self._room, self._rank = TakenRoom(len(self._numbers), free), rank
        self._handles.lacks_room = self._lacks_room

    def _lacks_room(self, number: int) -> str:
        if self._room is None or number in self._numbers:
            return ""
        return self._room.promise(self._needs(number), self._next_slot())

    def _needs(self, number: int) -> list[Need]:
        return needs_of(self._handles.adapter(number), len(self._numbers), self._rank)

    def start(self, starts: Sequence[RowStart]) -> None:
        """Begin rows. Rows that ended must have been ended before."""
        for start in starts:
            self.slot_of[start.row] = self._slot(start.adapter) if start.adapter else NONE

    def end(self, rows: Ints) -> None:
        self.slot_of[rows] = NONE

    def end_all(self) -> None:
        self.slot_of[:] = NONE

    def _slot(self, number: int) -> int:
        self._uses += 1
        if number not in self._numbers:
            slot = self._next_slot()
            if slot is None:
                raise LookupError(f"no slot is free for adapter {number}. This is a bug.")
            self._numbers[slot] = 0  # empty if loading fails
            weights = self._handles.adapter(number)
            self.sites.load(slot, weights.added, weights.own)
            if self._room is not None:
                self._room.load(slot, self._needs(number))
            self._numbers[slot] = number
        slot = self._numbers.index(number)
        self._last_use[slot] = self._uses
        return slot

    def _next_slot(self) -> int | None:
        """The least recently used slot of those that no row uses; None if all are in use."""
        used = set(self.slot_of.tolist())
        free = [slot for slot in range(len(self._numbers)) if slot not in used]
        return min(free, key=self._last_use.__getitem__, default=None)

    def lines(self, prefill: Sequence[Slice], decode_rows: Ints, num_lines: int = 0) -> Ints:
        """The slot of every token of a pass, slices first; -1 for padding."""
        rows = np.array([s.row for s in prefill] + decode_rows.tolist(), np.int64)
        lengths = [len(s.token_ids) for s in prefill] + [1] * len(decode_rows)
        slots = np.repeat(self.slot_of[rows], lengths)
        return np.append(slots, np.full(max(0, num_lines - len(slots)), NONE, np.int32))

    def begin_pass(self, prefill: Sequence[Slice], decode_rows: Ints) -> AdapterLines | None:
        """The next pass computes the tokens of these slices and decode rows."""
        lines = self.sites.kernels.lines(self.lines(prefill, decode_rows))
        self.use_pass(lines)
        return lines

    def use_pass(self, lines: AdapterLines | None) -> None:
        """The next pass computes these lines."""
        self._pass = lines
        self.sites.use(lines)

    def begin_logits(self, tokens: Tensor | npt.NDArray[np.integer[Any]]) -> None:
        """Next, the logits of these tokens of the pass are computed. Tokens on a device are copied
        to the host only if an adapter may change the head."""
        lines = self._pass if self.sites.changes_head else None
        if lines is not None:
            chosen = tokens.cpu().numpy() if isinstance(tokens, Tensor) else tokens
            lines = lines.take(chosen.astype(np.int32))
        self.sites.use(lines)

    def forget(self) -> None:
        """Forget what the slots hold: adapters are loaded again when they are needed."""
        self._numbers = [0] * len(self._numbers)
