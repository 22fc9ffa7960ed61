"""`LLM.score_continuations`: scores in the shape of what the caller passed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from quire.errors import BatchError, QuireError
from quire.inputs.continuations import ContinuationBatch
from quire.outputs import ContinuationScore, RequestOutput
from quire.run import Window
from quire.session.intake import cut_windows

Scored = list[ContinuationScore]


class ScoreCall:
    """One call: what to run, and what to make of the outputs."""

    def __init__(self, batch: ContinuationBatch) -> None:
        self._batch = batch
        self.num_requests = len(batch.requests)

    def windows(self) -> Iterable[Window]:
        return cut_windows(list(self._batch.requests))

    def scores(self, outputs: Sequence[RequestOutput]) -> list[Scored]:
        """The scores of each context's continuations; BatchError if a context failed."""
        errors: dict[int, QuireError] = {}
        for i, places in enumerate(self._batch.places):
            failed = (outputs[number].error for number, _ in places)
            error = next((e for e in failed if e is not None), None)
            if error is not None:
                errors[i] = error
        found = self.known(outputs)
        if errors:
            raise BatchError(found, errors)
        return [one for one in found if one is not None]

    def known(self, outputs: Sequence[RequestOutput | None]) -> list[Scored | None]:
        """For each context its scores, None where one of them is not there."""
        return [self._of(places, outputs) for places in self._batch.places]

    def _of(
        self, places: Sequence[tuple[int, int]], outputs: Sequence[RequestOutput | None]
    ) -> Scored | None:
        found: Scored = []
        for number, place in places:
            output: Any = outputs[number] if number < len(outputs) else None
            if output is None or output.continuation_scores is None:
                return None
            found.append(output.continuation_scores[place])
        return found
