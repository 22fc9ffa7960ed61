"""Which row draws from which line of a pass's logits, and which lines count after guesses.

A decode row has one line, and so has each row that draws at the end of a slice. A slice with
guesses has a line for its last token that is no guess, and one for each guess. A line counts if all
lines before it drew the token that was guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from quire.request import Ints
from quire.sampling.sampled import Sampled
from quire.step import DrawnScores, Slice

Lines = npt.NDArray[np.int64]

NO_GUESS = -1  # no token has this id


@dataclass(frozen=True, slots=True)
class Draws:
    """A slice [7 8 9] that two siblings draw from, a slice [5 6] whose 6 is a guess, both from
    position 0 on, and a decode row at position 4:

    entries    [0 1 | 2 2 | 3]     which row of the result a line belongs to
    positions  [3 3 | 1 2 | 5]     where the token stands that is drawn from it
    guesses    [- - | 6 - | -]     what must be drawn for the next line to count
    """

    entries: Lines
    positions: Ints
    guesses: Ints

    @classmethod
    def of(cls, slices: Sequence[Slice], decode_entries: Lines, decode_positions: Ints) -> Draws:
        entries: list[int] = []
        positions: list[int] = []
        guesses: list[int] = []
        number = 0
        for one in slices:
            end, count = one.start + len(one.token_ids), one.num_guessed
            for _ in one.sample_into:
                entries += [number] * (1 + count)
                positions += range(end - count, end + 1)
                guesses += one.token_ids[len(one.token_ids) - count :].tolist()
                guesses.append(NO_GUESS)
                number += 1
        nothing = np.full(len(decode_entries), NO_GUESS, np.int32)
        return cls(
            np.concatenate([np.array(entries, np.int64), decode_entries]),
            np.concatenate([np.array(positions, np.int32), decode_positions + np.int32(1)]),
            np.concatenate([np.array(guesses, np.int32), nothing]),
        )

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def first_lines(self) -> Lines:
        return np.flatnonzero(np.diff(self.entries, prepend=-1))


def most_drawn(slices: Sequence[Slice]) -> int:
    """The most tokens that one row may draw in a pass with these slices."""
    return max((1 + one.num_guessed for one in slices), default=1)


def part_of(sampled: Sampled, lines: Lines) -> Sampled:
    """What these lines drew, in this order."""
    place = {line: i for i, line in enumerate(lines.tolist())}
    return Sampled(
        sampled.tokens[torch.from_numpy(lines).to(sampled.tokens.device)],
        tuple(_part(block, lines) for block in sampled.logprobs),
        tuple(place[line] for line in sampled.failed if line in place),
        {place[line]: one for line, one in sampled.held.items() if line in place},
        {place[line]: one for line, one in sampled.errors.items() if line in place},
        tuple(place[line] for line in sampled.left_none if line in place),
    )


def _part(block: DrawnScores, lines: Lines) -> DrawnScores:
    """The scores of those lines that are in `lines`, each with its index in `lines`."""
    order = np.argsort(lines)
    at = np.searchsorted(lines, block.lines, sorter=order).clip(max=len(lines) - 1)
    places = order[at]
    here = np.flatnonzero(lines[places] == block.lines)
    return DrawnScores(places[here].astype(np.int32), block.scores.take(here))
