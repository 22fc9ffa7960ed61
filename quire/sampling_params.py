"""SamplingParams and BeamSearchParams: how to write an answer. Checked when made.

They stay open to assignment, as scripts expect. So the code that runs them first takes
`checked_copy()`: a private copy, checked again, in which greedy parameters have one form. It raises
NotSupported for fields that are not built.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any, ClassVar

from quire.base.notes import warn
from quire.errors import InvalidParams, NotSupported
from quire.params.beam_search import BeamSearchParams
from quire.params.output_kind import RequestOutputKind
from quire.params.rules import (
    MAX_INT32,
    MAX_REPETITION_PENALTY,
    MAX_SAMPLES,
    MAX_SEED,
    MIN_SEED,
    PARAMS_STATUS,
    fail,
    number,
    show,
    sign_as_made,
    token_bias,
    token_id_lines,
    token_ids,
    truth,
    whole,
    words,
)
from quire.params.structured import (
    GuidedDecodingParams,
    RepetitionDetectionParams,
    StructuredOutputsParams,
)
from quire.params.unknown import explains_unknown_keywords

__all__ = [
    "BeamSearchParams",
    "GuidedDecodingParams",
    "RepetitionDetectionParams",
    "RequestOutputKind",
    "SamplingParams",
    "SamplingType",
    "StructuredOutputsParams",
]

MAX_LOGPROB_TOKEN_IDS = 128
LOWEST_TEMPERATURE = 0.01
_FLAGS: tuple[str, ...] = ("ignore_eos", "flat_logprobs", "detokenize", "skip_clone")
_FLAGS += ("skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output")
_FLAGS += ("skip_reading_prefix_cache",)
_NOT_HONOURED = [(name, s) for name, s in PARAMS_STATUS.items() if s.kind != "honoured"]


class SamplingType(IntEnum):
    """How tokens are drawn."""

    GREEDY = 0
    RANDOM = 1
    RANDOM_SEED = 2


@dataclass(slots=True, repr=False)
class SamplingParams:
    """How to write the answers to one prompt; PARAMS_STATUS has each field's meaning."""

    __struct_fields__: ClassVar[tuple[str, ...]]

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    skip_clone: bool = False
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    extra_args: dict[str, Any] | None = None
    routed_experts_prompt_start: int = 0
    bad_words: list[str] | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetectionParams | None = None
    # Fields that older scripts still pass, after the rest so that positions stay as they are.
    best_of: int | None = None
    guided_decoding: GuidedDecodingParams | None = None
    logits_processors: list[Callable[..., Any]] | None = None
    truncate_prompt_tokens: int | None = None
    stream_interval: int | None = None
    # Fields of later releases, likewise.
    watermarking: bool | None = None
    prompt_logprob_token_ids: Any = None
    prompt_logprob_start: int | None = None
    trace_decode_token_ids: list[int] | None = None
    # Set on the private copy, once a tokenizer is at hand.
    _bad_words_token_ids: list[list[int]] | None = field(default=None, init=False)
    # Tokens that the model never writes, and tokens that it never begins an answer with.
    _suppressed_token_ids: tuple[tuple[int, ...], tuple[int, ...]] = field(
        default=((), ()), init=False
    )

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_text()
        self._check_tokens()
        self._check_logprobs()
        self._check_kinds()

    def _check_numbers(self) -> None:
        e = InvalidParams
        self.n = whole(e, "n", self.n, low=1, high=MAX_SAMPLES)
        for name in ("presence_penalty", "frequency_penalty"):
            setattr(self, name, number(e, name, getattr(self, name), low=-2.0, high=2.0))
        low, high = 1 / MAX_REPETITION_PENALTY, MAX_REPETITION_PENALTY
        penalty, hint = self.repetition_penalty, "1.0 is no penalty."
        self.repetition_penalty = number(
            e, "repetition_penalty", penalty, low=low, high=high, hint=hint
        )
        hint = "0 is greedy, 1 leaves the model's probabilities as they are."
        self.temperature = number(e, "temperature", self.temperature, low=0.0, high=2.0, hint=hint)
        if 0.0 < self.temperature < LOWEST_TEMPERATURE:
            warn(
                f"temperature {self.temperature:g} is raised to {LOWEST_TEMPERATURE}: below that "
                "logits overflow. Use 0 for greedy sampling."
            )
            self.temperature = LOWEST_TEMPERATURE
        hint = "1.0 keeps every token."
        self.top_p = number(e, "top_p", self.top_p, low=0.0, high=1.0, above=True, hint=hint)
        self.min_p = number(e, "min_p", self.min_p, low=0.0, high=1.0)
        hint = "0 or -1 keeps every token."
        self.top_k = max(whole(e, "top_k", self.top_k, low=-1, hint=hint), 0)
        if self.seed is not None:
            seed = whole(e, "seed", self.seed, low=MIN_SEED, high=MAX_SEED)
            self.seed = None if seed == -1 else seed
        if self.n > 1 and self.temperature == 0.0:
            hint = "Greedy answers are all the same: set temperature above 0."
            fail(e, "n", "1 when temperature is 0", self.n, hint)
        self._check_lengths()

    def _check_lengths(self) -> None:
        e = InvalidParams
        hint = "None is as many as fit."
        if self.max_tokens is not None:
            self.max_tokens = whole(e, "max_tokens", self.max_tokens, low=1, hint=hint)
        self.min_tokens = whole(e, "min_tokens", self.min_tokens, low=0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            fail(e, "min_tokens", f"at most max_tokens ({self.max_tokens})", self.min_tokens)
        if self.thinking_token_budget is not None:
            budget = whole(e, "thinking_token_budget", self.thinking_token_budget, low=-1)
            self.thinking_token_budget = None if budget == -1 else budget
        start = self.routed_experts_prompt_start
        self.routed_experts_prompt_start = whole(e, "routed_experts_prompt_start", start, low=0)
        if self.best_of is not None:
            hint = f"n is {self.n}."
            self.best_of = whole(e, "best_of", self.best_of, low=self.n, hint=hint)
        if self.truncate_prompt_tokens is not None:
            keep = whole(e, "truncate_prompt_tokens", self.truncate_prompt_tokens, low=-1)
            if keep == 0:
                hint = "-1 keeps as many tokens as the model takes."
                fail(e, "truncate_prompt_tokens", "-1 or at least 1", keep, hint)
            self.truncate_prompt_tokens = keep

    def _check_text(self) -> None:
        for name in _FLAGS:
            if name != "skip_reading_prefix_cache" or getattr(self, name) is not None:
                setattr(self, name, truth(InvalidParams, name, getattr(self, name)))
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        self.stop = [] if stop is None else words(InvalidParams, "stop", stop)
        if self.stop and not self.detokenize:
            hint = "Stop strings are looked for in the text: set detokenize or use stop_token_ids."
            fail(InvalidParams, "stop", "empty when detokenize is False", self.stop, hint)
        bad = self.bad_words
        self.bad_words = [] if bad is None else words(InvalidParams, "bad_words", bad)

    def _check_tokens(self) -> None:
        e = InvalidParams
        stop_ids = self.stop_token_ids
        self.stop_token_ids = [] if stop_ids is None else token_ids(e, "stop_token_ids", stop_ids)
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = token_ids(e, "allowed_token_ids", self.allowed_token_ids)
            if not self.allowed_token_ids:
                fail(e, "allowed_token_ids", "None or at least one id", self.allowed_token_ids)
        if self.logit_bias is not None:
            self.logit_bias = token_bias(e, "logit_bias", self.logit_bias)

    def _check_logprobs(self) -> None:
        e = InvalidParams
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if isinstance(value, bool):  # OpenAI-style callers pass True for 1
                value = 1 if value else None
            if value is not None:
                value = whole(e, name, value, low=-1, hint="-1 is the whole vocabulary.")
            setattr(self, name, value)
        if self.prompt_logprob_token_ids is not None:
            lines = token_id_lines(e, "prompt_logprob_token_ids", self.prompt_logprob_token_ids)
            self.prompt_logprob_token_ids = lines
        if self.prompt_logprob_start is not None:
            start = whole(e, "prompt_logprob_start", self.prompt_logprob_start, low=0)
            if self.prompt_logprob_token_ids is None:
                rule = "None without prompt_logprob_token_ids"
                fail(e, "prompt_logprob_start", rule, start)
            self.prompt_logprob_start = start
        if self.logprob_token_ids is None:
            return
        ids = self.logprob_token_ids = token_ids(e, "logprob_token_ids", self.logprob_token_ids)
        if len(ids) > MAX_LOGPROB_TOKEN_IDS:
            rule = f"a list of at most {MAX_LOGPROB_TOKEN_IDS} ids"
            hint = "logprobs=-1 gives the whole vocabulary."
            fail(e, "logprob_token_ids", rule, ids, hint)
        if self.logprobs is not None and self.logprobs != len(ids):
            rule = f"None or the number of logprob_token_ids ({len(ids)})"
            fail(e, "logprobs", rule, self.logprobs)

    def _check_kinds(self) -> None:
        kinds: dict[str, tuple[type, ...]] = {
            "output_kind": (RequestOutputKind,),
            "structured_outputs": (StructuredOutputsParams, type(None)),
            "guided_decoding": (StructuredOutputsParams, type(None)),
            "repetition_detection": (RepetitionDetectionParams, type(None)),
            "extra_args": (dict, type(None)),
            "logits_processors": (list, tuple, type(None)),
        }
        for name, kind in kinds.items():
            value = getattr(self, name)
            if not isinstance(value, kind):
                names = [t.__name__ for t in kind if t is not type(None)]
                fail(InvalidParams, name, "a " + " or ".join(names), value)
        for processor in self.logits_processors or ():
            if not callable(processor):
                fail(InvalidParams, "logits_processors", "made of callables", processor)
        if self.structured_outputs is not None and self.guided_decoding is not None:
            rule = "None when structured_outputs is set"
            fail(InvalidParams, "guided_decoding", rule, self.guided_decoding)

    @property
    def all_stop_token_ids(self) -> set[int]:
        return set(self.stop_token_ids or ())

    @property
    def sampling_type(self) -> SamplingType:
        if self.temperature == 0.0:
            return SamplingType.GREEDY
        return SamplingType.RANDOM if self.seed is None else SamplingType.RANDOM_SEED

    @property
    def detects_repetition(self) -> bool:
        detection = self.repetition_detection
        return detection is not None and detection.max_pattern_size > 0

    @property
    def num_logprobs(self) -> int | None:
        """How many logprobs come with each token, besides that of the sampled one."""
        if self.logprobs is None and self.logprob_token_ids is not None:
            return len(self.logprob_token_ids)
        return self.logprobs

    def clone(self) -> SamplingParams:
        """A copy that shares only the processors with this one, as they may hold a lot."""
        return copy.deepcopy(self, {id(p): p for p in self.logits_processors or ()})

    def checked_copy(self) -> SamplingParams:
        """A private copy, checked again, for the engine to keep; NotSupported names what is
        set but not built."""
        # Not of type(self): a subclass of a script may have another constructor.
        params = SamplingParams(**{name: getattr(self, name) for name in self.__struct_fields__})
        params.settle()
        return params

    def settle(self) -> None:
        """Refuse fields that are not built, and give equal meanings one form, so that equal
        requests compare equal. Only for copies, never for a caller's object."""
        for name, status in _NOT_HONOURED:
            if _asks_nothing(self, name):
                continue
            value = getattr(self, name)
            if status.kind == "refused":
                raise NotSupported(f"SamplingParams({name}={show(value)}): {status.why}")
            warn(f"SamplingParams({name}={show(value)}) has no effect. {status.why}")
        if self.guided_decoding is not None:
            self.structured_outputs, self.guided_decoding = self.guided_decoding, None
        if self.temperature == 0.0:
            self.top_p, self.top_k, self.min_p = 1.0, 0, 0.0
        if self.top_k > MAX_INT32:
            self.top_k = 0
        self.min_tokens = min(self.min_tokens, MAX_INT32)

    @classmethod
    def from_optional(cls, **given: Any) -> SamplingParams:
        """Like the constructor, but None means the default, the keys of logit_bias may be
        strings and its values are kept within -100 .. 100."""
        if given.get("logit_bias") is not None:
            bias = token_bias(InvalidParams, "logit_bias", given["logit_bias"], text_keys=True)
            given["logit_bias"] = {t: min(100.0, max(-100.0, b)) for t, b in bias.items()}
        return cls(**{k: v for k, v in given.items() if v is not None or k == "max_tokens"})

    def __repr__(self) -> str:
        """Shows only fields that differ from the defaults."""
        shown = [
            f"{name}={getattr(self, name)!r}"
            for name in self.__struct_fields__
            if getattr(self, name) != getattr(_DEFAULT, name)
        ]
        return f"SamplingParams({', '.join(shown)})"


def _asks_nothing(params: SamplingParams, name: str) -> bool:
    """Whether a field that quire does not honour asks for nothing but the usual."""
    value = getattr(params, name)
    if name == "best_of":
        return value is None or value == params.n
    return not value


explains_unknown_keywords(SamplingParams)
SamplingParams.__struct_fields__ = tuple(f.name for f in fields(SamplingParams) if f.init)
sign_as_made(SamplingParams.from_optional, SamplingParams)
_DEFAULT = SamplingParams()
