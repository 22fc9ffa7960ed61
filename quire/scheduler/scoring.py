"""Which given tokens a row scores, and what becomes of the scores.

Two kinds of sequences score given tokens. One that wants prompt logprobs scores every token of its
prompt but the first, and beside it the tokens that its request names for that place. One of a
request with continuations scores a path of their tree (score_tree.py) and draws nothing. Path 0
leads: it computes the prompt, then scores the first token of every continuation from one line of
logits. Other paths fork off the path that they leave, share its blocks, and go on from there. A
continuation of one token needs no row. The sequences of paths are made when their parent begins,
so a waiting request with a thousand continuations takes no memory for them.

There is a line of scores per target. Line p of prompt logprobs is about token p + 1 of the prompt;
the lines of a path are in the order of its targets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quire.cache.scores import BlockScores
from quire.errors import InvalidLogits
from quire.request import Request
from quire.scheduler.placements import Placements
from quire.scheduler.score_tree import ScoreTree
from quire.scheduler.sequence import Sequence
from quire.scheduler.waiting import Waiting
from quire.step import Scores, Targets, join_scores


def score_lead(request: Request, order: int) -> Sequence:
    """The sequence that leads the scoring of a request's continuations."""
    return _path_sequence(request, 0, order, ScoreTree.of(request.continuations))


def _path_sequence(request: Request, number: int, order: int, tree: ScoreTree) -> Sequence:
    tokens = tree.paths[number].tokens
    return Sequence(request, number, order, output_ids=tokens, tree=tree, unfolded=False)


def unfold(sequence: Sequence) -> None:
    """Make the paths that leave this one its siblings, before it begins for the first time."""
    tree = sequence.tree
    if tree is None or sequence.unfolded:
        return
    sequence.unfolded = True
    sequence.siblings = [
        _path_sequence(sequence.request, number, sequence.order, tree)
        for number in tree.children[sequence.sample]
    ]


def fork_point(sequence: Sequence) -> int | None:
    """How many tokens of a path are computed when its next sibling forks; None without one."""
    if sequence.tree is None or not sequence.siblings:
        return None
    return sequence.request.num_prompt + sequence.tree.paths[sequence.siblings[0].sample].branch


def next_position(sequence: Sequence) -> int | None:
    """The first position whose logits are still to be scored; None if there is none."""
    request, num_scored = sequence.request, sequence.num_scored
    if sequence.tree is not None:
        depths = sequence.tree.paths[sequence.sample].depths
        if num_scored == len(depths):
            return None
        return request.num_prompt - 1 + int(depths[num_scored])
    if request.first_scored is None or sequence.sample:
        return None
    at = request.first_scored + num_scored
    return at if at < request.num_prompt - 1 else None


def targets_of(sequence: Sequence, start: int, end: int) -> Targets | None:
    """The tokens that positions start .. end of a sequence score."""
    request = sequence.request
    if sequence.tree is not None:
        path = sequence.tree.paths[sequence.sample]
        at = path.depths[sequence.num_scored :] + np.int32(request.num_prompt - 1)
        here = slice(int(np.searchsorted(at, start)), int(np.searchsorted(at, end)))
        tokens = path.targets[sequence.num_scored :][here]
        num_top = request.params.num_logprobs or 0
        offsets = at[here] - np.int32(start)
        return Targets(offsets, tokens, num_top, as_asked=False) if len(tokens) else None
    first = next_position(sequence)
    if first is None:
        return None
    first, last = max(first, start), min(end, request.num_prompt - 1)
    if first >= last:
        return None
    offsets = np.arange(first - start, last - start, dtype=np.int32)
    num_top = request.params.prompt_logprobs or 0
    tokens, named = request.plain_ids[first + 1 : last + 1], request.named
    lines = None if named is None else named.ids[first - named.first : last - named.first]
    return Targets(offsets, tokens, num_top, named=lines)


@dataclass(frozen=True, slots=True)
class _Promise:
    """Scores, still to come, of block number `index` of a row's prompt, published with this
    serial. They are known when blocks 0 .. index are scored."""

    index: int
    serial: int
    entry: BlockScores


