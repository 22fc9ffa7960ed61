"""BeamSearchParams: how to search for the likeliest answers. Checked when made."""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.errors import InvalidParams
from quire.params.rules import MAX_SAMPLES, fail, number, truth, whole
from quire.params.structured import StructuredOutputsParams
from quire.params.unknown import explains_unknown_keywords


@explains_unknown_keywords
@dataclass(slots=True)
class BeamSearchParams:
    """How to search for the likeliest answers; scored and stopped as Transformers does."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    structured_outputs: StructuredOutputsParams | None = None
    early_stopping: bool | str = field(default=False, kw_only=True)
    n: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        e = InvalidParams
        self.beam_width = whole(e, "beam_width", self.beam_width, low=1, high=MAX_SAMPLES)
        self.max_tokens = whole(e, "max_tokens", self.max_tokens, low=1)
        self.temperature = number(e, "temperature", self.temperature, low=0.0, high=2.0)
        self.length_penalty = number(e, "length_penalty", self.length_penalty, low=-1e3, high=1e3)
        for name in ("ignore_eos", "include_stop_str_in_output"):
            setattr(self, name, truth(e, name, getattr(self, name)))
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            fail(e, "early_stopping", "True, False or 'never'", self.early_stopping)
        if self.n is not None:
            hint = "n answers are kept of beam_width."
            self.n = whole(e, "n", self.n, low=1, high=self.beam_width, hint=hint)
        constraint = self.structured_outputs
        if constraint is not None and not isinstance(constraint, StructuredOutputsParams):
            fail(e, "structured_outputs", "StructuredOutputsParams or None", constraint)
