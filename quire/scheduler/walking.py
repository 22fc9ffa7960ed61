"""Rows whose grammar the device follows by itself: what becomes of what they drew.

Such a row is planned as one without a grammar: it needs no mask, and draws as many tokens as the
others do before the host sees one. Its guide stands where it began; the state it has come to is a
number, and the tokens of all rows are judged together, by the table that the device walks, too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quire.errors import GrammarFailed
from quire.request import Ints
from quire.scheduler.rows import Rows
from quire.scheduler.stopping import UNFINISHED, stop_by_id
from quire.steps.automata import DEAD, AutomatonRoom


def judge_walks(
    rows: Rows, room: AutomatonRoom, at: Ints, tokens: Ints, counts: Ints
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """How many of their new tokens these rows keep, and which of them end there, as `judge` of
    stopping.py says it of one; the finish reasons of those are set. tokens [rows, K]."""
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
