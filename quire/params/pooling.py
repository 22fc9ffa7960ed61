"""Pooling models (embedding, classification, scoring): their parameters and outputs."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from quire.errors import InvalidParams, QuireError
from quire.params.output_kind import RequestOutputKind
from quire.params.rules import one_of, truth, whole
from quire.params.unknown import explains_unknown_keywords

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

TASKS = ("embed", "classify", "token_embed", "token_classify")


@explains_unknown_keywords
@dataclass(slots=True)
class PoolingParams:
    """What a pooling model should compute, and how."""

    use_activation: bool | None = None
    dimensions: int | None = None
    step_tag_id: int | None = None
    returned_token_ids: list[int] | None = None
    task: str | None = None
    requires_token_ids: bool = False
    skip_reading_prefix_cache: bool | None = None
    extra_kwargs: dict[str, Any] | None = None
    output_kind: RequestOutputKind = RequestOutputKind.FINAL_ONLY
    truncate_prompt_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.dimensions is not None:
            self.dimensions = whole(InvalidParams, "dimensions", self.dimensions, low=1)
        for name in ("use_activation", "skip_reading_prefix_cache"):
            if getattr(self, name) is not None:
                setattr(self, name, truth(InvalidParams, name, getattr(self, name)))
        if self.truncate_prompt_tokens is not None:
            whole(InvalidParams, "truncate_prompt_tokens", self.truncate_prompt_tokens, low=-1)
        if self.task is not None:
            one_of(InvalidParams, "task", self.task, TASKS)

    def clone(self) -> PoolingParams:
        return copy.deepcopy(self)

    def checked_copy(self) -> PoolingParams:
        """A copy whose fields are checked again, because scripts assign to them."""
        return replace(self)


@dataclass(slots=True)
class PoolingOutput:
    """What a pooling model computed: a tensor."""

    data: Any


@dataclass(slots=True)
class PoolerConfig:
    """How hidden states become an embedding: `LLM(..., pooler_config=PoolerConfig(...))`. LLM
    refuses fields that it does not support."""

    pooling_type: str | None = None
    use_activation: bool | None = None
    seq_pooling_type: str | None = None
    tok_pooling_type: str | None = None
    task: str | None = None
    normalize: bool | None = None
    dimensions: int | None = None
    enable_chunked_processing: bool | None = None
    max_embed_len: int | None = None
    logit_mean: float | None = None
    logit_sigma: float | None = None
    step_tag_id: int | None = None
    returned_token_ids: list[int] | None = None


class EmbeddingOutput:
    """A vector. `embedding` makes a list when it is first read, `array` has the same numbers as
    float32: a million vectors as lists take eight times the memory."""

    __slots__ = ("_values",)

    def __init__(self, embedding: list[float] | npt.NDArray[np.float32]) -> None:
        self._values = embedding

    @staticmethod
    def from_base(pooling_output: PoolingOutput) -> EmbeddingOutput:
        return EmbeddingOutput(_vector(pooling_output))

    @property
    def embedding(self) -> list[float]:
        if isinstance(self._values, list):
            return self._values
        listed: list[float] = self._values.tolist()
        self._values = listed
        return listed

    @property
    def array(self) -> npt.NDArray[np.float32]:
        import numpy as np

        return np.asarray(self._values, np.float32)

    @property
    def hidden_size(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EmbeddingOutput) and self.embedding == other.embedding

    def __repr__(self) -> str:
        return f"EmbeddingOutput(hidden_size={self.hidden_size})"


@dataclass(slots=True)
class ClassificationOutput:
    probs: list[float]

    @staticmethod
    def from_base(pooling_output: PoolingOutput) -> ClassificationOutput:
        return ClassificationOutput(_vector(pooling_output))

    @property
    def num_classes(self) -> int:
        return len(self.probs)

    def __repr__(self) -> str:
        return f"ClassificationOutput(num_classes={self.num_classes})"


@dataclass(slots=True)
class ScoringOutput:
    score: float

    @staticmethod
    def from_base(pooling_output: PoolingOutput) -> ScoringOutput:
        (score,) = _vector(pooling_output)
        return ScoringOutput(score)


Pooled = TypeVar("Pooled")


class PoolingRequestOutput(Generic[Pooled]):
    """The result of a pooling model for one prompt; with an `error` its `outputs` are None."""

    def __init__(
        self,
        request_id: str,
        outputs: Pooled,
        prompt_token_ids: list[int],
        num_cached_tokens: int,
        finished: bool,
        *,
        error: QuireError | None = None,
    ) -> None:
        self.request_id = request_id
        self.outputs = outputs
        self.prompt_token_ids = prompt_token_ids
        self.num_cached_tokens = num_cached_tokens
        self.finished = finished
        self.error = error

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(request_id={self.request_id!r}, outputs={self.outputs!r}, "
            f"prompt_token_ids={self.prompt_token_ids!r}, finished={self.finished})"
        )


class _Made(PoolingRequestOutput[Pooled]):
    """An output whose `outputs` are made from those of encode()."""

    _kind: Any

    @classmethod
    def from_base(cls, output: PoolingRequestOutput[PoolingOutput]) -> Self:
        made: Any = None if output.error is not None else cls._kind.from_base(output.outputs)
        return cls(
            output.request_id,
            made,
            output.prompt_token_ids,
            output.num_cached_tokens,
            output.finished,
            error=output.error,
        )


class EmbeddingRequestOutput(_Made[EmbeddingOutput]):
    """An embedding of one prompt."""

    _kind = EmbeddingOutput


class ClassificationRequestOutput(_Made[ClassificationOutput]):
    """The class probabilities of one prompt."""

    _kind = ClassificationOutput


class ScoringRequestOutput(_Made[ScoringOutput]):
    """The score of one pair of texts."""

    _kind = ScoringOutput


def _vector(pooling_output: PoolingOutput) -> list[float]:
    data = pooling_output.data
    values = data.tolist() if hasattr(data, "tolist") else data
    return [values] if isinstance(values, float) else list(values)
