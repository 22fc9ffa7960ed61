"""Which tokens of a pass need logits, because a next token is drawn from them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quire.step import Slice

Longs = npt.NDArray[np.int64]


def logit_tokens_of(
    prefill: Sequence[Slice], num_decode: int, query_starts: Longs
) -> tuple[Longs, Longs]:
    """The tokens that need logits (the last of a sequence, and one more for each guess), and for
    each row that draws the index of its logits among them.

    Slices ending at tokens 4 (three siblings draw) and 9 (nothing is drawn), two decode rows at 10
    and 11 -> [4 10 11], [0 0 0 1 2]. A slice ending at 4 with two guesses -> [2 3 4], [0 1 2].
    """
    num_lines = [1 + s.num_guessed if s.sample_into else 0 for s in prefill] + [1] * num_decode
    num_draws = [len(s.sample_into) for s in prefill] + [1] * num_decode
    lines = np.arange(sum(num_lines))
    from_the_end = np.repeat(np.cumsum(num_lines), num_lines) - lines
    draws = np.repeat(lines, np.repeat(num_draws, num_lines))
    return np.repeat(query_starts[1:], num_lines) - from_the_end, draws
