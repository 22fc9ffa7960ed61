"""The interface of logits processors that edit a whole batch, under the names that scripts know.

One object edits the logits of every row. It gets the changes of the batch first, and then the
logits [rows, vocabulary], row i of the batch in line i.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from quire.errors import InvalidOption
from quire.sampling.call_threads import attempt

if TYPE_CHECKING:
    import torch

    from quire.config import VllmConfig
    from quire.sampling_params import SamplingParams

State = TypeVar("State")


class MoveDirectionality(Enum):
    """How a row changes places with another."""

    UNIDIRECTIONAL = auto()  # it takes the place of a row that is gone
    SWAP = auto()


RemovedRequest = int
AddedRequest = tuple[int, "SamplingParams", "list[int] | None", "list[int]"]
MovedRequest = tuple[int, int, MoveDirectionality]
RequestLogitsProcessor = Callable[..., "torch.Tensor"]


@dataclass(frozen=True)
class BatchUpdate:
    """How the batch changed since the last step: first removed, then added, then moved.

    An added row is (index, params, prompt ids, output ids); its output ids are a list that grows
    as the row does. It replaces the row that was at its index. A move is (from, to, how).
    """

    batch_size: int
    removed: Sequence[RemovedRequest]
    added: Sequence[AddedRequest]
    moved: Sequence[MovedRequest]


class LogitsProcessor(ABC):
    """Edits the logits of a batch."""

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise ValueError for parameters that it cannot work with; by default for none."""
        return None

    @abstractmethod
    def __init__(
        self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool
    ) -> None: ...

    @abstractmethod
    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """The edited logits of the batch, in the same tensor or a new one. [rows, vocabulary]"""

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """Whether the likeliest token never changes: then greedy rows need not be processed."""

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Called before each step; None if the batch is the same as before, but for new tokens."""


class AdapterLogitsProcessor(LogitsProcessor):
    """Gives each request a function of its own: (output ids, logits) -> logits, or (prompt ids,
    output ids, logits) -> logits, with logits [vocabulary].

    quire calls `new_req_logits_processor` once for each request. The function it returns runs as
    those of SamplingParams.logits_processors do: beside the other rows.
    """

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self.req_info: dict[int, Callable[[torch.Tensor], torch.Tensor]] = {}

    @abstractmethod
    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        """The function for a request with these parameters, None if it needs none."""

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self.req_info, batch_update, self._new_state)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for index, processor in self.req_info.items():
            logits[index] = processor(logits[index])
        return logits

    def _new_state(
        self, params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]
    ) -> Callable[[torch.Tensor], torch.Tensor] | None:
        processor = self.new_req_logits_processor(params)
        if processor is None:
            return None
        if wants_prompt(processor):
            return partial(processor, prompt_ids, output_ids)
        return partial(processor, output_ids)


def make_processor(made_by: Callable[..., Any], told: VllmConfig, device: torch.device) -> Any:
    """Make an object of the caller's class; InvalidOption if that fails."""
    outcome = attempt(lambda: made_by(told, device, False))
    if outcome.error is not None:
        name = getattr(made_by, "__name__", repr(made_by))
        raise InvalidOption(
            f"the logits processor {name} could not be made: {outcome.error}",
            parameter="logits_processors",
            value=made_by,
        ) from outcome.error
    return outcome.made


def wants_prompt(processor: Callable[..., Any]) -> bool:
    """Whether it takes (prompt ids, output ids, logits), not (output ids, logits)."""
    try:
        given = inspect.signature(processor).parameters.values()
    except (TypeError, ValueError):
        return False  # not written in Python
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is p.empty for p in given) >= 3


def process_dict_updates(
    req_entries: dict[int, State],
    batch_update: BatchUpdate | None,
    new_state: Callable[[SamplingParams, list[int] | None, list[int]], State | None],
) -> bool:
    """Update a dict of {index: state} by the changes of a batch; returns whether it changed.

    `new_state(params, prompt ids, output ids)` makes the state of a new row, None if it has none.
    """
    if batch_update is None:
        return False
    before = dict(req_entries)
    for index in batch_update.removed:
        req_entries.pop(index, None)
    for index, params, prompt_ids, output_ids in batch_update.added:
        req_entries.pop(index, None)
        state = new_state(params, prompt_ids, output_ids)
        if state is not None:
            req_entries[index] = state
    for source, target, how in batch_update.moved:
        moving, replaced = req_entries.pop(source, None), req_entries.pop(target, None)
        if moving is not None:
            req_entries[target] = moving
        if replaced is not None and how is MoveDirectionality.SWAP:
            req_entries[source] = replaced
    return before != req_entries or bool(batch_update.added)