class Scoring:
    """Keeps the scores of rows, and those of their whole blocks beside the blocks."""

    def __init__(self, placements: Placements, waiting: Waiting) -> None:
        self._pool, self._rows = placements.pool, placements.rows
        self._placements, self._waiting = placements, waiting
        self._promises: dict[int, list[_Promise]] = {}  # by placement
        self._borrowed: dict[int, list[BlockScores]] = {}  # by placement, the first block first

    def is_waiting(self, row: int) -> bool:
        """Whether the row is computed to where paths leave it that have not forked off yet."""
        return fork_point(self._rows.sequence(row)) == int(self._rows.computed[row])

    def readable(self, sequence: Sequence, num_cached: int) -> int:
        """How many of the cached blocks that begin a sequence it need not compute again.

        A position that is to be scored must be computed, unless its scores are kept beside the
        blocks. With the scores of blocks 0 .. m, blocks 0 .. m - 1 can be read, because the score
        of a block's first token comes from the position before the block.
        """
        at, size = next_position(sequence), self._pool.block_size
        if at is None:
            return num_cached
        if sequence.tree is not None:
            leaving = fork_point(sequence)
            # The token before that is computed again: a row that begins must compute something.
            return min(num_cached, (at if leaving is None else min(at, leaving - 1)) // size)
        own = min(num_cached, at // size)
        found = len(self._entries(sequence, num_cached))
        return max(own, (sequence.num_scored + 1) // size + found - 1) if found else own

    def _entries(self, sequence: Sequence, most: int) -> list[BlockScores]:
        """Scores of the first `most` published blocks that begin a sequence, from the block of the
        next wanted score on. None where the request names tokens: only it wants their scores."""
        if sequence.request.named is not None:
            return []
        num_top = sequence.request.params.prompt_logprobs or 0
        salt = sequence.request.cache_salt
        serials = self._pool.serials(sequence.token_ids, salt=salt, most=most)
        found = []
        for serial in serials[(sequence.num_scored + 1) // self._pool.block_size :]:
            entry = self._pool.scores.find(serial, num_top)
            if entry is None:
                break
            found.append(entry)
        return found

    def begin(self, row: int) -> None:
        """A placement begins: keep the scores that it relies on, even if their blocks go."""
        sequence, computed = self._rows.sequence(row), int(self._rows.computed[row])
        at = next_position(sequence)
        if sequence.tree is not None or at is None or at >= computed:
            return
        entries = self._entries(sequence, computed // self._pool.block_size + 1)
        self._borrowed[int(self._rows.placement[row])] = entries

    def promise(self, row: int, before: int) -> None:
        """Blocks from number `before` on were published: note that their scores will come."""
        sequence, size = self._rows.sequence(row), self._pool.block_size
        num_whole = int(self._rows.computed[row]) // size
        wanted = sequence.request.params.prompt_logprobs
        last = min(num_whole, sequence.request.num_prompt // size)
        if wanted is None or sequence.sample or not self._pool.caching or before >= last:
            return
        if sequence.request.named is not None or sequence.request.num_prompt == 1:
            return  # no other request asks for the same; or its only token has no score
        # One more token, because the last token of a sequence is never covered.
        tokens = np.append(sequence.request.prompt_ids[: last * size], np.int32(0))
        published = self._pool.serials(tokens, salt=sequence.request.cache_salt)
        promises = self._promises.setdefault(int(self._rows.placement[row]), [])
        for index in range(before, min(last, len(published))):
            entry = self._pool.scores.promise(published[index], wanted)
            if entry is not None:
                promises.append(_Promise(index, published[index], entry))
        self._keep_promises(sequence, int(self._rows.placement[row]))

    def commit(self, row: int, placement: int, scores: Scores) -> bool:
        """Keep what a slice of a row scored; True if the row has all its scores, and scores only.

        Scores of a placement that ended meanwhile are lost, for other rows that relied on them,
        too. A row that relied on lost scores queues again, and computes them.
        """
        if self._rows.placement[row] != placement:
            self._borrowed.pop(placement, None)
            for promise in self._promises.pop(placement, ()):
                self._pool.scores.lose(promise.serial, promise.entry)
            return False
        sequence = self._rows.sequence(row)
        if not self._take_borrowed(sequence, self._borrowed.pop(placement, [])):
            self._waiting.add(self._placements.end(row), again=True)
            return False
        sequence.scores.append(scores)
        sequence.num_scored += len(scores)
        self._keep_promises(sequence, placement)
        return sequence.tree is not None and next_position(sequence) is None

    def _take_borrowed(self, sequence: Sequence, entries: list[BlockScores]) -> bool:
        """Take the scores of cached blocks, instead of computing them; False if any is lost."""
        parts = [entry.scores for entry in entries if entry.scores is not None]
        if len(parts) < len(entries):
            return False
        if entries:
            size, num_top = self._pool.block_size, sequence.request.params.prompt_logprobs
            first = (sequence.num_scored + 1) // size  # the block of the next line
            before = self._lines_before(first)
            # Of the last block only the first token: the next ones are computed.
            end = (first + len(entries) - 1) * size
            cut = [part.part(0, len(part), None if num_top == -1 else num_top) for part in parts]
            found = join_scores(cut).part(sequence.num_scored - before, end - before)
            sequence.scores.append(found)
            sequence.num_scored += len(found)
        return True

    def _keep_promises(self, sequence: Sequence, placement: int) -> None:
        """Store the scores of whole blocks beside the blocks, as far as they are known."""
        waiting = self._promises.pop(placement, [])
        num_scored = sequence.num_scored
        ready = [p for p in waiting if max(1, self._lines_before(p.index + 1)) <= num_scored]
        for p in ready:
            first, last = self._lines_before(p.index), self._lines_before(p.index + 1)
            lines = _some_lines(sequence.scores, num_scored, first, last)
            self._pool.scores.fill(p.serial, p.entry, lines)
        if left := waiting[len(ready) :]:
            self._promises[placement] = left

    def _lines_before(self, block: int) -> int:
        """Lines of a prompt's scores that belong to the blocks before this one: line p is about
        token p + 1, as the first token has no score."""
        return max(0, block * self._pool.block_size - 1)


def _some_lines(parts: list[Scores], end: int, first: int, last: int) -> Scores:
    """Lines first .. last of all that `parts` have, up to `end`. Lines of blocks are among the
    last; joining all parts each time would copy them, with whole vocabularies, once per pass."""
    found: list[Scores] = []
    for part in reversed(parts):
        begin = end - len(part)
        if last > begin and first < end:
            found.append(part.part(max(first - begin, 0), last - begin))
        if begin <= first:
            break
        end = begin
    return join_scores(found[::-1]) if found else parts[-1].part(0, 0)


def invalid(scores: Scores) -> InvalidLogits | None:
    """The error of scores with NaN, or None."""
    if not np.isnan(scores.logprobs).any():
        return None
    return InvalidLogits(
        "the model gave NaN logits where this row was to be scored; the other rows went on. Try "
        "dtype='float32', or check the weights."
    )
