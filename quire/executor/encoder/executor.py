"""EncoderExecutor: runs plans whose slices are whole texts, inside the call of submit.

It ignores rows and blocks of a plan, since an encoder keeps nothing from one pass to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from quire.config import EngineConfig
from quire.errors import EngineClosed, NotSupported
from quire.executor.cpu.local import FinishedStep, limit_threads
from quire.executor.executor import ExecutorFacts, Part
from quire.executor.hidden import hidden_states
from quire.executor.torch_defaults import computes_by_usual_defaults
from quire.models.encoder import Encoder, Texts, order_texts
from quire.request import Ints
from quire.spec import EncoderSpec
from quire.step import Slice, StepPlan, StepResult, no_ints
from quire.steps.handles import Handles

# Reads the encoder's files, packs its weights for a device and returns it.
BuildEncoder = Callable[[], Encoder]


@computes_by_usual_defaults
class EncoderExecutor:
    def __init__(self, config: EngineConfig, spec: EncoderSpec, build: BuildEncoder) -> None:
        self.config, self.spec, self._build = config, spec, build
        self.handles = Handles()
        self._model: Encoder | None = None

    def start(self) -> ExecutorFacts:
        limit_threads()
        self._model = self._build()
        config = self.config
        return ExecutorFacts(
            num_blocks=virtual_blocks(config),
            device=config.device,
            dtype=config.dtype,
            notes=(f"{torch.get_num_threads()} threads",) if config.device == "cpu" else (),
        )

    @torch.inference_mode()
    def submit(self, plan: StepPlan) -> FinishedStep:
        if self._model is None:
            raise EngineClosed("this executor does not run; call start() before submit().")
        order, groups = order_texts([len(one.token_ids) for one in plan.prefill])
        texts = [plan.prefill[i] for i in order]
        hidden = self._model(_laid_out(texts, groups, self._model))
        starts = np.cumsum([0, *(len(one.token_ids) for one in texts)])
        states = hidden_states(texts, starts, hidden)
        found = {order[i]: one for i, one in states.items()}
        empty = np.empty((0, 1), np.int32)
        return FinishedStep(StepResult(empty, no_ints(), hidden=found))

    def reset(self) -> None:
        """Nothing to do: no row lasts longer than its pass."""

    def sleep(self, *, keep_weights: bool) -> None:
        """Drop the weights, unless they are to be kept and are in main memory anyway."""
        if not keep_weights or self.config.device != "cpu":
            self._model = None

    def wake_up(self, part: Part) -> None:
        if part == "weights" and self._model is None:
            self._model = self._build()

    def load_weights(self, named: Iterable[tuple[str, Tensor]]) -> set[str]:
        raise NotSupported("an encoder takes no other weights once it is built: make a new LLM.")

    def close(self) -> None:
        self._model = None


def virtual_blocks(config: EngineConfig) -> int:
    """The number of blocks for the scheduler: enough for all passes that may be in flight. No
    memory belongs to them."""
    per_pass = config.max_num_batched_tokens // config.block_size + 4 * config.max_num_seqs + 16
    return (config.depth + 1) * per_pass


def _laid_out(texts: list[Slice], groups: tuple[tuple[int, int], ...], model: Encoder) -> Texts:
    count = sum(len(one.token_ids) for one in texts)
    ids, positions = np.zeros((2, model.padded(count)), np.int64)
    np.concatenate([one.token_ids for one in texts], out=ids[:count], casting="same_kind")
    first = model.spec.first_position
    np.concatenate([_positions(one.token_ids, first) for one in texts], out=positions[:count])
    on_device = [torch.from_numpy(numbers).to(model.device) for numbers in (ids, positions)]
    return Texts(on_device[0], on_device[1], groups)


def _positions(token_ids: Ints, first: int) -> Ints:
    """0, 1, 2, ... If the table of positions begins with that of padding (-1 here), padding tokens
    have that position and are not counted."""
    if not first:
        return np.arange(len(token_ids), dtype=np.int32)
    counts = token_ids != first - 1
    positions: Ints = np.where(counts, np.cumsum(counts, dtype=np.int32), 0) - 1
    return positions
