"""Other uses of the logits of a block than the device's draw: logprobs that do not fit into an
entry, candidates of beams, and draws by the sampler.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from quire.executor.cuda.beams import CudaBeams
from quire.executor.cuda.more_scores import MoreScores
from quire.executor.cuda.sampler_draws import LateDraws, SamplerDraws
from quire.executor.cuda.step import Extras
from quire.executor.cuda.upload import Upload
from quire.request import Ints
from quire.step import StepPlan
from quire.steps.row_schema import UNSOUND


@dataclass(frozen=True, slots=True)
class Lookers:
    """The parts that may use logits."""

    more: MoreScores
    beams: CudaBeams
    draws: SamplerDraws


@dataclass(frozen=True, slots=True)
class Block:
    """Lines of logits of a plan, for `rows`; the token of rows[i] will have position positions[i].
    Its first line is line `first` of the result."""

    name: str
    rows: Ints
    positions: Ints
    first: int


class NoLooks:
    """For plans without other uses of logits, which is nearly all."""

    replaces, num_steps = False, 0

    def replace(self, logits: Tensor, tokens: Tensor, failed: Tensor, step: int) -> None:
        pass

    def look(self, logits: Tensor, tokens: Tensor, made: Tensor, step: int) -> None:
        pass


class Looks:
    """What one block of a plan needs. Made before the upload is sent."""

    def __init__(
        self,
        lookers: Lookers,
        plan: StepPlan,
        block: Block,
        upload: Upload,
        extras: Extras,
        late: LateDraws,
    ) -> None:
        self._lookers, self._plan, self._block = lookers, plan, block
        self._upload, self._extras, self._late = upload, extras, late
        name, lines = block.name, (block.rows, block.positions, block.first)
        self._more = lookers.more.pack(upload, name, block.rows, block.first)
        self._later = lookers.draws.pack(upload, f"late {name}", *lines, late=True)
        self._now = lookers.draws.pack(upload, f"now {name}", *lines, late=False)
        self._searched = lookers.beams.searched(plan, upload, f"searched {name}", block.rows)

    @property
    def replaces(self) -> bool:
        """Whether the sampler draws for some rows in every step, before tokens are accepted."""
        return bool(self._now)

    @property
    def num_steps(self) -> int:
        """For how many of the plan's steps, from the first on, logits are used."""
        if self._more or self._now:
            return self._plan.repeat
        return self._num_kept or int(len(self._searched) > 0)

    @property
    def _num_kept(self) -> int:
        """Rows for which the sampler draws late freeze after the first step, or those they try."""
        if not self._later:
            return 0
        mine = np.isin(self._plan.tried, self._later.rows)
        return int(self._plan.num_tried[mine].max(initial=1))

    def replace(self, logits: Tensor, tokens: Tensor, failed: Tensor, step: int) -> None:
        """Called between draw and accept: put in the tokens that the sampler draws."""
        if not self._now:
            return
        draws, masks = self._lookers.draws, self._plan.masks
        at, sampled = draws.now(self._now, self._upload, logits, step, masks)
        tokens[at] = sampled.tokens.to(tokens.device)
        failed[at] = 0
        failed[at[list(sampled.failed)]] = UNSOUND
        self._extras.add(sampled, self._now.lines)

    def look(self, logits: Tensor, tokens: Tensor, made: Tensor, step: int) -> None:
        """Called after a draw, with the token of each line, and what the row made of it
        (row_schema.py)."""
        lookers, upload, extras = self._lookers, self._upload, self._extras
        extras.more_copies += lookers.more.score(self._more, upload, logits, tokens, step)
        if step < self._num_kept:
            lookers.draws.keep(self._late, self._later, upload, logits, made)
        if len(self._searched) and step == 0:
            lines = upload.take(f"searched {self._block.name}")
            rows = self._block.rows[self._searched]
            numbers = self._searched + np.int32(self._block.first)
            extras.candidates.append(lookers.beams.rank(self._plan, lines, rows, numbers, logits))
