"""What a device is sent about a sequence that takes a row.

Rows that begin together often share their parameters and stop ids, which may be thousands of
tokens. So the last of both are kept in the form that is sent.
"""

from __future__ import annotations

import numpy as np

from quire.params.row_sampling import RowSampling
from quire.request import Ints, Request
from quire.sampling_params import SamplingParams
from quire.scheduler.rows import Rows
from quire.scheduler.sequence import Sequence
from quire.scheduler.watches import ThoughtWatch
from quire.step import RowStart, no_ints

UNLIMITED = np.iinfo(np.int32).max
# The sampling of a row whose draw is not used: of a beam, or a path that is scored.
IN_VAIN = RowSampling(temperature=0.0)


class RowStarts:
    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._known: tuple[SamplingParams, RowSampling] | None = None
        self._stops: tuple[frozenset[int], frozenset[int], Ints] | None = None

    def of(self, row: int, sequence: Sequence) -> RowStart:
        request, rows = sequence.request, self._rows
        walk = {"automaton": int(rows.automaton[row]), "state": int(rows.state[row])}
        about = {**request.for_rows(), **walk}
        if sequence.group is not None or sequence.tree is not None:
            # Nothing stops it on the device: the group decides, or nothing is drawn.
            ids = request.plain_ids, sequence.output_ids, no_ints()
            return RowStart(row, IN_VAIN, 0, sequence.sample, *ids, max_tokens=UNLIMITED, **about)
        return RowStart(
            row=row,
            sampling=self._sampling(request.params, sequence.thoughts),
            noise_key=request.noise_key,
            sample=sequence.sample,
            prompt_ids=request.plain_ids,
            output_ids=sequence.output_ids,
            stop_ids=self._stop_ids(request),
            max_tokens=int(rows.limit[row]) - request.num_prompt,
            request=request.number,
            has_processors=bool(request.processors),
            waits_for_host=bool(rows.waits_for_host[row]),
            **about,
        )

    def _sampling(self, params: SamplingParams, thoughts: ThoughtWatch | None) -> RowSampling:
        if thoughts is not None and (fixed := thoughts.fixed) is not None:
            return RowSampling.of_one(fixed, params)
        if self._known is None or self._known[0] is not params:
            self._known = params, RowSampling.of(params)
        return self._known[1]

    def _stop_ids(self, request: Request) -> Ints:
        """All ids that stop a row, sorted."""
        eos, more = request.eos_ids, request.stop_ids
        if self._stops is None or self._stops[0] is not eos or self._stops[1] is not more:
            self._stops = eos, more, np.array(sorted(eos | more), np.int32)
        return self._stops[2]
