"""Searches lines of scores in C: the best token, and the tokens that noise may make the best.

The noise is bit for bit that of sampling/seeds.py. C returns the few tokens that may win: its
logarithms are those of the C library, so the caller decides with the exact definition.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.backends.cpu.native.header import struct
from quire.backends.cpu.native.library import TYPES, library

CANDIDATES = 16  # QUIRE_CANDIDATES
_Draw, _Best, _Cut = struct("quire_draw"), struct("quire_best"), struct("quire_cut")


@dataclass(frozen=True, slots=True)
class Border:
    """Where lines are cut: tokens with larger scores stay, and of equal scores ids up to `last`."""

    values: Tensor  # float32 [lines]
    last: Tensor  # int64 [lines]

    def take(self, lines: Tensor) -> Border:
        return Border(self.values[lines], self.last[lines])

    def masked(self, scores: Tensor) -> Tensor:
        """The scores [lines, vocab], with -inf for tokens that do not stay."""
        value, tokens = self.values[:, None], torch.arange(scores.shape[1], device=scores.device)
        out = (scores < value) | ((scores == value) & (tokens > self.last[:, None]))
        return scores.masked_fill(out, -torch.inf)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The tokens that may win their line, and which lines have too many to list."""

    line: Tensor
    token: Tensor
    score: Tensor
    uniform: Tensor
    crowded: Tensor  # [lines] bool


def can_search(scores: Tensor) -> bool:
    """Whether the functions below take these scores."""
    return (
        scores.device.type == "cpu"
        and scores.dtype in TYPES
        and scores.stride(1) == 1
        and library() is not None
    )


def best_of_lines(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Each line's best token (the lowest among equals, the first NaN if any) and its score."""
    tokens = torch.empty(len(scores), dtype=torch.int64)
    values = torch.empty(len(scores), dtype=torch.float32)
    work = _Best(
        type=TYPES[scores.dtype],
        lines=len(scores),
        vocab=scores.shape[1],
        stride=scores.stride(0),
        scores=scores.data_ptr(),
        tokens=tokens.data_ptr(),
        values=values.data_ptr(),
    )
    _loaded().quire_best_of_lines(work)
    return tokens, values


def cut_lines(
    scores: Tensor,
    top: Tensor,
    least: Tensor,
    counts: Tensor,
    shares: Tensor,
    chances: Tensor | None,
    wholes: Tensor | None,
) -> Border:
    """Where lines of scores [lines, vocab], float32, are cut; see quire_cut in quire.h."""
    lines, vocab = scores.shape
    border = Border(torch.empty(lines), torch.empty(lines, dtype=torch.int64))
    room = torch.empty(_loaded().quire_num_threads(), vocab, dtype=torch.int32)
    numbers = {"top": top.float(), "least": least, "counts": counts, "shares": shares.double()}
    given = {name: values.contiguous() for name, values in numbers.items()}
    work = _Cut(
        lines=lines,
        vocab=vocab,
        stride=scores.stride(0),
        scores=scores.data_ptr(),
        chances=_address(chances),
        wholes=_address(wholes),
        values=border.values.data_ptr(),
        last=border.last.data_ptr(),
        room=room.data_ptr(),
        **{name: values.data_ptr() for name, values in given.items()},
    )
    _loaded().quire_cut_lines(work)
    return border


def candidates(
    scores: Tensor,
    to_beat: Tensor,
    low: Tensor,
    high: Tensor,
    sample: Tensor,
    position: Tensor,
    border: Border | None = None,
) -> Candidates:
    """The tokens that may have the largest score + noise in each line of scores [lines, vocab],
    float32.

    `to_beat` [lines] is the noisy score of one token of each line. Then the words of each line's
    noise key, int64, and where lines are cut.
    """
    lines = len(scores)
    keys = [words.contiguous() for words in (low, high, sample, position)]
    to_beat = to_beat.contiguous()
    counts = torch.empty(lines, dtype=torch.int64)
    tokens = torch.empty(lines, CANDIDATES, dtype=torch.int64)
    found = torch.empty(2, lines, CANDIDATES, dtype=torch.float32)
    work = _Draw(
        lines=lines,
        vocab=scores.shape[1],
        stride=scores.stride(0),
        scores=scores.data_ptr(),
        to_beat=to_beat.data_ptr(),
        values=_address(border.values if border else None),
        last=_address(border.last if border else None),
        key_low=keys[0].data_ptr(),
        key_high=keys[1].data_ptr(),
        sample=keys[2].data_ptr(),
        position=keys[3].data_ptr(),
        counts=counts.data_ptr(),
        tokens=tokens.data_ptr(),
        found=found[0].data_ptr(),
        uniforms=found[1].data_ptr(),
    )
    _loaded().quire_draw_lines(work)
    there = torch.arange(CANDIDATES) < counts[:, None]
    line = torch.arange(lines)[:, None].expand_as(there)[there]
    return Candidates(line, tokens[there], found[0][there], found[1][there], counts < 0)


def _address(numbers: Tensor | None) -> int | None:
    return None if numbers is None else numbers.data_ptr()


def _loaded() -> ctypes.CDLL:
    found = library()
    if found is None:
        raise RuntimeError("the native library is not there; ask can_search first.")
    return found
