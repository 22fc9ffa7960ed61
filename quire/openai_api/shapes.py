"""The types of whole answers: mypy checks the code that writes them, and /openapi.json shows
them."""

from __future__ import annotations

from typing import Any, Generic, Literal, NotRequired, TypedDict, TypeVar

Item = TypeVar("Item")


class CachedTokens(TypedDict):
    cached_tokens: int


class ReasoningTokens(TypedDict):
    reasoning_tokens: int


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class Token(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class ScoredToken(Token):
    top_logprobs: list[Token]


class ChatScores(TypedDict):
    content: list[ScoredToken]
    refusal: None


class TextScores(TypedDict):
    """An entry for each token; None for the first of a prompt, which has no probability."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class PromptScore(TypedDict):
    logprob: float
    rank: int | None
    decoded_token: str


PromptScores = list[dict[str, PromptScore] | None]  # by token ids, as vLLM writes them


class Function(TypedDict):
    name: str
    arguments: str


class CallBody(TypedDict):
    id: str
    type: Literal["function"]
    function: Function


class ChatMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    reasoning: NotRequired[str]
    tool_calls: NotRequired[list[CallBody]]


FinishReason = Literal["stop", "length", "tool_calls"]


class ChatChoice(TypedDict):
    index: int
    message: ChatMessage
    logprobs: ChatScores | None
    finish_reason: FinishReason
    stop_reason: int | str | None
    token_ids: NotRequired[list[int]]


class TextChoice(TypedDict):
    index: int
    text: str
    logprobs: TextScores | None
    finish_reason: FinishReason
    stop_reason: int | str | None
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[PromptScores]


class ChatCompletion(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: None
    service_tier: Literal["flex", "default"]
    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[PromptScores]


class TextCompletion(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    system_fingerprint: None


class InputTokens(CachedTokens):
    cache_write_tokens: int


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: InputTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


Status = Literal["in_progress", "completed", "incomplete"]


class ResponseBody(TypedDict):
    """The fields of the request are repeated unchanged."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Status
    error: None
    incomplete_details: dict[str, str] | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, Any]
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: dict[str, str | None]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_p: float
    truncation: Literal["disabled"]
    usage: ResponseUsage | None


class PoolUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int


class PoolBody(TypedDict, Generic[Item]):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Item]
    usage: PoolUsage


class Embedding(TypedDict):
    object: Literal["embedding"]
    index: int
    embedding: str | list[float]


class Pooling(TypedDict):
    """For a model with a vector for each token the numbers are a list of lists."""

    object: Literal["pooling"]
    index: int
    data: Any


class Classes(TypedDict):
    index: int
    label: str | None
    probs: list[float]
    num_classes: int


class Score(TypedDict):
    index: int
    object: Literal["score"]
    score: float


class Document(TypedDict):
    text: str


class Rank(TypedDict):
    index: int
    relevance_score: float
    document: NotRequired[Document]


class Ranks(TypedDict):
    id: str
    model: str
    results: list[Rank]
    meta: NotRequired[dict[str, dict[str, Any]]]
    usage: PoolUsage


class PromptUsage(TypedDict):
    prompt_tokens: int


class LabelScores(TypedDict):
    object: Literal["scoring"]
    model: str
    scores: list[list[float]]
    usage: PromptUsage


class SoundUsage(TypedDict):
    type: Literal["duration"]
    seconds: int


class Transcription(TypedDict):
    text: str
    usage: SoundUsage


class TranscribedSegment(TypedDict):
    """`tokens` are without time tokens; the last four fields belong to the whole answer."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class VerboseTranscription(TypedDict):
    task: str
    language: str
    duration: float
    text: str
    segments: list[TranscribedSegment]
    usage: SoundUsage
