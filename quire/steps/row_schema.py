"""The state of a row on a device between steps, as columns of integers. Code that fills, keeps or
reads them uses this one numbering. No torch."""

from __future__ import annotations

from enum import IntEnum

from quire.step import RowStart

NOWHERE = -1
# Stop ids that are compared as arrays; with more of them, the host looks at the row at each step.
STOP_COLUMNS = 8
# Results have these instead of tokens; DROPPED: the token was drawn after a wrong guess; LEFT_NONE:
# it failed because its edits left no token.
RESTS, FAILED, DROPPED, LEFT_NONE = -1, -2, -3, -4
# Why a line failed, as kernels say it: its logits are not finite, nothing is above -inf in them,
# and that because its edits left nothing; 0: it did not.
UNSOUND, EMPTY, EMPTIED = 1, 2, 3


class Column(IntEnum):
    """Lines of the integer matrix [columns, rows]; the first 4 change with every token."""

    LAST_TOKEN = 0
    POSITION = 1  # of the last token, whose KV is written when it is fed
    NUM_OUTPUTS = 2
    FROZEN = 3
    MIN_TOKENS = 4
    MAX_TOKENS = 5
    STOP_IDS = 6  # the first of STOP_COLUMNS stop ids, NOWHERE after the last


NUM_CHANGING = 4
NUM_COLUMNS = Column.STOP_IDS + STOP_COLUMNS


def row_ints(start: RowStart) -> list[int]:
    """The columns of a row that starts, in the order of Column."""
    stops = start.freezing_ids[:STOP_COLUMNS].tolist()
    last = start.output_ids if len(start.output_ids) else start.prompt_ids
    return [
        int(last[-1]),
        len(start.prompt_ids) + len(start.output_ids) - 1,
        len(start.output_ids),
        0,
        start.sampling.min_tokens,
        start.max_tokens,
        *stops,
        *[NOWHERE] * (STOP_COLUMNS - len(stops)),
    ]
