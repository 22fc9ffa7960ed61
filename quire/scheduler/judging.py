"""Which of their new tokens rows keep, and which rows end with them.

Ids and lengths are judged for all rows at once. Then rows whose grammar the device follows are
judged by the same table that the device used, and the rest by Python: rows with a grammar and one
new token together, then rows with stop strings or long lists of stop ids, row by row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.errors import GrammarFailed
from quire.request import Ints
from quire.scheduler.pacing import Jump
from quire.scheduler.rows import Rows
from quire.scheduler.stopping import (
    UNFINISHED,
    AcceptAll,
    judge,
    judge_ahead,
    judge_together,
    num_kept,
    stop_by_id,
)
from quire.step import StepResult
from quire.steps.automata import DEAD, AutomatonRoom


@dataclass(frozen=True, slots=True)
class Drawn:
    """New tokens of the rows that still hold the placement they were drawn for. Row rows[i], which
    is line lines[i] of the result, drew the first counts[i] of tokens[i]; it keeps kept[i] of
    these, and where ended[i] it ends with them."""

    lines: npt.NDArray[np.int64]
    rows: Ints
    tokens: Ints
    counts: Ints
    kept: Ints
    ended: npt.NDArray[np.bool_]

    def going_on(self, wanted: npt.NDArray[np.bool_]) -> list[int]:
        """The rows with new tokens that do not end, of those whose column `wanted` is true."""
        found: list[int] = self.rows[wanted[self.rows] & ~self.ended & (self.kept > 0)].tolist()
        return found


def judged(
    rows: Rows,
    at: Ints,
    lines: npt.NDArray[np.int64],
    result: StepResult,
    accept_all: AcceptAll,
) -> Drawn:
    """What the rows `at` drew, which are these lines of a result. Sets the finish reason of rows
    that end by more than ids and lengths."""
    tokens, counts = result.tokens[lines], result.counts[lines]
    drawn = Drawn(lines, at, tokens, counts, *num_kept(rows, at, tokens, counts))
    walking = np.flatnonzero(rows.automaton[at])
    if len(walking) and rows.automata is not None:
        drawn.kept[walking], drawn.ended[walking] = judge_walks(
            rows, rows.automata, at[walking], tokens[walking], counts[walking]
        )
    visited = np.flatnonzero(rows.visited[at])
    # A row that an id or the length may end is judged by itself, as a complete grammar matters.
    ahead = rows.follows[at[visited]] & (counts[visited] > 1)
    together = rows.follows[at[visited]] & (counts[visited] == 1) & ~drawn.ended[visited]
    _judge_together(rows, drawn, visited[together], accept_all)
    _judge_ahead(rows, drawn, visited[ahead])
    _judge_each(rows, drawn, visited[~(together | ahead)])
    return drawn


def _judge_together(
    rows: Rows, drawn: Drawn, some: npt.NDArray[np.int64], accept_all: AcceptAll
) -> None:
    """Judge rows that drew one token each and follow grammars, in one call."""
    if not len(some):
        return
    sequences = [rows.sequence(row) for row in drawn.rows[some].tolist()]
    drawn.kept[some] = judge_together(sequences, drawn.tokens[some, 0].tolist(), accept_all)
    drawn.ended[some] = [sequence.finish_reason is not None for sequence in sequences]


def _judge_ahead(rows: Rows, drawn: Drawn, some: npt.NDArray[np.int64]) -> None:
    """Judge rows that drew several tokens, the first with a mask and the others without."""
    at = drawn.rows[some]
    written, spells = (rows.known - rows.num_prompt)[at], rows.jumps[at] != Jump.NEVER
    for i, row, before, one in zip(*(a.tolist() for a in (some, at, written, spells)), strict=True):
        sequence, tokens = rows.sequence(row), drawn.tokens[i, : drawn.counts[i]].tolist()
        drawn.kept[i] = judge_ahead(sequence, tokens, before, spells=one)
        drawn.ended[i] = sequence.finish_reason is not None


def _judge_each(rows: Rows, drawn: Drawn, some: npt.NDArray[np.int64]) -> None:
    for i in some.tolist():
        row = int(drawn.rows[i])
        sequence = rows.sequence(row)
        tokens = drawn.tokens[i, : drawn.counts[i]].tolist()
        num_outputs = int(rows.known[row] - rows.num_prompt[row])
        repeats = sequence.request.params.detects_repetition
        written = rows.outputs[row, :num_outputs] if repeats else None
        drawn.kept[i] = judge(sequence, tokens, num_outputs, written)
        drawn.ended[i] = sequence.finish_reason is not None


# A row whose grammar the device follows by itself is planned like one without a grammar: it needs
# no mask, and draws as many tokens as others before the host sees one. Its guide stays where the
# placement began; how far the row has come is the number `state`.
def judge_walks(
    rows: Rows, room: AutomatonRoom, at: Ints, tokens: Ints, counts: Ints
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """How many of their new tokens these rows keep, and which of them end there, by the rule of
    `judge` in stopping.py; sets the finish reasons of those. tokens [rows, K]."""
    states, kept, ended = rows.state[at], counts.copy(), np.zeros(len(at), np.bool_)
    going = np.arange(len(at))
    for k in range(int(counts.max(initial=0))):
        going = going[counts[going] > k]
        mine, drawn, before = at[going], tokens[going, k], states[going]
        lengths = rows.known[mine] + k + 1
        stops = (drawn[:, None] == rows.stop_ids[mine]).any(axis=1) & (lengths >= rows.least[mine])
        stops &= room.accepts[before]
        states[going] = after = room.walk(before, drawn)
        refused = after == DEAD
        over = stops | refused | room.ends[after] | (lengths >= rows.limit[mine])
        for i in np.flatnonzero(over).tolist():
            row, token = int(mine[i]), int(drawn[i])
            sequence = rows.sequence(row)
            if stops[i]:
                stop_by_id(sequence, token)
            elif refused[i]:
                sequence.finish_reason = "error"
                sequence.error = GrammarFailed(f"token {token} is not allowed by the grammar")
            elif room.ends[after[i]]:
                sequence.finish_reason = "stop"
            else:
                sequence.finish_reason = "length"
                sequence.stop_reason = None if room.accepts[after[i]] else UNFINISHED
        kept[going[over]], ended[going[over]] = k + 1, True
        going = going[~over]
    rows.state[at] = states
    return kept, ended
