"""Will the pool be large enough, if this one joins? Predicted, not promised.

Every running row grows by a token a step until its expected end, where its own blocks come
back. Memory peaks just before one of these ends, so it is enough to look there. Rows may run
longer than expected: then someone is preempted, and nothing is lost but time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def peak_blocks(
    used: int,
    own: npt.NDArray[np.float64],
    remaining: npt.NDArray[np.float64],
    count: npt.NDArray[np.float64],
    block_size: int,
) -> float:
    """The most blocks that will be in use at once.

    `used` now; `own[i]` blocks return when row i ends, after `remaining[i]` more tokens;
    it stands for `count[i]` rows that grow alike (a prompt and the samples to be forked off).
    block_size 4, used 5, own [2, 3], remaining [4, 12], one each: after 4 steps 5 + 1 + 1 = 7
    blocks, then row 0 returns 2 + 1; after 12 steps row 1 has grown by 3: 5 - 2 + 3 = 6. Peak 7.
    """
    if not len(own):
        return float(used)
    longest_first = np.argsort(-remaining)
    left = remaining[longest_first]
    alive = np.cumsum(count[longest_first])
    returned = own.sum() - np.cumsum(own[longest_first])
    return float(np.max(used + alive * left / block_size - returned))
