"""PoolerSpec: what a model's files say about embeddings and classes. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from quire.families.encoders.family import HeadPart
from quire.request import HiddenKind

Task = Literal["embed", "classify", "token_embed", "token_classify"]
TASKS: tuple[Task, ...] = ("embed", "classify", "token_embed", "token_classify")
PoolingType = Literal["cls", "mean", "last", "max", "weightedmean", "mean_sqrt_len"]
# Which hidden states each kind of pooling is made of.
STATES: Mapping[PoolingType, HiddenKind] = {
    "cls": "first",
    "mean": "sum",
    "last": "last",
    "max": "all",
    "weightedmean": "all",
    "mean_sqrt_len": "sum",
}


@dataclass(frozen=True, slots=True)
class Projection:
    """A dense layer or a norm of a sentence-transformers directory, in a folder of its own; ""
    where it lies among the model's own tensors, as in GGUF."""

    folder: str
    part: HeadPart
    columns: int
    rows: int
    bias: bool


@dataclass(frozen=True, slots=True)
class TokenRows:
    """A head made of two rows of the model's own head: how much likelier the second token is.
    Tokens are texts or ids; `no` None: the second's row alone."""

    no: str | int | None
    yes: str | int


@dataclass(frozen=True, slots=True)
class Classifier:
    """What leads from a hidden state to labels, and the activation after it."""

    parts: tuple[HeadPart, ...] | TokenRows
    num_labels: int
    activation: Literal["sigmoid", "softmax", "identity"]
    pooling: PoolingType
    prefix: str = ""  # that names may have


@dataclass(frozen=True, slots=True)
class PoolerSpec:
    """How hidden states become what a task asks for.

    `dimensions` are sizes to which an embedding may be cut: None for none, () for any."""

    tasks: tuple[Task, ...]
    pooling: tuple[PoolingType, ...]  # what they make is laid end to end
    normalise: bool = True
    projections: tuple[Projection, ...] = ()
    dimensions: tuple[int, ...] | None = None
    classifier: Classifier | None = None
    # What texts begin with, by name; the one that all do that name none.
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    # Texts are messages of a chat, and its template is given these options; None: they are not.
    chat: Mapping[str, Any] | None = None
    lower_case: bool = False
    max_len: int | None = None
    cut_to: int | None = None  # the size of embeddings where nothing is asked
    why_not: str = ""  # a task is missing: what to do about it

    @property
    def is_cross_encoder(self) -> bool:
        """Whether a pair of texts is scored together, in one pass."""
        return self.classifier is not None and self.classifier.num_labels == 1

    def states(self, task: Task) -> HiddenKind:
        """The hidden states that a task is made of."""
        kinds = {STATES[kind] for kind in self.pooling_of(task)}
        return "all" if task.startswith("token_") or len(kinds) > 1 else kinds.pop()

    def pooling_of(self, task: Task) -> tuple[PoolingType, ...]:
        """What a task that is about a whole text makes one of its tokens' states by."""
        if task == "classify" and self.classifier is not None:
            return (self.classifier.pooling,)
        return self.pooling


PLAIN_GENERATOR = PoolerSpec(
    (),
    ("last",),
    why_not="this model generates text. LLM(..., convert='embed'), on the command line --option "
    "convert=embed, makes it give embeddings of the last token; classes need a model with a head "
    "for them (...ForSequenceClassification).",
)
