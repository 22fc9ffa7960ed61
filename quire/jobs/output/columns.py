"""The columns that a job adds to its input: the same bytes however often it was killed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quire.jobs.store.record import ResultRecord
from quire.jobs.vectors import decode_vector, vector_of

if TYPE_CHECKING:
    from quire.jobs.store.manifest import Manifest

SETTING = "setting"
TIMINGS = ("queue_seconds", "first_token_seconds", "total_seconds")
CHOICE_PROBS = "choice_probs"
SCORES = ("continuation_logprobs", "continuation_greedy", "continuation_tokens")


class ResultColumns:
    """Makes the added columns of each record; `binary`: vectors as numbers and not as digits."""

    def __init__(self, manifest: Manifest, *, binary: bool = False) -> None:
        self._output, self._timings = manifest.output_column, manifest.timings
        self._scores = manifest.kind == "choices"
        self._embeds = manifest.kind == "embed"
        self._read = str if not self._embeds else vector_of if binary else decode_vector
        self._choice_probs = manifest.choice_probs
        self._settings = [str(s["name"]) for s in manifest.settings]
        many = [manifest.sampling, *manifest.settings]
        # Whether a row has several answers, so that `output` is a list.
        self.listed = any(int(s.get("n", 1)) > 1 for s in many)

    @property
    def names(self) -> tuple[str, ...]:
        if self._embeds:
            times = TIMINGS if self._timings else ()
            return (self._output, "prompt_tokens", "error", "error_type", *times)
        return (
            *((SETTING,) if self._settings else ()),
            self._output,
            *("finish_reason", "prompt_tokens", "output_tokens", "error", "error_type"),
            *(SCORES if self._scores else ()),
            *((CHOICE_PROBS,) if self._choice_probs else ()),
            *(TIMINGS if self._timings else ()),
        )

    def values(self, record: ResultRecord) -> dict[str, Any]:
        failed = record.failed
        found: dict[str, Any] = {}
        if self._settings:
            found[SETTING] = self._settings[record.row % len(self._settings)]
        outputs = [] if failed else [self._read(text) for text in record.outputs]
        reasons = ["error"] if failed else list(record.finish_reasons)
        found[self._output] = None if failed else outputs if self.listed else outputs[0]
        found["finish_reason"] = reasons if self.listed else reasons[0]
        found["prompt_tokens"] = None if failed else record.prompt_tokens
        found["output_tokens"] = None if failed else record.output_tokens
        found["error"], found["error_type"] = record.error, record.error_type
        if self._scores:
            scores = record.extra.get("continuations", {})
            found |= {name: scores.get(name.removeprefix("continuation_")) for name in SCORES}
        if self._choice_probs:
            found[CHOICE_PROBS] = record.extra.get(CHOICE_PROBS)
        if self._timings:
            timings = record.extra.get("timings") or [None] * len(TIMINGS)
            found |= dict(zip(TIMINGS, timings, strict=True))
        return {name: found[name] for name in self.names} if self._embeds else found
