"""The protocol between the engine and executors, without tensors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor

from quire.cache.groups import ONE_GROUP, Windows, most_tokens
from quire.step import StepPlan, StepResult
from quire.steps.handles import Handles


@dataclass(frozen=True, slots=True)
class ExecutorFacts:
    """What an executor reports when it starts: its number of KV blocks, for which groups of layers
    (cache/groups.py), and how it computes."""

    num_blocks: int
    device: str  # "cpu", "cuda:0"
    dtype: str
    notes: tuple[str, ...] = ()  # one line each, for the log and `quire doctor`
    windows: Windows = ONE_GROUP
    shelf_rows: int = 0  # rows of encoded media that have room; 0: not counted

    def most_tokens(self, block_size: int, most: int) -> int:
        """The length of the longest sequence that the blocks hold, at most `most`."""
        return most_tokens(self.windows, block_size, self.num_blocks, most)

    def pool_tokens(self, block_size: int, max_model_len: int) -> int:
        """The tokens of one sequence that all blocks hold, even if the model takes fewer."""
        return self.most_tokens(block_size, max(max_model_len, self.num_blocks * block_size))


class PendingStep(Protocol):
    """A submitted plan. `result` waits for it; results come in the order of plans."""

    def result(self) -> StepResult: ...


class Executor(Protocol):
    """Runs StepPlans in the order they are submitted."""

    @property
    def handles(self) -> Handles:
        """The objects that plans and results name by number."""

    def start(self) -> ExecutorFacts: ...

    def submit(self, plan: StepPlan) -> PendingStep: ...

    def reset(self) -> None:
        """Forget all rows and pending results; the memory stays allocated."""

    def close(self) -> None:
        """Free the device memory. Called once, when all pending results were read or dropped."""


Part = Literal["weights", "kv_cache"]
PARTS: tuple[Part, ...] = ("weights", "kv_cache")


class ModelExecutor(Executor, Protocol):
    """An executor that can give its memory back for a while and take other weights. These methods
    are called only while no plan is in flight and no row is in use."""

    def sleep(self, *, keep_weights: bool) -> None:
        """Free the KV cache and the device memory of the weights. Weights that are not kept
        elsewhere are read again by wake_up."""

    def wake_up(self, part: Part) -> None:
        """Bring a sleeping part back: the weights before the KV cache."""

    def load_weights(self, named: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Replace weights, by their names in Hugging Face checkpoints; see new_weights.py."""
