"""The kind of a row is its own, whatever came before it."""

from __future__ import annotations

import itertools

import numpy as np

from quire.request import Request
from quire.sampling_params import SamplingParams
from quire.scheduler.pacing import Pacing
from quire.scheduler.row_kinds import PlainKind, RowKind
from quire.scheduler.sequence import Sequence


def _columns(kind: RowKind | None) -> tuple[object, ...]:
    assert kind is not None
    return tuple(kind.stop_ids.tolist()), *(getattr(kind, f) for f in RowKind.__slots__[1:])


def test_rows_of_other_kinds_between_change_nothing() -> None:
    plain, scored = SamplingParams(), SamplingParams(logprobs=2)
    stops, prompt = frozenset({7}), np.array([1, 2], np.int32)
    none: frozenset[int] = frozenset()
    sequences = [
        Sequence(
            Request(
                *(0, prompt, params, 4, 0, none, stop_ids),
                processors=processors,
                watched=watched,
            )
        )
        for params, stop_ids, processors, watched in itertools.product(
            (plain, scored), (none, stops), ((), (print,)), (False, True)
        )
    ]
    pacing = Pacing()
    kept, seen = PlainKind(pacing), set()
    for one, other in itertools.product(sequences, sequences):
        kept.of(one)
        alone = _columns(PlainKind(pacing).of(other))
        assert _columns(kept.of(other)) == alone
        seen.add(alone)
    assert len(seen) == len(sequences)
