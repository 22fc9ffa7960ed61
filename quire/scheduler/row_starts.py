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
        if sequence.group is not None or sequence.tree is not None:
            # Nothing stops it on the device: the group decides, or nothing is drawn.
            sampling, noise_key, stop_ids, max_tokens = IN_VAIN, 0, no_ints(), UNLIMITED
            number, has_processors, waits_for_host = -1, False, False
        else:
            sampling = self._sampling(request.params, sequence.thoughts)
            noise_key, stop_ids = request.noise_key, self._stop_ids(request)
            max_tokens = rows.limit.item(row) - request.num_prompt
            number, has_processors = request.number, bool(request.processors)
            waits_for_host = rows.waits_for_host.item(row)
        return RowStart(
            row=row,
            sampling=sampling,
            noise_key=noise_key,
            sample=sequence.sample,
            prompt_ids=request.plain_ids,
            output_ids=sequence.output_ids,
            stop_ids=stop_ids,
            max_tokens=max_tokens,
            request=number,
            has_processors=has_processors,
            waits_for_host=waits_for_host,
            delta=request.delta,
            adapter=request.adapter_number,
            heard=request.heard_serial,
            automaton=rows.automaton.item(row),
            state=rows.state.item(row),
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
