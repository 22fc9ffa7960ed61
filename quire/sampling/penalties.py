"""Repetition, frequency and presence penalties on tokens that a row had before.

A penalised row has a list of the distinct tokens it has seen, with how often each was in its
output: prompt [7 8], output [8 9 9] -> tokens [7 8 9], counts [0 1 2]. A step touches these
tokens only, never the vocabulary. Rows without penalties have no list.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from quire.request import Ints
from quire.sampling.rows import Call, Flags, Slots
from quire.sampling.scan import index
from quire.step import RowStart

_NONE = -1  # no token


class Penalties:
    """The lists of all rows with penalties, one slot each."""

    def __init__(self, *, max_rows: int, device: torch.device) -> None:
        self._device = device
        self._slots = Slots(max_rows)
        self._tokens = torch.empty(0, 0, dtype=torch.int64, device=device)
        self._counts = torch.empty(0, 0, dtype=torch.int64, device=device)
        self._used = torch.empty(0, dtype=torch.int64, device=device)
        # The most entries each slot can have by now, so that the device need not be asked.
        self._at_most = np.zeros(0, np.int64)
        self._weights = torch.empty(0, 3, device=device)  # repetition, frequency, presence

    def start(self, start: RowStart) -> None:
        params = start.sampling
        weights = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
        if not params.has_penalties:
            return
        slot = self._slots.take(start.row)
        # Only the repetition penalty looks at the prompt.
        prompt = start.prompt_ids if params.repetition_penalty != 1 else start.prompt_ids[:0]
        seen = np.unique(np.concatenate([prompt, start.output_ids]))
        counts = np.zeros(len(seen), np.int64)
        np.add.at(counts, np.searchsorted(seen, start.output_ids), 1)
        self._reserve(slot + 1, len(seen) + 1)
        self._tokens[slot] = _NONE
        self._tokens[slot, : len(seen)] = index(seen, self._device)
        self._counts[slot] = 0
        self._counts[slot, : len(seen)] = index(counts, self._device)
        self._used[slot] = len(seen)
        self._at_most[slot] = len(seen)
        self._weights[slot] = torch.tensor(weights, device=self._device)

    def end(self, rows: Ints) -> None:
        self._slots.release(rows)

    def wanted(self, call: Call) -> Flags:
        return self._slots.of[call.rows] >= 0

    def apply(self, logits: Tensor, call: Call) -> None:
        lines, slots = self._slots.here(call)
        if len(lines) == 0:
            return
        width = max(1, int(self._at_most[slots].max()))
        line, slot = index(lines, self._device), index(slots, self._device)
        tokens, counts = self._tokens[slot, :width], self._counts[slot, :width]
        repetition, frequency, presence = self._weights[slot].unsqueeze(2).unbind(1)
        # An unused entry must not overwrite a real one: it points to the line's first token, with
        # the value that this token gets anyway.
        real = tokens >= 0
        tokens, counts = _repeat_first(tokens, counts, real)
        before = logits[line[:, None], tokens]
        after = torch.where(before > 0, before / repetition, before * repetition)
        after = after - frequency * counts
        after = after - presence * (counts > 0)
        after = torch.where(real[:, :1], after, before)
        logits[line[:, None], tokens] = after

    def advance(self, call: Call, tokens: Tensor) -> None:
        """Count the token that each line drew."""
        lines, slots = self._slots.here(call)
        if len(lines) == 0:
            return
        self._at_most[slots] += 1
        width = int(self._at_most[slots].max())
        self._reserve(0, width)
        slot, drawn = index(slots, self._device), tokens[index(lines, self._device)]
        known = self._tokens[slot, :width] == drawn[:, None]
        is_new = ~known.any(1)
        # The first match, or the first free entry.
        place = torch.where(is_new, self._used[slot], known.byte().argmax(1))
        self._tokens[slot, place] = drawn
        self._counts[slot, place] += 1
        self._used[slot] += is_new

    def _reserve(self, slots: int, width: int) -> None:
        """Make room for so many slots and entries; what grows at least doubles."""
        old_slots, old_width = self._tokens.shape
        if slots <= old_slots and width <= old_width:
            return
        slots = old_slots if slots <= old_slots else max(slots, 2 * old_slots, 8)
        width = old_width if width <= old_width else max(width, 2 * old_width, 64)
        # State that outlives a step must stay writable outside of inference mode.
        with torch.inference_mode(False):
            tokens = torch.full((slots, width), _NONE, dtype=torch.int64, device=self._device)
            counts = torch.zeros_like(tokens)
            used = torch.zeros(slots, dtype=torch.int64, device=self._device)
            weights = torch.zeros(slots, 3, device=self._device)
        tokens[:old_slots, :old_width], counts[:old_slots, :old_width] = self._tokens, self._counts
        used[:old_slots], weights[:old_slots] = self._used, self._weights
        self._tokens, self._counts, self._used, self._weights = tokens, counts, used, weights
        self._at_most = np.concatenate(
            [self._at_most, np.zeros(slots - len(self._at_most), np.int64)]
        )


def _repeat_first(tokens: Tensor, counts: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Unused entries become copies of the first: tokens [5 9 - -] -> [5 9 5 5]; no entry -> 0."""
    tokens = torch.where(real, tokens, tokens[:, :1]).clamp(min=0)
    return tokens, torch.where(real, counts, counts[:, :1])
