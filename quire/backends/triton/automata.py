"""Grammars that the device follows by itself: makes masks (lines of bits) for states, and takes
rows from state to state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import triton

from quire.backends.triton.automata_kernels import make_lines, walk

if TYPE_CHECKING:
    from torch import Tensor

_TOKENS = 1024  # tokens of a program that makes masks
_WIDTH = 32  # rows of a program
LINES_CONSTANTS: dict[str, Any] = {"TOKENS": _TOKENS, "num_warps": 4}
WALK_CONSTANTS: dict[str, Any] = {"WIDTH": _WIDTH, "num_warps": 1}


@dataclass(frozen=True, slots=True)
class States:
    """follows [states, 256] and about [3, states] int32, and the texts of tokens: offsets [vocab
    + 1] int32, their bytes uint8, and the bits [words] int32 of the end tokens. See
    automata_kernels.py."""

    follows: Tensor
    about: Tensor
    offsets: Tensor
    texts: Tensor
    end_bits: Tensor


def make_state_lines(
    states: States, masks: Tensor, first_line: int, first: int, count: int
) -> None:
    """Fill the lines of `count` states from `first` on; of `masks` [lines, words] int32 those from
    `first_line` on are of states."""
    vocab = states.offsets.shape[0] - 1
    make_lines[(count, triton.cdiv(vocab, _TOKENS))](
        *(states.follows, states.about, states.offsets, states.texts, states.end_bits, masks),
        *(first_line, first, states.about.stride(0), masks.stride(0), vocab),
        **LINES_CONSTANTS,
    )


def walk_states(
    states: States,
    places: Tensor,
    rows: Tensor,
    tokens: Tensor,
    failed: Tensor,
    columns: Tensor,
    ints: Tensor,
    first_line: int,
) -> None:
    """Row rows[places[i]] drew the token of that place. If it draws by the line of a state, its
    `columns` (edit.py) name that of its next state then, or `ints` (steps.py) that it rests."""
    count = places.shape[0]
    walk[(triton.cdiv(count, _WIDTH),)](
        *(places, rows, tokens, failed, columns, ints),
        *(states.follows, states.about, states.offsets, states.texts),
        *(first_line, columns.stride(0), ints.stride(0), count),
        **WALK_CONSTANTS,
    )
