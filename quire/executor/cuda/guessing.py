"""Decode steps of rows that guess: several lines a row, looked up, drawn and checked on the device.

A step is like that of decoding.py with more lines than rows: the model, the draw and the scores
compute lines and know nothing of guesses. At its end right guesses are counted, and the row moves
on by as many tokens, so that steps repeat without the host.

It runs only plans for whose rows the device alone draws, and without adapters (`takes`); other
plans run as if they had no guesses, which are optional.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire.executor.cuda.batch import padded, places_of
from quire.executor.cuda.decoding import Parts
from quire.executor.cuda.drawn_scores import Asking, new_entries
from quire.executor.cuda.graphs import SMALL_BUCKETS, GraphKey, GuessPlaces, edit_bucket
from quire.executor.cuda.upload import Upload
from quire.layers.attention import Pass
from quire.step import MOST_GUESSES, MOST_HISTORY, Guessing, StepPlan
from quire.steps.row_schema import NOWHERE

MOST_ROWS = 16


def most_lines(least_places: int) -> int:
    """The most lines that a step may have: 16 rows with a few guesses each, or the smallest bucket,
    rounded up to whole rows."""
    return max(4 * MOST_ROWS, least_places + MOST_GUESSES)


@dataclass(frozen=True, slots=True)
class SeatedGuesses:
    """The decode rows of a plan, each with a place of several lines."""

    places: GuessPlaces
    key: GraphKey
    num_rows: int
    repeat: int
    asking: Asking
    guessing: Guessing

    @property
    def lines_each(self) -> int:
        return 1 + self.guessing.count


class GuessedDecoding:
    """Whole decode steps of rows that guess."""

    def __init__(self, parts: Parts, *, max_repeat: int) -> None:
        self._parts, self._max_repeat = parts, max_repeat
        self._places: dict[tuple[int, int], GuessPlaces] = {}
        self._history: Tensor | None = None
        self._entries: dict[int, Tensor] = {}

    def takes(self, plan: StepPlan) -> bool:
        """Whether the plan allows guesses and all its rows can guess here."""
        guessing, rows, columns = plan.guessing, plan.decode.rows, self._parts.columns
        if guessing is None or not 0 < len(rows) <= MOST_ROWS:
            return False
        apart = columns.special[rows] | columns.asks_more[rows] | columns.waits_for_host[rows]
        apart |= columns.edits.walking[rows]
        adapters = self._parts.adapters
        adapted = adapters is not None and bool((adapters.rows.slot_of[rows] >= 0).any())
        return not (apart.any() or adapted or plan.masks is not None or len(plan.searched))

    def seat(self, plan: StepPlan, upload: Upload) -> SeatedGuesses:
        """Before the upload is sent: find places for the rows, and capture their step if it is
        new."""
        if plan.guessing is None:
            raise ValueError("a plan without guesses has no places for them.")
        guessing, columns, num_rows = plan.guessing, self._parts.columns, len(plan.decode)
        places, each = self._bucket(num_rows, guessing.count), 1 + guessing.count
        drawing = columns.drawing(plan.decode.rows)
        every = np.arange(each, dtype=np.int32)
        members = [(some[:, None] * each + every).reshape(-1) for some in places_of(plan)]
        prefixes = self._parts.ops.list_prefixes(places.num_lines, plan.groups, members)
        edited = np.flatnonzero(np.repeat(columns.edits.edited[plan.decode.rows], each))
        num_edited = edit_bucket(len(edited))
        key = GraphKey(
            *("guessed", places.num_lines, drawing.truncated, drawing.scored, num_edited),
            prefixes=(prefixes, guessing.count, guessing.shortest, guessing.longest),
        )
        self._parts.graphs.prepare(key, lambda: self._step(places, key))
        resting = np.full(places.size - num_rows, columns.resting, np.int32)
        upload.add("seated", np.concatenate([plan.decode.rows, resting]))
        upload.add("edited places", padded(edited, num_edited - len(edited), NOWHERE))
        upload.add("histories", guessing.tokens)
        upload.add("lengths", guessing.lengths)
        num_logprobs = np.repeat(columns.num_logprobs[plan.decode.rows], each)
        asking = Asking.pack(upload, "decode rows", num_logprobs)
        return SeatedGuesses(places, key, num_rows, plan.repeat, asking, guessing)

    def run(self, seated: SeatedGuesses, upload: Upload) -> Tensor:
        """Called after the plan's changes. Returns each line's token, FAILED or RESTS for every
        step, int32 [K, lines]."""
        places, key, num_rows = seated.places, seated.key, seated.num_rows
        places.rows.copy_(upload.take("seated"))
        places.step.zero_()
        if key.num_edited:
            places.edited[: key.num_edited].copy_(upload.take("edited places"))
        histories = upload.take("histories").view(num_rows, -1)
        places.histories[:num_rows, : histories.shape[1]].copy_(histories)
        places.lengths[:num_rows].copy_(upload.take("lengths"))
        self._parts.graphs.run(key, lambda: self._step(places, key), seated.repeat)
        block = places.made[: seated.repeat, : num_rows * seated.lines_each].clone()
        # All places are idle again, so that the step can run for another capture.
        places.rows.fill_(self._parts.columns.resting)
        places.step.zero_()
        return block

    def entries(self, seated: SeatedGuesses) -> Tensor | None:
        """The logprob entries that the run wrote, [K, lines, ENTRY], or None if no row asked."""
        if not seated.asking:
            return None
        return self._entries_of(seated.places)[: seated.repeat]

    def _entries_of(self, places: GuessPlaces) -> Tensor:
        size = places.num_lines
        if size not in self._entries:
            with torch.inference_mode(False):
                self._entries[size] = new_entries(self._max_repeat, size, self._parts.device)
        return self._entries[size]

    def _bucket(self, num_rows: int, count: int) -> GuessPlaces:
        """Places for the rows, with no fewer lines than the smallest bucket."""
        size = next(size for size in SMALL_BUCKETS if size >= num_rows)
        size = max(size, -(-self._parts.least_places // (1 + count)))
        if (size, count) not in self._places:
            columns = self._parts.columns
            with torch.inference_mode(False):
                self._places[size, count] = GuessPlaces.make(
                    size, count, self._max_repeat, columns.resting, self._histories()
                )
        return self._places[size, count]

    def _histories(self) -> Tensor:
        """Memory for the tokens in which rows look for guesses, and those that a plan may add."""
        if self._history is None:
            parts, added = self._parts, self._max_repeat * (1 + MOST_GUESSES)
            longest = parts.columns.tables.shape[2] * parts.block_size
            shape = (MOST_ROWS, min(longest, MOST_HISTORY) + added)
            self._history = torch.zeros(shape, dtype=torch.int32, device=parts.device)
        return self._history

    def _step(self, places: GuessPlaces, key: GraphKey) -> None:
        """Feed every row's last token and its guesses, draw after each, accept."""
        parts, (prefixes, _, shortest, longest) = self._parts, key.prefixes
        fed = parts.ops.feed_guesses(places, shortest, longest, prefixes)
        if parts.adapters is not None:
            parts.adapters.use(None)
        turns = parts.model.rotary(parts.media.turned_at(fed))
        shared = Pass(fed.positions, turns, fed.slots, fed.attention)
        logits = parts.logits(fed.token_ids, shared)
        edited = places.edited[: key.num_edited] if key.num_edited else None
        tokens, failed = parts.ops.draw(
            logits, fed.rows, fed.next_at, truncated=key.truncated, edited=edited
        )
        if key.scored:
            entries = self._entries_of(places)
            parts.ops.score(logits, fed.rows, tokens, failed, entries, places.step)
        parts.ops.accept_guesses(places, fed, tokens, failed)

    def close(self) -> None:
        self._places.clear()
        self._entries.clear()
        self._history = None
