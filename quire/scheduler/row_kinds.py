"""How a row is drawn for and judged. Rows that begin together are mostly of the same kind."""

from __future__ import annotations

from dataclasses import dataclass
from operator import is_not

import numpy as np

from quire.request import Ints
from quire.scheduler.pacing import Jump, Pacing, brings_much
from quire.scheduler.sequence import Sequence
from quire.steps.row_schema import STOP_COLUMNS


@dataclass(frozen=True, slots=True)
class RowKind:
    """The columns of rows.py that a row begins with; they are explained there."""

    stop_ids: Ints  # all columns, -1 after the last id
    guided: bool
    follows: bool
    jumps: Jump
    waits_for_host: bool
    one_token_per_plan: bool
    rests_in_plan: bool
    goes_ahead: bool
    may_stop: bool
    visited: bool
    scored: bool

    @staticmethod
    def of(sequence: Sequence, pacing: Pacing, *, is_paced: bool, walks: bool) -> RowKind:
        """`is_paced`: the host takes part in each draw; `walks`: the device follows its grammar."""
        request, guide, watch = sequence.request, sequence.guide, sequence.watch
        stops = sorted(request.eos_ids | request.stop_ids)
        stop_ids = np.full(STOP_COLUMNS, -1, np.int32)
        stop_ids[: len(stops)] = stops[:STOP_COLUMNS]
        guided = guide is not None and not walks
        waits_for_host = is_paced or guided
        detects = request.params.detects_repetition
        many_stops, scored = len(stops) > STOP_COLUMNS, request.params.num_logprobs is not None
        visited = watch is not None or guided or many_stops or detects
        must_step = request.watched or brings_much(request.params)
        # The device does not know where a row ends that Python judges; the row's processors would
        # see tokens after that end.
        goes_ahead = not (must_step or visited) and pacing.may_try(sequence)
        follows = guided and watch is None and not (detects or many_stops)
        jumps = pacing.jump(sequence) if guided and not scored else Jump.NEVER
        if follows and not (must_step or is_paced) and jumps != Jump.ALWAYS:
            goes_ahead = pacing.may_go_ahead(sequence)
        return RowKind(
            stop_ids=stop_ids,
            guided=guided,
            follows=follows,
            jumps=jumps,
            waits_for_host=waits_for_host,
            one_token_per_plan=waits_for_host or must_step,
            rests_in_plan=waits_for_host and not (must_step or goes_ahead),
            goes_ahead=goes_ahead,
            may_stop=bool(stops) or watch is not None or walks or detects,
            visited=visited,
            scored=scored,
        )


class PlainKind:
    """The kind of rows without grammar, stop strings or search: the last one is kept."""

    def __init__(self, pacing: Pacing) -> None:
        self._pacing = pacing
        self._known: tuple[tuple[object, ...], bool, RowKind] | None = None

    def of(self, sequence: Sequence) -> RowKind | None:
        """The kind, or None where the sequence has one of these."""
        if not (sequence.guide is None and sequence.watch is None and sequence.group is None):
            return None
        request, known = sequence.request, self._known
        about = request.params, request.eos_ids, request.stop_ids, request.processors
        if known is None or known[1] != request.watched or any(map(is_not, about, known[0])):
            is_paced = self._pacing.of(sequence)
            kind = RowKind.of(sequence, self._pacing, is_paced=is_paced, walks=False)
            self._known = known = about, request.watched, kind
        return known[2]
