"""Sequence: one answer being written. `n=4` makes four that share the prompt's blocks.

While a sequence runs, its tokens and blocks are columns of the scheduler's rows
(scheduler/rows.py); a placement in a row is numbered, and preemption ends it. A Sequence holds what
outlives a placement. Only the Scheduler writes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np
from msgspec import field

from quire.request import Ints, Request
from quire.scheduler.watches import TextWatch, ThoughtWatch

if TYPE_CHECKING:
    from quire.errors import QuireError
    from quire.scheduler.score_tree import ScoreTree
    from quire.step import Floats, Scores
    from quire.steps.automata import WalkableGrammar


class SearchGroup(Protocol):
    """A beam search, as the sequences of its beams see it."""

    lead: Sequence  # waits or ends for all beams
    num_begun: int  # beams that were computed, or are being computed
    answers: list[Sequence]  # once it is over, best first

    @property
    def width(self) -> int:
        """How many beams the search may have."""

    @property
    def num_beams(self) -> int:
        """How many beams it has now."""

    @property
    def num_candidates(self) -> int:
        """Tokens that each beam offers at a step."""

    def num_rows(self, capacity: int) -> int:
        """How many of `capacity` rows it takes."""


class Guide(Protocol):
    """Follows one sequence through its grammar."""

    must_draw: list[int]  # tokens that must be drawn next: its masks allow nothing else

    @property
    def error(self) -> QuireError | None:
        """Why no token can follow, or None."""

    @property
    def is_complete(self) -> bool:
        """The text so far fulfils the grammar."""

    @property
    def is_stopped(self) -> bool:
        """Nothing but an end token may follow."""

    @property
    def may_force(self) -> bool:
        """Whether the grammar has tokens, somewhere, that must come."""

    @property
    def walkable(self) -> WalkableGrammar | None:
        """The grammar as a device follows it by itself, if one can."""

    @property
    def state(self) -> int:
        """The state of the walkable grammar that the sequence is in."""

    def accept(self, token_id: int) -> bool:
        """Go on with this token; False, with `error` set, if the grammar forbids it here."""

    def try_accept(self, token_id: int) -> bool:
        """The same, but a forbidden token changes nothing. Does not look at forced tokens."""

    def forced(self) -> list[int]:
        """The tokens that must come next, whatever is drawn."""

    def fork(self) -> Guide:
        """A copy at the same place, independent from then on."""


class Timings(msgspec.Struct, gc=False):
    """Seconds on the monotonic clock; 0.0 = not yet."""

    queued: float = 0.0
    scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0


class Sequence(msgspec.Struct, eq=False):
    """One sample of one request, from waiting to finished.

    Where a request has continuations, sample i is path i of their `tree` (scoring.py): it begins
    with the path's tokens as output, and ends when `scores` has a line for each of its targets.
    """

    request: Request
    sample: int = 0
    order: int = 0  # place in the plan; lower is admitted first
    watch: TextWatch | None = None
    guide: Guide | None = None
    must_draw: bool = False  # it must draw the tokens in `must_draw` of its guide
    thoughts: ThoughtWatch | None = None
    # Sequences that fork off at the prompt's end, or further on where a path leaves another.
    siblings: list[Sequence] = field(default_factory=list)
    group: SearchGroup | None = None  # the search that it is a beam of
    tree: ScoreTree | None = None  # the tree of continuations that it is a path of
    unfolded: bool = True  # the paths that leave it were made as its siblings
    output_ids: Ints = field(default_factory=lambda: np.empty(0, np.int32))
    logprobs: list[Scores] = field(default_factory=list)  # of its tokens, in order
    scores: list[Scores] = field(default_factory=list)  # of given tokens, in order
    num_scored: int = 0  # lines in `scores`
    hidden: list[Floats] = field(default_factory=list)  # states of its prompt, slice by slice
    num_cached: int = 0
    num_preemptions: int = 0
    waiting: bool = False
    parked: bool = False  # it waits, but its adapter has no place
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: QuireError | None = None
    timings: Timings = field(default_factory=Timings)

    @property
    def token_ids(self) -> Ints:
        """All its tokens, as they are compared with cached ones."""
        if not len(self.output_ids):
            return self.request.prompt_ids
        return np.concatenate([self.request.prompt_ids, self.output_ids])

    @property
    def fed_ids(self) -> Ints:
        """The same as ids of the vocabulary, which is what is computed."""
        if self.request.with_placeholders is None:
            return self.token_ids
        return np.concatenate([self.request.plain_ids, self.output_ids])

    @property
    def num_tokens(self) -> int:
        return len(self.request.prompt_ids) + len(self.output_ids)
