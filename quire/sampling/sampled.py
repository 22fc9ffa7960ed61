"""What a sampler returns, and the kernels that it may draw with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from torch import Tensor

from quire.step import DrawnScores, join_scores


@dataclass(frozen=True, slots=True)
class Sampled:
    """tokens [lines], int64, on the device or the host; logprobs of lines that asked; lines that
    failed.

    A line fails when its logits have NaN or +inf or are all -inf, when its constraints leave no
    token, or when a processor failed, which `errors` then describes. Its token is 0 and means
    nothing. A line in `held` has not drawn yet, and has not failed. `left_none` are those of the
    failed whose constraints left no token.
    """

    tokens: Tensor
    logprobs: tuple[DrawnScores, ...]
    failed: tuple[int, ...]
    held: Mapping[int, int] = field(default_factory=dict)  # {line: number in Handles}
    errors: Mapping[int, str] = field(default_factory=dict)
    left_none: tuple[int, ...] = ()


class DrawLines(Protocol):
    """Kernels of a device that draw, and have the parameters of its rows."""

    def __call__(
        self, logits: Tensor, rows: Tensor, next_at: Tensor, *, truncated: bool
    ) -> tuple[Tensor, Tensor]:
        """Draw a token (int64) per line, for rows[i] (int32), whose position is next_at[i] (int32);
        also returns which lines failed. The next call may overwrite both."""


def left_no_token(failed: Sequence[int], raw: Tensor) -> tuple[int, ...]:
    """The failed lines whose own logits, `raw`, are sound: edits ruled out all their tokens."""
    if not failed:
        return ()
    sound = raw[list(failed)].amax(1).isfinite().tolist()
    return tuple(line for line, one in zip(failed, sound, strict=True) if one)


def joined_blocks(blocks: Sequence[DrawnScores]) -> tuple[DrawnScores, ...]:
    """One block for each number of likeliest tokens, the lines of a row in their order."""
    by_width: dict[int, list[DrawnScores]] = {}
    for block in blocks:
        by_width.setdefault(block.scores.top_ids.shape[1], []).append(block)
    return tuple(
        DrawnScores(np.concatenate([b.lines for b in some]), join_scores([b.scores for b in some]))
        for some in by_width.values()
    )
