"""The running sequences as columns: numpy arrays indexed by row.

A decode step touches these as arrays; Python visits only the rows where something happens.
`planned` counts a row's tokens, those being drawn included; `computed` those whose KV exists
or is being computed. The one rule of scheduling: let `computed` catch up with `planned`.

block_size 4, prompt of 6, two tokens drawn and a third in flight:
    num_prompt 6, known 8, planned 9, computed 8, blocks [b0 b1], next KV slot: b2, not yet taken

A row has a table of blocks for each group of layers, all of length `num_blocks`. Blocks behind a
group's window were given back: the table is -1 there.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quire.cache.prefix import Past
from quire.request import Ints
from quire.scheduler.pacing import Pacing, walkable_of
from quire.scheduler.row_kinds import PlainKind, RowKind
from quire.scheduler.sequence import Guide, Sequence
from quire.steps.automata import AutomatonRoom
from quire.steps.row_schema import STOP_COLUMNS

NOT_STALE = np.iinfo(np.int32).max
NO_IDS = np.empty(0, np.int32)


def widened(array: npt.NDArray[np.int32], columns: int) -> npt.NDArray[np.int32]:
    """`array` with at least `columns` columns, at least doubled so that growing stays rare."""
    *lines, old = array.shape
    if columns <= old:
        return array
    wide = np.full((*lines, max(columns, 2 * old)), -1, np.int32)
    wide[..., :old] = array
    return wide


def counted_out(counts: Ints) -> Ints:
    """For each count the numbers below it: [2 0 3] -> [0 1 0 1 2]."""
    nth = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return nth.astype(np.int32)


class Rows:
    """One place per running sequence. Placements are numbered, so that a result that arrives after
    its row went to another sequence is recognised."""

    def __init__(self, capacity: int, num_groups: int = 1, pacing: Pacing | None = None) -> None:
        def ints() -> Ints:
            return np.zeros(capacity, np.int32)

        def flags() -> npt.NDArray[np.bool_]:
            return np.zeros(capacity, bool)

        self.capacity, self._pacing = capacity, pacing or Pacing()
        self._plain_kind = PlainKind(self._pacing)
        # What is in the row.
        self.sequences: list[Sequence | None] = [None] * capacity
        self.placement = np.zeros(capacity, np.int64)  # 0 = free
        self.token_ids: list[Ints] = [NO_IDS] * capacity  # known when it entered
        self.fed_ids: list[Ints] = [NO_IDS] * capacity  # the same, as vocabulary ids
        self.outputs = np.full((capacity, 64), -1, np.int32)
        self.background = flags()  # it yields to the foreground
        self.adapter = ints()  # the number of its LoRA adapter; 0 = none
        self.num_siblings = ints()  # samples that will fork off it at the end of its prompt
        self.num_claimed = 0  # the sum of num_siblings
        # How far it is, and may get, in tokens.
        self.num_prompt, self.known = ints(), ints()
        self.planned, self.computed = ints(), ints()
        self.limit = ints()  # the length at which the row is full
        self.looked_at = flags()  # when it is full its ThoughtWatch is asked whether it goes on
        self.least = ints()  # the length before which nothing may stop it
        self.expected = np.zeros(capacity, np.float64)  # the length it will probably reach
        self.drawn = flags()  # the device holds its last token: it decodes
        self.renewed = flags()  # the device must be sent all its tokens again
        # Its blocks.
        self.blocks = np.full((num_groups, capacity, 8), -1, np.int32)
        self.num_blocks, self.num_published, self.num_shared = ints(), ints(), ints()
        self.given_back = np.zeros((num_groups, capacity), np.int32)  # blocks, from the first on
        self.pasts: list[Past] = [""] * capacity  # serial of the last published block
        self.forked = flags()  # its last block may have other holders
        self.stale = np.full(capacity, NOT_STALE, np.int32)  # first entry not sent
        # How it is drawn for and judged (row_kinds.py).
        self.stop_ids = np.full((capacity, STOP_COLUMNS), -1, np.int32)
        self.may_stop = flags()  # something may end it before it is full
        self.guided = flags()  # masks say what it may draw
        self.jumps = np.zeros(capacity, np.int8)  # a Jump: its grammar may force tokens
        self.visited = flags()  # Python looks at each of its tokens
        self.follows = flags()  # apart from ids and length, Python judges only its grammar
        self.waits_for_host = flags()  # planned again only when its last token is known
        self.one_token_per_plan = flags()  # one token per plan, except as the next two columns say
        self.rests_in_plan = flags()  # draws one token of a longer plan, others more
        self.goes_ahead = flags()  # goes on by what the device draws (trials.py, ahead.py)
        self.taken_back = flags()  # the device went too far: its last token must be sent
        self.scored = flags()  # it keeps the logprobs of its tokens
        self.watched = flags()  # each of its steps is reported
        self.num_candidates = ints()  # a beam offers so many tokens to its group; 0 = no beam
        # The grammar that the device follows for it, 0 = none, and where in it the row is.
        self.automaton, self.state = ints(), ints()
        self.automata: AutomatonRoom | None = None  # what the device has room for
        # The first `_num_entered` are running rows, in order of admission; the rest is room.
        self._entered, self._num_entered = np.empty(capacity, np.int32), 0
        self._some_left = False
        self._free = list(range(capacity - 1, -1, -1))
        self._last_placement = 0

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def running(self) -> Ints:
        """The rows that are taken, in order of admission."""
        self._drop_rows_that_left()
        return self._entered[: self._num_entered]

    def _drop_rows_that_left(self) -> None:
        """Remove rows that ended, often hundreds at once. Into a new array: arrays that `running`
        returned before stay as they were."""
        if self._some_left:
            entered = self._entered[: self._num_entered]
            taken = entered[self.placement[entered] > 0]
            self._entered, self._num_entered = np.empty_like(self._entered), len(taken)
            self._entered[: len(taken)] = taken
            self._some_left = False

    def enter(self, sequence: Sequence, expected: float) -> int:
        """Give `sequence` a row, with nothing computed."""
        self._drop_rows_that_left()  # before one of their rows is taken again
        row = self._free.pop()
        self._last_placement += 1
        request = sequence.request
        self.sequences[row], self.placement[row] = sequence, self._last_placement
        self.num_prompt[row] = request.num_prompt
        self.known[row] = self.planned[row] = sequence.num_tokens
        self._keep_ids(row, sequence)
        self.computed[row] = 0
        self.drawn[row] = False
        self.claim(row, len(sequence.siblings))
        self.set_limit(row)
        self.least[row] = request.num_prompt + request.params.min_tokens
        self.expected[row] = request.num_prompt + expected
        self.num_published[row] = 0
        self.pasts[row] = request.cache_salt
        self.forked[row] = self.renewed[row] = self.taken_back[row] = False
        self.stale[row] = NOT_STALE
        self.num_candidates[row] = 0 if sequence.group is None else sequence.group.num_candidates
        self.watched[row] = request.watched
        self.background[row] = request.background
        self.adapter[row] = request.adapter_number
        self.automaton[row] = 0
        self._set_kind(row, self._plain_kind.of(sequence) or self._kind(row, sequence))
        if len(sequence.output_ids):
            self.outputs = widened(self.outputs, len(sequence.output_ids))
            self.outputs[row, : len(sequence.output_ids)] = sequence.output_ids
        self._entered[self._num_entered] = row
        self._num_entered += 1
        return row

    def set_limit(self, row: int) -> None:
        """How long the row may get: to its end, or until its thoughts are looked at again."""
        sequence = self.sequence(row)
        most, thoughts = sequence.request.max_tokens, sequence.thoughts
        due = most if thoughts is None or thoughts.due is None else min(thoughts.due, most)
        self.limit[row] = sequence.request.num_prompt + due
        self.looked_at[row] = due < most

    def _kind(self, row: int, sequence: Sequence) -> RowKind:
        """The kind of a row that is not plain."""
        is_paced = self._pacing.of(sequence)
        walks = not is_paced and self._walk(row, sequence)
        return RowKind.of(sequence, self._pacing, is_paced=is_paced, walks=walks)

    def _set_kind(self, row: int, kind: RowKind) -> None:
        self.stop_ids[row] = kind.stop_ids
        self.guided[row], self.follows[row] = kind.guided, kind.follows
        self.jumps[row], self.waits_for_host[row] = kind.jumps, kind.waits_for_host
        self.one_token_per_plan[row] = kind.one_token_per_plan
        self.rests_in_plan[row], self.goes_ahead[row] = kind.rests_in_plan, kind.goes_ahead
        self.may_stop[row] = kind.may_stop
        self.visited[row], self.scored[row] = kind.visited, kind.scored

    def claim(self, row: int, count: int) -> None:
        """Note that `count` samples will fork off the row."""
        self.num_claimed += count - self.num_siblings.item(row)
        self.num_siblings[row] = count

    def _keep_ids(self, row: int, sequence: Sequence) -> None:
        self.token_ids[row] = self.fed_ids[row] = sequence.token_ids
        if sequence.request.with_placeholders is not None:
            self.fed_ids[row] = sequence.fed_ids

    def _walk(self, row: int, sequence: Sequence) -> bool:
        """Let the device follow the sequence's grammar, if it can and has room; True if it does."""
        grammar = None if self.automata is None else walkable_of(sequence)
        if self.automata is None or grammar is None or sequence.guide is None:
            return False
        place = self.automata.take(grammar)
        if place is None:
            return False
        self.automaton[row] = place.number
        self.state[row] = place.first + sequence.guide.state
        return True

    def _end_walk(self, row: int) -> None:
        """The host follows the grammar again: the guide accepts what the row has drawn."""
        sequence = self.sequence(row)
        if sequence.guide is not None and sequence.finish_reason is None:
            first, last = len(self.token_ids[row]), int(self.known[row])
            for token in self.outputs[row, first - sequence.request.num_prompt :][: last - first]:
                sequence.guide.accept(int(token))
        if self.automata is not None:
            self.automata.give(int(self.automaton[row]))
        self.automaton[row] = 0

    def leave(self, at: Ints) -> None:
        """Free these rows, in this order; their blocks and tokens were kept before."""
        for row in at[self.automaton[at] > 0].tolist():
            self._end_walk(row)
        for row in at.tolist():
            self.sequences[row] = None
            self.token_ids[row] = self.fed_ids[row] = NO_IDS
        self.placement[at] = 0
        self.num_claimed -= int(self.num_siblings[at].sum())
        self.num_siblings[at] = 0
        self.clear_blocks(at)
        self._free += at.tolist()
        self._some_left = True

    def sequence(self, row: int) -> Sequence:
        sequence = self.sequences[row]
        assert sequence is not None, f"row {row} is free"
        return sequence

    def guides(self, at: Ints) -> list[Guide]:
        """The guides of these rows, without rows that have none."""
        sequences = self.sequences
        found = [one.guide for row in at.tolist() if (one := sequences[row]) is not None]
        return [guide for guide in found if guide is not None]

    def block_ids(self, row: int) -> Ints:
        """[groups, num_blocks]; -1 where a block was given back."""
        return self.blocks[:, row, : self.num_blocks[row]]

    def output_ids(self, row: int) -> Ints:
        return self.outputs[row, : self.known[row] - self.num_prompt[row]].copy()

    def known_tokens(self, row: int) -> Ints:
        """Its prompt and all tokens that it has drawn, as vocabulary ids."""
        prompt, known = int(self.num_prompt[row]), int(self.known[row])
        came = self.fed_ids[row]
        drawn = self.outputs[row, len(came) - prompt : known - prompt]
        return np.concatenate([came, drawn])

    def remaining(self, at: Ints) -> npt.NDArray[np.float64]:
        """Tokens each row will probably still write; for an overdue row half of what it wrote."""
        left = self.expected[at] - self.planned[at]
        overdue = (self.planned[at] - self.num_prompt[at]) / 2
        most = self.limit[at] - self.planned[at]
        return np.where(left > 0, left, overdue).clip(1, np.maximum(most, 1))

    def widen_blocks(self, columns: int) -> None:
        self.blocks = widened(self.blocks, columns)

    def append_blocks(self, row: int, blocks: Ints) -> int:
        """Add blocks [groups, count] to the row's tables; returns the place of the first."""
        have, count = self.num_blocks.item(row), blocks.shape[1]
        self.widen_blocks(have + count)
        self.blocks[:, row, have : have + count] = blocks
        self.num_blocks[row] = have + count
        return have

    def clear_blocks(self, at: Ints | int) -> None:
        """Empty the tables of rows; who holds the blocks does not change."""
        self.blocks[:, at] = -1
        self.num_blocks[at] = self.num_shared[at] = self.given_back[:, at] = 0

    def park(self, row: int) -> None:
        """Hold the row for later: nothing is planned for it, and it counts as not yet begun."""
        self.planned[row] = self.computed[row] = 0
        self.expected[row] -= self.known[row]
        self.drawn[row] = True  # so it waits, as if its token were being drawn

    def unpark(self, row: int) -> None:
        """Let a parked row begin with the tokens it has."""
        self.planned[row] = self.known[row]
        self.expected[row] += self.known[row]
        self.drawn[row] = False

    def unpark_as(self, row: int, output_ids: Ints, num_computed: int) -> None:
        """Let a parked row go on with these outputs, of which the last is fed next. It gets a new
        placement number, since groups.py keeps what it found about blocks by placement."""
        self.outputs = widened(self.outputs, len(output_ids))
        self.outputs[row, : len(output_ids)] = output_ids
        self.known[row] = self.num_prompt[row] + len(output_ids)
        self.unpark(row)
        self.computed[row], self.drawn[row] = num_computed, True
        self._last_placement += 1
        self.placement[row] = self._last_placement

    def copy_progress(self, row: int, other: int) -> None:
        """Give the row the tokens and progress of another row of the same prompt."""
        written = int(self.known[other] - self.num_prompt[other])
        self.outputs[row, :written] = self.outputs[other, :written]
        for column in (self.known, self.planned, self.computed, self.drawn, self.expected):
            column[row] = column[other]

    def append_forced(self, row: int, tokens: list[int]) -> None:
        """Add tokens that were not drawn: the row computes them before it draws again."""
        written = int(self.known[row] - self.num_prompt[row])
        self.outputs = widened(self.outputs, written + len(tokens))
        self.outputs[row, written : written + len(tokens)] = tokens
        self.known[row] += len(tokens)
        self.planned[row] = self.known[row]
        sequence = self.sequence(row)
        sequence.output_ids = self.output_ids(row)
        self._keep_ids(row, sequence)
        self.drawn[row] = False

    def append_outputs(self, rows: Ints, tokens: Ints, kept: Ints) -> None:
        """Add to each row the first kept[i] of tokens[i]. tokens: [rows, K]."""
        written = self.known[rows] - self.num_prompt[rows]
        self.outputs = widened(self.outputs, int(written.max(initial=0)) + tokens.shape[1])
        for k in range(tokens.shape[1]):
            here = kept > k
            self.outputs[rows[here], written[here] + k] = tokens[here, k]
        self.known[rows] += kept
