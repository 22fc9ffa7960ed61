"""Grammars that the device follows by itself: their states, and a line of allowed tokens for each.

A grammar is sent with the first row that uses it. A row then draws with the mask of its state, and
each token takes it to the next state, without the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.request import Ints
from quire.step import RowStart
from quire.steps.automata import AutomatonPlace, AutomatonRoom, TokenTexts

ABOUT = 3  # per state: whether it ends, whether it accepts, its only token
Bytes = npt.NDArray[np.uint8]


class MakesLines(Protocol):
    def make_lines(self, first: int, count: int) -> None:
        """Make the masks (lines of bits) of `count` states from `first` on."""


class DeviceAutomata:
    """The states of all grammars, each at the place in the tables that the host gives it."""

    def __init__(self, num_states: int, vocab_size: int, device: torch.device) -> None:
        self._num_states, self._vocab_size, self._device = num_states, vocab_size, device
        self._room: AutomatonRoom | None = None
        self._there: set[int] = set()
        self._texts: TokenTexts | None = None
        self._tables: tuple[Tensor, Tensor] | None = None  # allocated with the first grammar
        self._vocabulary: tuple[Tensor, Tensor, Tensor] | None = None

    @property
    def tables(self) -> tuple[Tensor, Tensor]:
        """follows [states, 256] and about [3, states], int32."""
        if self._tables is None:
            sizes, device = ((self._num_states, 256), (ABOUT, self._num_states)), self._device
            with torch.inference_mode(False):
                follows, about = (
                    torch.full(s, -1, dtype=torch.int32, device=device) for s in sizes
                )
            self._tables = follows, about
        return self._tables

    @property
    def vocabulary(self) -> tuple[Tensor, Tensor, Tensor]:
        """offsets [vocabulary + 1] int32, the bytes of all tokens, and the bits of end tokens."""
        if self._vocabulary is None:
            raise RuntimeError("no state is walked from before a grammar has come")
        return self._vocabulary

    def bring(
        self, starts: Sequence[RowStart], room: AutomatonRoom | None, ops: MakesLines
    ) -> None:
        """Send the grammars of these rows that are not on the device."""
        for number in {start.automaton for start in starts} - self._there - {0}:
            if room is None:
                raise RuntimeError("a row follows a grammar in a room that is not there")
            place = room.place(number)
            self.learn(place.grammar.texts)
            self._copy(place)
            self._there = (self._there & room.numbers) | {number}
            ops.make_lines(place.first, len(place.grammar))

    def _copy(self, place: AutomatonPlace) -> None:
        grammar, here = place.grammar, slice(place.first, place.first + len(place.grammar))
        follows, about = self.tables
        moved = np.where(grammar.follows < 0, -1, grammar.follows + place.first)
        told = np.stack([grammar.ends, grammar.accepts, grammar.forced]).astype(np.int32)
        follows[here].copy_(self._sent(moved.astype(np.int32)))
        about[:, here].copy_(self._sent(told))

    def learn(self, texts: TokenTexts) -> None:
        """Send the vocabulary. It stays the same, at one address."""
        if self._texts is texts:
            return
        ends = np.zeros(-(-self._vocab_size // 32) * 32, np.uint8)
        ends[list(texts.end_ids)] = 1
        end_bits = np.packbits(ends, bitorder="little").view(np.int32)
        given: tuple[Ints | Bytes, ...] = (texts.offsets, texts.texts, end_bits)
        sent = tuple(self._sent(one) for one in given)
        if self._vocabulary is None:
            with torch.inference_mode(False):
                offsets, bytes_, bits = (torch.empty_like(one) for one in sent)
            self._vocabulary = offsets, bytes_, bits
        for mine, one in zip(self._vocabulary, sent, strict=True):
            mine.copy_(one)
        self._texts = texts

    def _sent(self, array: Ints | Bytes) -> Tensor:
        """Copy to the device without waiting."""
        made = torch.from_numpy(array.copy())
        if self._device.type == "cuda":
            made = made.pin_memory()
        return made.to(self._device, non_blocking=True)
