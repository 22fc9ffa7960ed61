"""How each device row draws: columns indexed by row.

Numbers for the arithmetic are tensors on the device. Flags that only decide which work a step has
are kept on the host, so that the decision never waits for the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.request import Ints
from quire.sampling.scan import index
from quire.sampling.seeds import NoiseKeys
from quire.sampling.truncation import NO_TOP_K, Limits
from quire.step import Masks, RowStart

Lines = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# A lower temperature means greedy.
_GREEDY_BELOW = 1e-5


@dataclass(frozen=True, slots=True)
class Call:
    """The lines of one logits tensor: line i belongs to rows[i] and draws token positions[i]."""

    rows: Lines
    positions: Lines
    masks: Masks | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, lines: Lines) -> Call:
        return Call(self.rows[lines], self.positions[lines], self.masks)


class Slots:
    """Slots for rows in a store that most rows do not need."""

    def __init__(self, max_rows: int) -> None:
        self.of = np.full(max_rows, -1, np.int64)  # row -> slot
        self._free: list[int] = []
        self._num_made = 0

    def take(self, row: int) -> int:
        """A slot for the row; released slots are used first."""
        self.release(np.asarray([row], np.int32))
        if not self._free:
            self._free.append(self._num_made)
            self._num_made += 1
        self.of[row] = slot = self._free.pop()
        return slot

    def release(self, rows: Ints) -> None:
        if len(self._free) == self._num_made:
            return
        slots = self.of[rows]
        self._free.extend(slots[slots >= 0].tolist())
        self.of[rows] = -1

    def here(self, call: Call) -> tuple[Lines, Lines]:
        """The lines of a call whose rows have a slot, and these slots."""
        slots = self.of[call.rows]
        lines = np.flatnonzero(slots >= 0)
        return lines, slots[lines]


class SamplingRows:
    """Temperature, limits, noise keys and requests for logprobs of every row."""

    def __init__(self, *, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self._device, self._vocab_size = device, vocab_size
        self.is_random: Flags = np.zeros(max_rows, np.bool_)
        self.is_truncated: Flags = np.zeros(max_rows, np.bool_)
        self.asks_logprobs: Flags = np.zeros(max_rows, np.bool_)
        self.starts: dict[int, RowStart] = {}
        self._temperature = torch.ones(max_rows, device=device)
        self._top_k = torch.full((max_rows,), NO_TOP_K, device=device)
        self._min_p = torch.full((max_rows,), -torch.inf, device=device)
        self._top_p = torch.ones(max_rows, dtype=torch.float64, device=device)
        # noise key (low, high word) and sample
        self._key = torch.zeros(max_rows, 3, dtype=torch.int64, device=device)

    def start(self, start: RowStart) -> None:
        row, params = start.row, start.sampling
        self.starts[row] = start
        self.is_random[row] = params.temperature >= _GREEDY_BELOW
        self.asks_logprobs[row] = params.num_logprobs is not None
        self._temperature[row] = 1.0
        if not self.is_random[row]:
            return
        has_top_k = 0 < params.top_k < self._vocab_size
        has_limits = has_top_k or params.min_p > 0 or params.top_p < 1
        self.is_truncated[row] = has_limits
        self._temperature[row] = params.temperature
        self._top_k[row] = params.top_k if has_top_k else NO_TOP_K
        self._min_p[row] = math.log(params.min_p) if params.min_p > 0 else -math.inf
        self._top_p[row] = params.top_p
        key = start.noise_key
        words = [key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF, start.sample & 0xFFFFFFFF]
        self._key[row] = torch.tensor(words, device=self._device)

    def end(self, rows: Ints) -> None:
        for row in rows.tolist():
            self.starts.pop(row, None)
        self.is_random[rows] = self.is_truncated[rows] = self.asks_logprobs[rows] = False

    def temperature(self, call: Call) -> Tensor:
        return self._temperature[index(call.rows, self._device)]

    def limits(self, call: Call) -> Limits:
        row = index(call.rows, self._device)
        return Limits(self._top_k[row], self._min_p[row], self._top_p[row])

    def noise_keys(self, call: Call) -> NoiseKeys:
        low, high, sample = self._key[index(call.rows, self._device)].unbind(1)
        return NoiseKeys(low, high, sample, index(call.positions, self._device))
