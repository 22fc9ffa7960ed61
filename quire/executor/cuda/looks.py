"""What is done with the logits of a block beside the device's draw: logprobs that have no room in
an entry, candidates of beams, and what the sampler draws from.
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


@dataclass(frozen=True, slots=True)
class Lookers:
    """Those who may look at logits."""

    more: MoreScores
    beams: CudaBeams
    draws: SamplerDraws


@dataclass(frozen=True, slots=True)
class Block:
    """Lines of logits of a plan: they draw for `rows`, what rows[i] draws will stand at
    positions[i], and the first of them is line `first` of the result."""

    name: str
    rows: Ints
    positions: Ints
    first: int


class NoLooks:
    """Nobody looks at the logits, as in nearly every plan."""

    replaces, num_steps = False, 0

    def replace(self, logits: Tensor, tokens: Tensor, failed: Tensor, step: int) -> None:
        pass

    def look(self, logits: Tensor, tokens: Tensor, made: Tensor, step: int) -> None:
        pass


class Looks:
    """What one block of a plan asks for. Made before the upload is sent."""

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
        """The sampler draws for some rows in every step, before tokens are judged."""
        return bool(self._now)

    @property
    def num_steps(self) -> int:
        """Of the plan's steps so many, from the first on, have their logits looked at."""
        if self._more or self._now:
            return self._plan.repeat
        return self._num_kept or int(len(self._searched) > 0)

    @property
    def _num_kept(self) -> int:
        """Whoever the host draws for rests after the first step, or after some that it tries."""
        if not self._later:
            return 0
        mine = np.isin(self._plan.tried, self._later.rows)
        return int(self._plan.num_tried[mine].max(initial=1))

    def replace(self, logits: Tensor, tokens: Tensor, failed: Tensor, step: int) -> None:
        """Between the draw and the judgement: put in what the sampler draws."""
        if not self._now:
            return
        draws, masks = self._lookers.draws, self._plan.masks
        at, sampled = draws.now(self._now, self._upload, logits, step, masks)
        tokens[at] = sampled.tokens.to(tokens.device)
        failed[at] = False
        failed[at[list(sampled.failed)]] = True
        self._extras.add(sampled, self._now.lines)

    def look(self, logits: Tensor, tokens: Tensor, made: Tensor, step: int) -> None:
        """After a draw: of each line the token, and what the row made of it (row_schema.py)."""
        lookers, upload, extras = self._lookers, self._upload, self._extras
        extras.more_letters += lookers.more.score(self._more, upload, logits, tokens, step)
        if step < self._num_kept:
            lookers.draws.keep(self._late, self._later, upload, logits, made)
        if len(self._searched) and step == 0:
            lines = upload.take(f"searched {self._block.name}")
            rows = self._block.rows[self._searched]
            numbers = self._searched + np.int32(self._block.first)
            extras.candidates.append(lookers.beams.rank(self._plan, lines, rows, numbers, logits))
