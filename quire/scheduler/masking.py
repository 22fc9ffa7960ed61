"""Which rows of a plan draw by a mask, and who fills it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many

import numpy as np

from quire.request import Ints
from quire.scheduler.draft import Draft
from quire.scheduler.rows import Rows
from quire.scheduler.sequence import Guide
from quire.step import Masks

MakeMasks = Callable[[Ints, Many[Guide]], Masks]


def masks_of(rows: Rows, draft: Draft, at: Ints, make_masks: MakeMasks | None) -> Masks | None:
    """The masks of all rows that draw in this plan and follow a grammar: those of its slices, and
    the rows `at`."""
    drawing = [row for s in draft.prefill for row in s.sample_into if rows.guided[row]]
    drawing += at[rows.guided[at]].tolist()
    if not drawing or make_masks is None:
        return None
    guides = [rows.sequence(row).guide for row in drawing]
    return make_masks(np.array(drawing, np.int32), [g for g in guides if g is not None])
