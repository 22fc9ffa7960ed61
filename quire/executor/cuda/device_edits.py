"""Data on the device for editing logits before rows draw: allowed and banned tokens, tokens that
may not come yet (stop ids under min_tokens, ids that may not be first), biases, and the tokens that
penalties count.

The lists of all rows are in one arena of int32. The host gives each row with lists a span:

    allowed ids | banned ids | phrases | tail | early ids | bias ids | biases | seen ids | how often

Phrases are bad words of several tokens; the tail is the row's last output, as long as the longest
phrase needs (_Phrases). The last two lists, tokens and their counts in the output, have room for
all tokens that the row may still write. If no span is free, the sampler draws for the row; a few
words of the arena are reserved for each row. A row that follows a grammar also has a line of bits,
one for each token that it may draw next: line `row`, which is sent with every plan, or the line of
the row's state if the device follows the grammar (automata.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from quire.executor.cuda.upload import Longs, Upload
from quire.params.row_sampling import FEW_LISTED, RowSampling, can_forbid
from quire.request import Ints
from quire.step import RowStart
from quire.steps.arena import Arena

WORDS_PER_ROW = 8192  # of the arena: 4,096 seen tokens with their counts
LEAST_WORDS = 1 << 20
OWN_WORDS = FEW_LISTED  # reserved for each row, before the shared part
NO_LIST = -1
_NOTHING: Longs = np.empty(0, np.int64)
_NO_LISTS = [_NOTHING] * 9
ANY_TOKEN, NO_TOKEN = -1, -2  # pad a short phrase; pad a short tail


class EditColumn(IntEnum):
    """Lines of the integer matrix; it has one column per row."""

    SPAN = 0  # offset of its lists in the arena
    NUM_ALLOWED = 1  # NO_LIST: all tokens are allowed
    NUM_BANNED = 2
    NUM_EARLY = 3
    NUM_BIASES = 4
    NUM_SEEN = 5  # changes as the row writes
    ROOM_SEEN = 6
    FREE_FROM = 7  # the first position at which early ids may come
    LINE = 8  # its line of bits; NO_LIST: none
    NUM_PHRASES = 9
    NUM_TAIL = 10


def arena_words(num_rows: int) -> int:
    return OWN_WORDS * num_rows + max(LEAST_WORDS, WORDS_PER_ROW * num_rows)


def fits_edits(sampling: RowSampling) -> bool:
    """Whether the device can do all of a row's edits."""
    return can_forbid(sampling.bad_words, sampling.not_first_ids, sampling.min_tokens)


def has_edits(start: RowStart) -> bool:
    sampling = start.sampling
    return (
        sampling.has_penalties
        or sampling.guided
        or bool(len(sampling.bias_ids))
        or sampling.allowed_ids is not None
        or bool(sampling.bad_words)
        or sampling.suppresses
        or (sampling.min_tokens > 0 and bool(len(start.stop_ids)))
    )


