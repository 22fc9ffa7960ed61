"""Draws from edited logits, for rows with allowed, banned, biased or penalised tokens.

Their lines are copied as float32 and edited in the copy, in the order and with the bits of
quire.sampling.sampler; then they draw from the copy like all other lines. Lines of other rows are
neither copied nor read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import triton

from quire.backends.triton.doubt_kernels import lift_limits, rest_in_doubt
from quire.backends.triton.edit_kernels import (
    copy_lines,
    edit_lines,
    give_back,
    leave_out,
    remember,
)
from quire.backends.triton.sample import SampleBuffers, SamplingColumns, sample

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MOST_LINES = 256  # most lines edited at once: the size of the scratch
_SPLITS = 8  # programs that copy a line
_WIDTH = 256
LIST_CONSTANTS = {"WIDTH": _WIDTH, "num_warps": 4}
COPY_CONSTANTS: dict[str, Any] = {"num_warps": 8}
# x - frequency * count is rounded twice, as by the sampler.
EDIT_CONSTANTS: dict[str, Any] = {"num_warps": 8, "enable_fp_fusion": False}
REMEMBER_CONSTANTS: dict[str, Any] = {"num_warps": 4}
DOUBT_CONSTANTS: dict[str, Any] = {"TILE": 4096, "num_warps": 8}


@dataclass(frozen=True, slots=True)
class RowEdits:
    """Columns [11, rows] int32, penalties [3, rows] float32, the arena their lists lie in, and the
    masks [lines, words] int32 of those that draw by one.

    ints (steps.py) are given where rows with a line of masks for themselves go ahead of it: they
    draw without limits, and freeze where that may be another token than within them."""

    columns: Tensor
    penalties: Tensor
    arena: Tensor
    masks: Tensor
    ints: Tensor | None = None


def scratch_width(vocab_size: int) -> int:
    """The width of a line: lines are aligned to 16 bytes."""
    return -(-vocab_size // 16) * 16


class EditBuffers:
    """The scratch memory, and the tokens drawn from it."""

    def __init__(self, vocab_size: int, max_rows: int, device: torch.device) -> None:
        import torch

        lines = min(MOST_LINES, max_rows)
        shape = (lines, scratch_width(vocab_size))
        self.scratch = torch.empty(shape, dtype=torch.float32, device=device)
        self.rows = torch.empty(lines, dtype=torch.int32, device=device)
        self.limited = torch.empty(lines, dtype=torch.int32, device=device)
        self.at = torch.empty(lines, dtype=torch.int32, device=device)
        self.drawn = SampleBuffers(lines, vocab_size, device)

    @property
    def max_lines(self) -> int:
        return self.rows.shape[0]


def sample_edited(
    logits: Tensor,
    rows: Tensor,
    positions: Tensor,
    columns: SamplingColumns,
    out: SampleBuffers,
    *,
    truncated: bool,
    places: Tensor,
    edits: RowEdits,
    room: EditBuffers,
) -> None:
    """As `sample`, after applying the edits of the lines `places` (int32, -1 = none); their drawn
    tokens are counted in the rows' lists. No place may occur twice."""
    ints, count, plain_rows = edits.ints, places.shape[0], rows.clone()
    leave_out[(triton.cdiv(count, _WIDTH),)](places, plain_rows, count, **LIST_CONSTANTS)
    sample(logits, plain_rows, positions, columns, out, truncated=truncated)
    for first in range(0, count, room.max_lines):
        group = places[first : first + room.max_lines]
        _edit(group, logits, rows, positions, edits, room)
        lines = group.shape[0]
        theirs, drawn = room.rows[:lines], room.drawn
        scratch, limited = room.scratch[:lines], theirs
        if ints is not None:
            limited, stride = room.limited[:lines], edits.columns.stride(0)
            lift_limits[(triton.cdiv(lines, _WIDTH),)](
                theirs, edits.columns, limited, stride, lines, **LIST_CONSTANTS
            )
        sample(scratch, theirs, room.at, columns, drawn, truncated=truncated, limited=limited)
        if ints is not None:
            rest_in_doubt[(lines,)](
                *(scratch, theirs, limited, drawn.tokens, columns.temperature, columns.top_k),
                *(columns.log_min_p, columns.top_p, ints, ints.stride(0), scratch.stride(0)),
                drawn.vocab_size,
                **DOUBT_CONSTANTS,
            )
        give_back[(triton.cdiv(lines, _WIDTH),)](
            *(group, theirs, drawn.tokens, drawn.failed, out.tokens, out.failed, lines),
            **LIST_CONSTANTS,
        )
        remember[(lines,)](
            *(theirs, drawn.tokens, drawn.failed, edits.columns, edits.arena),
            edits.columns.stride(0),
            **REMEMBER_CONSTANTS,
        )


def _edit(
    places: Tensor,
    logits: Tensor,
    rows: Tensor,
    positions: Tensor,
    edits: RowEdits,
    room: EditBuffers,
) -> None:
    """Copy and edit the lines of these places."""
    lines, columns = places.shape[0], edits.columns
    copy_lines[(lines, _SPLITS)](
        *(places, logits, rows, positions, columns, edits.masks, room.scratch, room.rows, room.at),
        *(logits.stride(0), columns.stride(0), edits.masks.stride(0), room.scratch.stride(0)),
        room.drawn.vocab_size,
        **COPY_CONSTANTS,
    )
    edit_lines[(lines,)](
        *(places, logits, room.rows, room.at, columns, edits.penalties, edits.arena, edits.masks),
        *(room.scratch, logits.stride(0), columns.stride(0), edits.masks.stride(0)),
        room.scratch.stride(0),
        **EDIT_CONSTANTS,
    )
