"""How many blocks requests will hold, computed from their counts of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quire.cache.groups import Windows, window_groups


@dataclass(slots=True)
class Counted:
    """A request as counts, and its progress in the simulation. It holds blocks together with its
    groups (the first `shared` of its prompt), and `own` blocks of its own."""

    prompt: int
    cached: int
    outputs: int
    samples: int = 1
    shared: int = 0
    groups: tuple[int, ...] = ()
    number: int = 0  # in order of admission
    start: int = 0  # the step it was admitted at
    computed: int = 0
    own: int = 0

    @property
    def last_length(self) -> int:
        """Tokens in the cache at the end: the last one drawn is never fed."""
        return self.prompt + self.outputs - 1


class Footprint:
    """Turns blocks of one group of layers that sees everything into blocks of all groups."""

    def __init__(self, windows: Windows, block_size: int) -> None:
        self.num_full = windows.count(None)
        # (number of groups, most blocks a row has in one of them) for each kind of window.
        self.limits = [(g.count, g.most_held(block_size) + 1) for g in window_groups(windows)]

    def of(self, blocks: int) -> int:
        limited = sum(num_groups * min(blocks, most) for num_groups, most in self.limits)
        return self.num_full * blocks + limited

    def of_each(self, blocks: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        total = self.num_full * blocks
        for num_groups, most in self.limits:
            total = total + num_groups * np.minimum(blocks, most)
        return total


class Outlook:
    """Blocks that running requests will hold at each coming step, without those of groups.

    A row of 6 tokens, none cached, with 3 to come, block_size 4, from step 10 on:
        blocks[10:13] += [6/4, 7/4, 8/4]
    """

    def __init__(self, block_size: int, longest: int, footprint: Footprint) -> None:
        self.block_size, self.footprint = block_size, footprint
        self.blocks = np.zeros(2 * longest + 1024, np.float64)
        self.ramp = np.arange(longest + 1) / block_size

    def add(self, request: Counted, step: int, sign: int = 1) -> None:
        """`request` begins to write at `step`; with sign -1 that is taken back."""
        end = step + request.outputs
        if end > len(self.blocks):
            self.blocks = np.concatenate([self.blocks, np.zeros(end, np.float64)])
        self.blocks[step:end] += sign * self._growth(request)

    def peak_with(self, request: Counted, step: int, used: int, lacking: int) -> float:
        """The most blocks in use while `request` runs, of which `used` are in use now."""
        coming = self.blocks[step : step + request.outputs]
        have = -(-request.prompt // self.block_size) - request.shared
        growth = request.samples * self._grown(have, len(coming))
        return used - float(self.blocks[step]) + lacking + float((coming + growth).max(initial=0.0))

    def _growth(self, request: Counted) -> npt.NDArray[np.float64]:
        own = -(-request.prompt // self.block_size) - request.cached // self.block_size
        return self.footprint.of(own) + request.samples * self._grown(own, request.outputs)

    def _grown(self, have: int, count: int) -> npt.NDArray[np.float64]:
        """How many more blocks a row with `have` blocks takes, token by token."""
        ramp = self.ramp[:count]
        if not self.footprint.limits:
            return self.footprint.num_full * ramp
        return self.footprint.of_each(have + ramp) - self.footprint.of(have)
