"""Lists of tokens per row: short lists by token, long lists as offsets over the vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.request import Ints
from quire.sampling.rows import Flags, Lines
from quire.sampling.scan import index
from quire.step import Floats

Answer = TypeVar("Answer")
_MOST_PARTS = 8


class Asked(Generic[Answer]):
    """Keeps look-ups by rows: decode asks for the same rows step after step, and if they are many,
    for one part of them after another."""

    def __init__(self) -> None:
        self._answers: dict[bytes, Answer] = {}

    def of(self, rows: Lines, look_up: Callable[[Lines], Answer]) -> Answer:
        key = rows.tobytes()
        if key not in self._answers:
            if len(self._answers) == _MOST_PARTS:
                self._answers.clear()
            self._answers[key] = look_up(rows)
        return self._answers[key]

    def clear(self) -> None:
        """Forget all look-ups, because rows changed."""
        self._answers.clear()


class RowTokens:
    """Token ids of some rows, each with an optional number.

    {row 3: [7 9], row 5: [7]} asked for lines whose rows are [5 4 3] -> line [0 2 2], token [7 7 9]
    """

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self._device = device
        self._tokens: dict[int, npt.NDArray[np.int64]] = {}
        self._numbers: dict[int, npt.NDArray[np.float32]] = {}
        self.has: Flags = np.zeros(max_rows, np.bool_)
        self._known = Asked[tuple[Tensor, Tensor, Tensor]]()

    def set(self, row: int, tokens: Sequence[int] | Ints, numbers: Floats | None = None) -> None:
        self._tokens[row] = np.asarray(tokens, np.int64)
        self._numbers[row] = np.asarray(np.zeros(len(tokens)) if numbers is None else numbers, "f4")
        self.has[row] = True
        self._known.clear()

    def end(self, rows: Ints) -> None:
        if not self._tokens:  # the usual case: every row that begins calls this
            return
        for row in rows[self.has[rows]].tolist():
            del self._tokens[row], self._numbers[row]
            self._known.clear()
        self.has[rows] = False

    def at(self, rows: Lines) -> tuple[Tensor, Tensor, Tensor] | None:
        """(line, token, number) of every token of these rows; None where there is none."""
        return self._known.of(rows, self._look_up) if self.has[rows].any() else None

    def _look_up(self, rows: Lines) -> tuple[Tensor, Tensor, Tensor]:
        lines = np.flatnonzero(self.has[rows])
        tokens = [self._tokens[row] for row in rows[lines].tolist()]
        numbers = np.concatenate([self._numbers[row] for row in rows[lines].tolist()])
        return (
            index(np.repeat(lines, [len(some) for some in tokens]), self._device),
            index(np.concatenate(tokens), self._device),
            torch.from_numpy(numbers).to(self._device),
        )


class RowOffsets:
    """Numbers that some rows add to all tokens' logits; rows with the same list share them."""

    def __init__(self, *, vocab_size: int, max_rows: int, device: torch.device) -> None:
        self._vocab_size, self._device = vocab_size, device
        self._of: dict[int, tuple[Ints, Tensor]] = {}  # by row, with the list it was made from
        self.has: Flags = np.zeros(max_rows, np.bool_)
        self._newest: tuple[Ints, Tensor] | None = None

    def takes(self, tokens: Ints) -> bool:
        """Whether offsets take less memory than such a list: 4 bytes a token against 12."""
        return 3 * len(tokens) >= self._vocab_size

    def set(self, row: int, tokens: Ints, numbers: Floats | float, others: float) -> None:
        if self._newest is None or self._newest[0] is not tokens:
            offsets = np.full(self._vocab_size, others, np.float32)
            offsets[tokens] = numbers
            self._newest = tokens, torch.from_numpy(offsets).to(self._device)
        self._of[row] = self._newest
        self.has[row] = True

    def end(self, rows: Ints) -> None:
        if not self._of:
            return
        for row in rows[self.has[rows]].tolist():
            del self._of[row]
        self.has[rows] = False
        if not self._of:
            self._newest = None

    def add_to(self, logits: Tensor, rows: Lines) -> None:
        groups: dict[int, list[int]] = {}
        for line in np.flatnonzero(self.has[rows]).tolist():
            groups.setdefault(id(self._of[int(rows[line])]), []).append(line)
        for lines in groups.values():
            offsets = self._of[int(rows[lines[0]])][1]
            if len(lines) == len(rows):
                logits += offsets
            else:
                logits[index(lines, self._device)] += offsets
