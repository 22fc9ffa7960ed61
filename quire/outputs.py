"""What the caller gets: one RequestOutput per prompt, with a CompletionOutput per answer.

Plain data, and torch-free. `RequestOutput.error` says why a row failed; its answers then end
with finish_reason "error". Every output has its `metrics`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from quire.errors import QuireError
from quire.logprobs import (
    FlatLogprobs,
    Logprob,
    LogprobsOnePosition,
    PromptLogprobs,
    ReadLater,
    SampleLogprobs,
    Unread,
    joined,
    since,
)
from quire.params.pooling import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "BeamSearchOutput",
    "BeamSearchSequence",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "ContinuationScore",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "FlatLogprobs",
    "Logprob",
    "LogprobsOnePosition",
    "PoolingOutput",
    "PoolingRequestOutput",
    "PromptLogprobs",
    "RequestOutput",
    "RequestStateStats",
    "SampleLogprobs",
    "ScoringOutput",
    "ScoringRequestOutput",
    "ToolCall",
]


@dataclass(slots=True)
class RequestStateStats:
    """When things happened to a request. `arrival_time` is wall-clock time, the `_ts` fields
    are seconds of a monotonic clock, and `first_token_latency` is seconds since arrival."""

    num_generation_tokens: int = 0
    arrival_time: float = 0.0
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    first_token_latency: float = 0.0
    is_corrupted: bool = False

    def _on_the_wall(self, moment: float) -> float | None:
        """A moment as wall-clock time, which older scripts ask for; None if it never came."""
        return self.arrival_time + moment - self.queued_ts if moment else None

    first_scheduled_time = property(lambda self: self._on_the_wall(self.scheduled_ts))
    first_token_time = property(lambda self: self._on_the_wall(self.first_token_ts))
    last_token_time = finished_time = property(lambda self: self._on_the_wall(self.last_token_ts))

    @property
    def time_in_queue(self) -> float | None:
        return self.scheduled_ts - self.queued_ts if self.scheduled_ts else None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function the model wants called."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class AnswerReading:
    """How an answer is split: the tag that opens reasoning ("" for any), the format of tool calls
    ("none" if they are not looked for), whether the prompt itself opened the reasoning, and of each
    offered function the parameters that are texts, with whether they may be null."""

    reasoning_tag: str = ""
    tool_format: str = "none"
    began_in_prompt: bool = False
    offered: Mapping[str, Mapping[str, bool]] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceChances:
    """The probabilities of choices. Rows share the texts and keep an array, because there may be
    thousands, most of them never read."""

    texts: tuple[str, ...]
    probs: npt.NDArray[np.float64]


@dataclass
class CompletionOutput:
    """One answer. finish_reason is "stop", "length", "abort", "repetition" or "error"; stop_reason
    is the stop string or stop token id that ended it, None for the end-of-sequence token. `text` is
    the whole text; `content` is the text without `reasoning` and `tool_calls`. The dicts of
    `logprobs` are made when they are first asked for."""

    index: int
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None
    logprobs: ReadLater[SampleLogprobs | None] = ReadLater()
    routed_experts: Any = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: Any = None
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    # Fields of later releases, for options that are refused here.
    sampling_mask: ClassVar[None] = None
    spec_decode_metrics: ClassVar[None] = None
    weight_versions: ClassVar[None] = None

    def finished(self) -> bool:
        return self.finish_reason is not None

    def continued(self, later: CompletionOutput) -> CompletionOutput:
        """The whole answer, of which this and `later` are successive parts."""
        whole = copy(later)
        whole.text = self.text + later.text
        whole.token_ids = [*self.token_ids, *later.token_ids]
        whole.logprobs = joined(self._kept_logprobs, later._kept_logprobs)
        whole.content = self.content + later.content
        return whole

    def since(self, first: int) -> CompletionOutput:
        """The answer without its first tokens and their logprobs; the text is the whole one."""
        rest = copy(self)
        rest.token_ids = self.token_ids[first:]
        rest.logprobs = since(self._kept_logprobs, first)
        return rest

    @property
    def _kept_logprobs(self) -> SampleLogprobs | Unread | None:
        """The logprobs as they are kept, read or not."""
        kept: SampleLogprobs | Unread | None = self.__dict__["logprobs"]
        return kept

    def __repr__(self) -> str:
        parts = [
            f"index={self.index}",
            f"text={self.text!r}",
            f"token_ids={list(self.token_ids)!r}",
            f"finish_reason={self.finish_reason!r}",
        ]
        if self.stop_reason is not None:
            parts.append(f"stop_reason={self.stop_reason!r}")
        if self.reasoning is not None:
            parts.append(f"reasoning={self.reasoning!r}")
        if self.tool_calls:
            parts.append(f"tool_calls={self.tool_calls!r}")
        if self.cumulative_logprob is not None:
            parts.append(f"cumulative_logprob={self.cumulative_logprob:.6g}")
        if self._kept_logprobs is not None:
            parts.append(f"logprobs=<{len(self._kept_logprobs)} positions>")
        return f"CompletionOutput({', '.join(parts)})"


class RequestOutput:
    """Everything about one prompt. Keyword arguments that later versions of callers add are
    taken and ignored. The dicts of `prompt_logprobs` are made when they are first asked for."""

    prompt_logprobs: ReadLater[PromptLogprobs | None] = ReadLater()
    num_cache_creation_tokens = ec_transfer_params = None

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int] | npt.NDArray[np.int32] | None,
        prompt_logprobs: PromptLogprobs | Unread | None,
        outputs: list[CompletionOutput],
        finished: bool,
        metrics: RequestStateStats | None = None,
        lora_request: Any = None,
        encoder_prompt: str | None = None,
        encoder_prompt_token_ids: list[int] | None = None,
        num_cached_tokens: int | None = None,
        *,
        kv_transfer_params: dict[str, Any] | None = None,
        error: QuireError | None = None,
        continuation_scores: list[ContinuationScore] | None = None,
        choice_chances: ChoiceChances | None = None,
        hidden: npt.NDArray[np.float32] | None = None,
        hidden_from: int = 0,
        prompt_token_id_logprobs: npt.NDArray[np.float32] | None = None,
        **ignored: Any,
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.__dict__["prompt_token_ids"] = prompt_token_ids
        self.prompt_logprobs = prompt_logprobs
        self.outputs = outputs
        self.finished = finished
        self.metrics = RequestStateStats() if metrics is None else metrics
        self.lora_request = lora_request
        self.encoder_prompt = encoder_prompt
        self.encoder_prompt_token_ids = encoder_prompt_token_ids
        self.num_cached_tokens = num_cached_tokens
        self.kv_transfer_params = kv_transfer_params
        self.error = error
        self.continuation_scores = continuation_scores  # only of score_continuations
        self._choice_chances = choice_chances
        self.hidden = hidden  # only of requests for hidden states
        self.hidden_from = hidden_from  # how many first tokens they leave out
        self.prompt_token_id_logprobs = prompt_token_id_logprobs  # [lines, ids] as asked for

    @property
    def choice_probs(self) -> dict[str, float] | None:
        """The probability of each choice (together 1), if the answer was one of given choices."""
        chances = self._choice_chances
        if chances is None:
            return None
        return dict(zip(chances.texts, chances.probs.tolist(), strict=True))

    @property
    def prompt_token_ids(self) -> list[int] | None:
        """Made a list when first asked for: there may be millions of ids, often never read."""
        ids: Any = self.__dict__["prompt_token_ids"]
        if ids is not None and not isinstance(ids, list):
            self.prompt_token_ids = ids = ids.tolist()
        return ids  # type: ignore[no-any-return]

    @prompt_token_ids.setter
    def prompt_token_ids(self, ids: list[int] | None) -> None:
        self.__dict__["prompt_token_ids"] = ids

    def drop_hidden(self) -> None:
        """Free the hidden states, after something else was made of them."""
        self.hidden = None

    @property
    def num_prompt_tokens(self) -> int:
        ids = self.__dict__["prompt_token_ids"]
        return 0 if ids is None else len(ids)

    @classmethod
    def failed(
        cls,
        request_id: str,
        error: QuireError,
        *,
        prompt: str | None = None,
        prompt_token_ids: list[int] | None = None,
        metrics: RequestStateStats | None = None,
    ) -> RequestOutput:
        """The output of a prompt that never ran: one empty answer and the reason."""
        answer = CompletionOutput(0, "", [], None, None, finish_reason="error")
        return cls(
            request_id,
            prompt,
            prompt_token_ids,
            None,
            [answer],
            True,
            metrics,
            num_cached_tokens=0,
            error=error,
        )

    def followed_by(self, later: RequestOutput, *, only_new: bool = False) -> RequestOutput:
        """This output and a later one of the same request as one.

        With `only_new` each holds only new tokens, so the answers are joined; without it the later
        answers replace the earlier ones.
        """
        answers = {answer.index: answer for answer in self.outputs}
        for answer in later.outputs:
            before = answers.get(answer.index)
            joined = before is not None and only_new
            answers[answer.index] = before.continued(answer) if joined and before else answer
        later.outputs = [answers[index] for index in sorted(answers)]
        return later

    def __repr__(self) -> str:
        parts = [f"request_id={self.request_id!r}", f"prompt={self.prompt!r}"]
        if self.prompt is None and self.prompt_token_ids is not None:
            parts.append(f"prompt_token_ids={self.prompt_token_ids!r}")
        parts += [f"outputs={self.outputs!r}", f"finished={self.finished}"]
        if self.num_cached_tokens is not None:
            parts.append(f"num_cached_tokens={self.num_cached_tokens}")
        if self.error is not None:
            parts.append(f"error={self.error!r}")
        return f"RequestOutput({', '.join(parts)})"


@dataclass(slots=True)
class BeamSearchSequence:
    """One beam; `tokens` and `text` begin with the prompt, `output_token_ids` do not."""

    orig_prompt: Any
    tokens: list[int]
    logprobs: list[LogprobsOnePosition]
    lora_request: Any = None
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    output_token_ids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class BeamSearchOutput:
    """The beams of one prompt, the best first."""

    sequences: list[BeamSearchSequence]


@dataclass(frozen=True, slots=True)
class ContinuationScore:
    """How likely one continuation of a context is, in nats."""

    logprob: float
    is_greedy: bool
    num_tokens: int
    token_logprobs: tuple[float, ...]
