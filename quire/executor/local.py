"""LocalExecutor: the model in this process, computed where submit is called."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import torch

from quire.config import EngineConfig
from quire.errors import EngineClosed, NotSupported
from quire.executor.executor import ExecutorFacts
from quire.executor.memory import block_bytes, longest_sequence, make_cache, num_blocks
from quire.executor.probe import available_memory, num_cores
from quire.executor.rows import DeviceRows
from quire.executor.runner import Runner
from quire.executor.samplers import sampler_for
from quire.handles import Handles
from quire.kernels.native.kernels import cache_dtype_beside_int8
from quire.kernels.ops import kernels_for
from quire.models.decoder import Weights, head_shape
from quire.models.registry import build_model
from quire.spec import ModelSpec
from quire.step import StepPlan, StepResult
from quire.tp import TensorParallel

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A step that was computed when it was submitted."""

    made: StepResult

    def result(self) -> StepResult:
        return self.made


class LocalExecutor:
    """Runs plans inline on one device.

    It takes over `weights`: the dict is emptied while the model is built, so that no weight
    lies in memory twice.
    """

    def __init__(self, config: EngineConfig, spec: ModelSpec, weights: Weights) -> None:
        if config.kv_cache_dtype not in ("auto", config.dtype):
            raise NotSupported(
                f"kv_cache_dtype={config.kv_cache_dtype!r}: the KV cache has the model's type "
                f"({config.dtype}). Leave it at 'auto'."
            )
        self.config, self.spec = config, spec
        self.handles = Handles()
        self._weights: Weights | None = weights
        self._runner: Runner | None = None

    def start(self) -> ExecutorFacts:
        """Build the model, size the KV pool, and say what came of it."""
        if self._weights is None:
            raise EngineClosed("this executor was started or closed before; make a new one.")
        config, spec = self.config, self.spec
        weights, self._weights = self._weights, None
        device, dtype = torch.device(config.device), DTYPES[config.dtype]
        _limit_threads()
        shape = head_shape(spec, config.block_size, dtype)
        kernels = kernels_for(config.device, shape, batch_invariant=config.batch_invariant)
        model = build_model(spec, weights, kernels, shape, max_len=0, tp=TensorParallel())
        cache_dtype = dtype
        if config.quantization == "int8" and config.kv_cache_dtype == "auto":
            cache_dtype = cache_dtype_beside_int8(kernels, shape)
        count = num_blocks(config, spec, cache_dtype, available_memory())
        model.rotary.reach(longest_sequence(config, count))
        sampler = sampler_for(config, spec.vocab_size, device, self.handles)
        cache = make_cache(spec, count, config.block_size, cache_dtype, device)
        rows = DeviceRows(config.max_num_seqs, device)
        self._runner = Runner(
            model,
            cache,
            rows,
            sampler,
            config.block_size,
            handles=self.handles,
            scores_as_logits=config.logprobs_mode.endswith("_logits"),
        )
        size = count * block_bytes(spec, config.block_size, cache_dtype) / (1 << 20)
        how = "" if cache_dtype == dtype else " in bfloat16"
        return ExecutorFacts(
            num_blocks=count,
            device=config.device,
            dtype=config.dtype,
            notes=(
                f"KV cache: {count} blocks of {config.block_size} tokens{how} ({size:,.0f} MiB)",
                f"{torch.get_num_threads()} threads",
            ),
        )

    def submit(self, plan: StepPlan) -> FinishedStep:
        if self._runner is None:
            raise EngineClosed("this executor does not run; call start() before submit().")
        return FinishedStep(self._runner.run(plan))

    def reset(self) -> None:
        """End every row; the model and the KV cache stay."""
        if self._runner is not None:
            self._runner.end_rows(np.arange(self.config.max_num_seqs, dtype=np.int32))

    def close(self) -> None:
        """Drop the model and the KV cache; their memory goes back at once."""
        self._runner = None
        self._weights = None


def _limit_threads() -> None:
    """Torch counts the machine's cores; a container may have fewer, and threads beyond those
    only wait for each other. Whoever set OMP_NUM_THREADS has decided."""
    if "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > num_cores():
        torch.set_num_threads(num_cores())