class DeviceEdits:
    """The edits of `num_rows` rows."""

    def __init__(
        self, num_rows: int, vocab_size: int, device: torch.device, num_states: int = 0
    ) -> None:
        """`num_states`: of grammars that the device follows; each has a line of bits as well."""
        self.first_line = num_rows + 1  # the first line of a state
        self._mask_shape = self.first_line + num_states, -(-vocab_size // 32)
        self._masks: Tensor | None = None
        self._device, self._num_words = device, arena_words(num_rows)
        self._room = Arena(self._num_words, first=OWN_WORDS * num_rows)
        self._spans: dict[int, tuple[int, int]] = {}
        self._new: dict[int, list[Longs]] = {}  # lists of rows that the current plan begins
        self._last: tuple[RowSampling, _Listed] | None = None
        self.edited = np.zeros(num_rows + 1, np.bool_)
        self.walking = np.zeros(num_rows + 1, np.bool_)  # rows whose grammar the device follows
        shape = (len(EditColumn), num_rows + 1)
        self.ints = torch.zeros(shape, dtype=torch.int32, device=device)
        # Repetition, frequency and presence penalty.
        self.penalties = torch.zeros(3, num_rows + 1, dtype=torch.float32, device=device)
        self._words: Tensor | None = None

    @property
    def words(self) -> Tensor:
        """The arena, allocated when a row needs it."""
        if self._words is None:
            with torch.inference_mode(False):
                self._words = torch.zeros(self._num_words, dtype=torch.int32, device=self._device)
        return self._words

    @property
    def masks(self) -> Tensor:
        """Lines of bits [rows + states, words] int32: bit t % 32 of word t // 32 allows token t.
        Allocated with the first row that has any edit: a graph that is captured for a bias alone
        may later run for a row with a grammar."""
        if self._masks is None:
            with torch.inference_mode(False):
                shape, device = self._mask_shape, self._device
                self._masks = torch.full(shape, -1, dtype=torch.int32, device=device)
        return self._masks

    def lift_masks(self, rows: Tensor) -> None:
        self.masks.index_fill_(0, rows, -1)

    def set_masks(self, rows: Tensor, lines: Tensor) -> None:
        """Set the tokens that these rows may draw next."""
        self.masks.index_copy_(0, rows, lines)

    def end(self, rows: Ints) -> None:
        mine = rows[self.edited[rows]]
        if len(mine):
            spans = [self._spans.pop(row) for row in mine.tolist()]
            self._room.give(span for span in spans if span[1] > OWN_WORDS)
            self.edited[mine] = self.walking[mine] = False

    def clear(self) -> None:
        self.end(np.flatnonzero(self.edited).astype(np.int32))

    def begin(self, start: RowStart) -> bool:
        """Find a span for a row with edits; False if none is free."""
        lists = self._lists_of(start)
        size = sum(len(part) for part in lists) + 2 * _room_to_write(start)
        first = start.row * OWN_WORDS if size <= OWN_WORDS else self._room.take(size)
        if first is None:
            return False
        self._spans[start.row] = first, size
        self._new[start.row] = lists
        self.edited[start.row], self.walking[start.row] = True, start.automaton > 0
        return True

    def _lists_of(self, start: RowStart) -> list[Longs]:
        """A row's lists, in order. Rows that begin together often share parameters."""
        sampling = start.sampling
        if _lists_nothing(sampling):
            return _NO_LISTS
        if self._last is None or self._last[0] is not sampling:
            self._last = sampling, _Listed.of(sampling)
        listed = self._last[1]
        stops = [start.stop_ids] if sampling.min_tokens > 0 else []
        early = np.concatenate([_NOTHING, *stops, sampling.not_first_ids])
        phrases, biases = listed.phrases, (listed.bias_ids, listed.biases)
        tail = phrases.tail_of(start.output_ids)
        return [listed.allowed, listed.banned, phrases.words, tail, early, *biases, *_seen(start)]

    def pack(self, upload: Upload, starts: Sequence[RowStart]) -> None:
        """Add the lists of rows with edits to the upload; `change` applies them."""
        mine = [start for start in starts if self.edited[start.row]]
        upload.add("edited rows", [start.row for start in mine])
        if not mine:
            return
        columns, places, words = [], [_NOTHING], [_NOTHING]
        for start in mine:
            first, room = self._spans[start.row][0], _room_to_write(start)
            *fixed, seen, counts = lists = self._new[start.row]
            sizes = [len(part) for part in lists]
            num_fixed = sum(len(part) for part in fixed)
            allowed = NO_LIST if start.sampling.allowed_ids is None else sizes[0]
            until = len(start.prompt_ids) + _least_tokens(start.sampling)
            room_seen = len(seen) + room
            line, (_, banned, phrases, tail, early, biases, *_) = self._line_of(start), sizes
            counted = (banned, early, biases, len(seen), room_seen)
            spelled = (phrases // (tail + 1), tail)
            columns.append([first, allowed, *counted, until, line, *spelled])
            if lists is _NO_LISTS:  # usual for rows with a grammar alone
                continue
            at = first + np.arange(num_fixed + len(seen))
            places += [at, first + num_fixed + room_seen + np.arange(len(counts))]
            words += lists
        penalties = [
            (p.repetition_penalty, p.frequency_penalty, p.presence_penalty)
            for p in (start.sampling for start in mine)
        ]
        upload.add("edit columns", np.array(columns, np.int64).T)
        upload.add("edit penalties", np.array(penalties, np.float64).T)
        upload.add("edit places", np.concatenate(places))
        upload.add("edit words", np.concatenate(words))
        self._new.clear()

    def _line_of(self, start: RowStart) -> int:
        """The row's first line of bits."""
        if start.automaton:
            return self.first_line + start.state
        return start.row if start.sampling.guided else NO_LIST

    def change(self, upload: Upload) -> None:
        rows = upload.take("edited rows")
        if not len(rows):
            return
        columns = upload.take("edit columns").view(-1, len(rows))
        self.ints.index_copy_(1, rows, columns.to(torch.int32))
        penalties = upload.take("edit penalties").view(3, len(rows))
        self.penalties.index_copy_(1, rows, penalties.to(torch.float32))
        if self._masks is not None:
            self.lift_masks(rows)  # all tokens are allowed until the first mask comes
        words = upload.take("edit words").to(torch.int32)
        self.words.index_copy_(0, upload.take("edit places"), words)


def _lists_nothing(sampling: RowSampling) -> bool:
    """Whether a row has no edits but its grammar."""
    return not (
        len(sampling.bias_ids)
        or sampling.bad_words
        or sampling.allowed_ids is not None
        or sampling.min_tokens
        or sampling.has_penalties
        or sampling.suppresses
    )


def _least_tokens(sampling: RowSampling) -> int:
    """The number of outputs before early ids may come."""
    return max(sampling.min_tokens, int(len(sampling.not_first_ids) > 0))


def _room_to_write(start: RowStart) -> int:
    """How many tokens a row may add to the list of seen ones."""
    left = start.max_tokens - len(start.output_ids)
    return max(left, 0) if start.sampling.has_penalties else 0


class _Phrases(NamedTuple):
    """Bad words of several tokens, stored so that a device compares all of them at once.

    [4 5 6] and [8 9], whose last tokens are forbidden after the others: all last tokens, then the
    tokens one before, two before, ...: 6 9 | 5 8 | 4 any. The output .. 4 5 has the tail 5 4."""

    words: Longs
    reach: int

    @staticmethod
    def of(words: Sequence[Ints]) -> _Phrases:
        reach = max((len(word) for word in words), default=1) - 1
        made = np.full((reach + 1, len(words)), ANY_TOKEN, np.int64)
        for at, word in enumerate(words):
            made[: len(word), at] = word[::-1]
        return _Phrases(made.reshape(-1), reach)

    def tail_of(self, output_ids: Ints) -> Longs:
        tail = np.full(self.reach, NO_TOKEN, np.int64)
        newest = output_ids[::-1][: self.reach]
        tail[: len(newest)] = newest
        return tail


class _Listed(NamedTuple):
    """The lists that rows with the same parameters share."""

    allowed: Longs
    banned: Longs
    phrases: _Phrases
    bias_ids: Longs
    biases: Longs

    @staticmethod
    def of(sampling: RowSampling) -> _Listed:
        allowed = sampling.allowed_ids if sampling.allowed_ids is not None else ()
        words = [int(word[0]) for word in sampling.bad_words if len(word) == 1]
        banned = [*words, *sampling.never_ids]
        phrases = _Phrases.of([word for word in sampling.bad_words if len(word) > 1])
        biases = np.ascontiguousarray(sampling.biases, np.float32).view(np.int32)
        listed = (allowed, banned, sampling.bias_ids, biases)
        first, second, *biased = (np.asarray(part, np.int64) for part in listed)
        return _Listed(first, second, phrases, *biased)


def _seen(start: RowStart) -> tuple[Longs, Longs]:
    """The tokens that a row's penalties count, and their counts in its output."""
    sampling = start.sampling
    if not sampling.has_penalties:
        return _NOTHING, _NOTHING
    # Only the repetition penalty counts the prompt.
    prompt = start.prompt_ids if sampling.repetition_penalty != 1 else start.prompt_ids[:0]
    seen = np.unique(np.concatenate([prompt, start.output_ids])).astype(np.int64)
    counts = np.zeros(len(seen), np.int64)
    np.add.at(counts, np.searchsorted(seen, start.output_ids), 1)
    return seen, counts
