"""PoolerSpec: how a model makes embeddings and classes, by its files. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from quire.families.encoders.family import HeadPart
from quire.request import HiddenKind

Task = Literal["embed", "classify", "token_embed", "token_classify"]
TASKS: tuple[Task, ...] = ("embed", "classify", "token_embed", "token_classify")
# late: labels are made of each token's state and then averaged; of no embeddings.
PoolingType = Literal["cls", "mean", "last", "max", "weightedmean", "mean_sqrt_len", "late"]
# The hidden states that each kind of pooling needs.
STATES: Mapping[PoolingType, HiddenKind] = {
    "cls": "first",
    "mean": "sum",
    "last": "last",
    "max": "all",
    "weightedmean": "all",
    "mean_sqrt_len": "sum",
    "late": "all",
}


@dataclass(frozen=True, slots=True)
class Projection:
    """A dense layer or a norm of a sentence-transformers directory, in a folder of its own; "" if
    it is among the model's own tensors, as in GGUF."""

    folder: str
    part: HeadPart
    columns: int
    rows: int
    bias: bool


@dataclass(frozen=True, slots=True)
class TokenRows:
    """A head from two rows of the model's own head: how much likelier the second token is. Tokens
    are texts or ids; `no` None: only the second's row."""

    no: str | int | None
    yes: str | int


@dataclass(frozen=True, slots=True)
class Classifier:
    """The parts from a hidden state to labels, and the activation after them."""

    parts: tuple[HeadPart, ...] | TokenRows
    num_labels: int
    activation: Literal["sigmoid", "softmax", "identity"]
    pooling: PoolingType
    prefix: str = ""  # an optional prefix of names
    pad: int | None = None  # such tokens at the end of a text are not read


@dataclass(frozen=True, slots=True)
class PoolerSpec:
    """How hidden states become the result of a task.

    `dimensions` are sizes to which an embedding may be cut: None for none, () for any."""

    tasks: tuple[Task, ...]
    pooling: tuple[PoolingType, ...]  # their results are joined
    normalise: bool = True
    projections: tuple[Projection, ...] = ()
    dimensions: tuple[int, ...] | None = None
    classifier: Classifier | None = None
    # Prompts that texts begin with, by name; and the default.
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    # Options of the chat template, if texts are chat messages; None: they are not.
    chat: Mapping[str, Any] | None = None
    lower_case: bool = False
    max_len: int | None = None
    cut_to: int | None = None  # the default size of embeddings
    pools_prompt: bool = True  # whether the tokens of such a prompt count in pooling
    why_not: str = ""  # why a task is missing, and what to do

    @property
    def is_cross_encoder(self) -> bool:
        """Whether a pair of texts is scored together in one pass."""
        return self.classifier is not None and self.classifier.num_labels == 1

    def states(self, task: Task) -> HiddenKind:
        """The hidden states that a task needs."""
        kinds = {STATES[kind] for kind in self.pooling_of(task)}
        return "all" if task.startswith("token_") or len(kinds) > 1 else kinds.pop()

    def leaves_out_prompt(self, task: Task) -> bool:
        """Whether a task's result depends on leaving the tokens of a prompt out of pooling."""
        return task == "embed" and not self.pools_prompt and {*self.pooling} != {"last"}

    def pooling_of(self, task: Task) -> tuple[PoolingType, ...]:
        """The kinds of pooling by which a task for whole texts joins the states of tokens."""
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
