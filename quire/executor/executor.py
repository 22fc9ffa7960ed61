"""What the engine asks of whatever computes: the protocol, and nothing about tensors."""

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
    """What starting an executor taught: how many KV blocks there are, for which groups of layers
    (cache/groups.py), and how it computes."""

    num_blocks: int
    device: str  # "cpu", "cuda:0"
    dtype: str
    notes: tuple[str, ...] = ()  # one line each, for the log and `quire doctor`
    windows: Windows = ONE_GROUP
    shelf_rows: int = 0  # of encoded media that have room; 0: that was not counted

    def most_tokens(self, block_size: int, most: int) -> int:
        """Tokens of the longest sequence that the blocks hold, at most `most`."""
        return most_tokens(self.windows, block_size, self.num_blocks, most)

    def pool_tokens(self, block_size: int, max_model_len: int) -> int:
        """What all blocks hold of one sequence, even if that is more than the model takes."""
        return self.most_tokens(block_size, max(max_model_len, self.num_blocks * block_size))


class PendingStep(Protocol):
    """A plan that was submitted; `result` waits for it. Results come in the order of plans."""

    def result(self) -> StepResult: ...


class Executor(Protocol):
    """Runs StepPlans in the order they are submitted."""

    @property
    def handles(self) -> Handles:
        """What plans and results name that is no plain data."""

    def start(self) -> ExecutorFacts: ...

    def submit(self, plan: StepPlan) -> PendingStep: ...

    def reset(self) -> None:
        """Forget every row and every pending result; the memory stays."""

    def close(self) -> None:
        """Free the device memory; called once, after every pending result was read or dropped."""


Part = Literal["weights", "kv_cache"]
PARTS: tuple[Part, ...] = ("weights", "kv_cache")


class ModelExecutor(Executor, Protocol):
    """An executor that can give its memory back for a while, and take other weights. All of it
    while no plan is on its way and no row has begun."""

    def sleep(self, *, keep_weights: bool) -> None:
        """Free the KV cache and the device's memory of the weights. Weights that are not kept
        elsewhere are read again when they are woken."""

    def wake_up(self, part: Part) -> None:
        """Bring a part back that sleeps: the weights before the KV cache."""

    def load_weights(self, named: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Exchange weights, by the names of Hugging Face checkpoints; see new_weights.py."""
