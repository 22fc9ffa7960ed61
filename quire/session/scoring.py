"""`LLM.score_continuations`: scores in the same shape as the caller's lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quire.errors import QuireError
from quire.inputs.continuations import ContinuationBatch
from quire.outputs import ContinuationScore, RequestOutput
from quire.run import Window
from quire.session.gather import Call
from quire.session.intake import cut_windows

Scored = list[ContinuationScore]


class ScoreCall(Call[Scored]):
    """Contexts with the scores of their continuations; a context may need several requests."""

    def __init__(self, batch: ContinuationBatch) -> None:
        self._batch = batch

    @property
    def num_requests(self) -> int:
        return len(self._batch.requests)

    def windows(self) -> Iterable[Window]:
        return cut_windows(list(self._batch.requests))

    def known(self, outputs: Sequence[RequestOutput | None]) -> list[Scored | None]:
        return [self._of(places, outputs) for places in self._batch.places]

    def errors(self, outputs: Sequence[RequestOutput]) -> dict[int, QuireError]:
        failed = super().errors(outputs)
        of_contexts = {
            i: [failed[number] for number, _ in places if number in failed]
            for i, places in enumerate(self._batch.places)
        }
        return {i: errors[0] for i, errors in of_contexts.items() if errors}

    def _of(
        self, places: Sequence[tuple[int, int]], outputs: Sequence[RequestOutput | None]
    ) -> Scored | None:
        """The scores of one context; None if an output is missing."""
        found: Scored = []
        for number, place in places:
            output = outputs[number] if number < len(outputs) else None
            if output is None or output.continuation_scores is None:
                return None
            found.append(output.continuation_scores[place])
        return found
