"""How long answers become: learned from finished answers, those that were cut off included.

An answer that ended by itself shows its length; one that hit max_tokens only shows that it
would be longer. From both follows the share of answers still going after t tokens (the product,
over the lengths seen, of the share that did not end there), and from that the mean length
under any max_tokens.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from quire.request import Request

MEMORY = 4096  # answers remembered
# Before any answer was seen, so many are assumed to be endless: one long answer more or less should
# not change the plan, and as long as nothing is known max_tokens is the safe guess.
UNSEEN = 4.0


def is_certain(request: Request) -> bool:
    """Whether only max_tokens can end the request."""
    return not (request.eos_ids or request.stop_ids or request.params.stop)


class OutputLengths:
    """Expected number of output tokens per request."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, bool]] = deque(maxlen=MEMORY)
        self._tables: tuple[npt.NDArray[np.float64], ...] = ()
        self._num_new = 0  # seen since the tables were made

    def observe(self, request: Request, num_tokens: int, *, stopped: bool) -> None:
        """An answer has `num_tokens`; `stopped`: it ended by itself, not by max_tokens."""
        if not is_certain(request):
            self._seen.append((num_tokens, stopped))
            self._num_new += 1

    def expected(self, request: Request) -> float:
        """Mean output tokens of one sample of `request`; max_tokens where nothing else ends it."""
        if is_certain(request) or not self._seen:
            return float(request.max_tokens)
        if not self._tables or self._num_new > len(self._seen) // 16:
            self._tables, self._num_new = self._survival(), 0
        times, alive, means = self._tables
        # alive[k] holds from times[k] on; means[k] is the mean length cut off at times[k].
        k = int(np.searchsorted(times, request.max_tokens, side="right")) - 1
        mean = means[k] + alive[k] * (request.max_tokens - times[k])
        return float(max(1.0, request.params.min_tokens, mean))

    def _survival(self) -> tuple[npt.NDArray[np.float64], ...]:
        lengths, stopped = np.array(self._seen, np.int64).T
        times, ended_here = np.unique(lengths[stopped == 1], return_counts=True)
        reached = len(lengths) - np.searchsorted(np.sort(lengths), times) + UNSEEN
        alive = np.concatenate([[1.0], np.cumprod(1.0 - ended_here / reached)])
        times = np.concatenate([[0.0], times])
        means = np.concatenate([[0.0], np.cumsum(alive[:-1] * np.diff(times))])
        return times, alive, means
