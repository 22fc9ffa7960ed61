"""LocalExecutor: runs the model in this process, inside the call of submit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire.backends.choose import kernels_for
from quire.backends.ops import HeadShape, Kernels
from quire.config import EngineConfig
from quire.errors import EngineClosed, NotSupported
from quire.executor.adapters import make_sites, row_adapters
from quire.executor.cpu.rows import DeviceRows
from quire.executor.cpu.runner import Runner
from quire.executor.declined import declined_notes
from quire.executor.executor import ExecutorFacts, Part
from quire.executor.memory import (
    block_bytes,
    groups_of,
    heard_rows,
    longest_sequence,
    make_cache,
    num_blocks,
    pool_bytes,
    windows_of,
)
from quire.executor.new_weights import NewWeights
from quire.executor.probe import available_memory, num_cores
from quire.executor.samplers import MakeSampler, sampler_for
from quire.executor.shelf import Shelf, Tower
from quire.executor.torch_defaults import computes_by_usual_defaults
from quire.layers.adapted import AdapterSites
from quire.layers.kv_groups import BlockTables
from quire.layers.tp import TensorParallel
from quire.models.decoder import Decoder, head_shape
from quire.models.fallback.loaded import LoadedModule
from quire.models.model import Model, ModuleModel
from quire.models.registry import build_any_model
from quire.models.weight_parts import Weights
from quire.spec import ModelSpec
from quire.step import StepPlan, StepResult
from quire.steps.handles import Handles

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

NO_EXCHANGE = "a model that Transformers computes takes no other weights: make a new LLM."


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A step that submit has computed already."""

    made: StepResult

    def result(self) -> StepResult:
        return self.made


@computes_by_usual_defaults
class LocalExecutor:
    """Runs plans inline on one device.

    It empties the dict `weights` while it builds the model, so that no weight is in memory twice.
    """

    def __init__(
        self,
        config: EngineConfig,
        spec: ModelSpec,
        weights: Weights | LoadedModule,
        *,
        read_again: Callable[[], Weights | LoadedModule] | None = None,
        tower: Callable[[], Tower] | None = None,
        tp: TensorParallel | None = None,
        make_sampler: MakeSampler = sampler_for,
    ) -> None:
        """`read_again` reads the weights again after a sleep that dropped them. `tower` makes the
        encoder of media when the first item comes. `tp`: this rank, if there are several; `spec` is
        then of its share."""
        if config.kv_cache_dtype not in ("auto", config.dtype):
            raise NotSupported(
                f"kv_cache_dtype={config.kv_cache_dtype!r}: the KV cache has the model's type "
                f"({config.dtype}). Leave it at 'auto'."
            )
        self.config, self.spec, self._read_again = config, spec, read_again
        self._tp, self._make_sampler = tp or TensorParallel(), make_sampler
        self.handles = Handles()
        self.shelf = Shelf(tower, alone=config.batch_invariant, tp=self._tp)
        self._weights: Weights | LoadedModule | None = weights
        self._model: Decoder | ModuleModel | None = None
        self._runner: Runner | None = None
        self._num_blocks = 0
        self._sites: AdapterSites | None = None

    def start(self) -> ExecutorFacts:
        """Build the model and the KV pool, and return facts about them."""
        if self._weights is None:
            raise EngineClosed("this executor was started or closed before; make a new one.")
        config, spec = self.config, self.spec
        weights, self._weights = self._weights, None
        limit_threads()
        self._model = model = self._build(weights)
        self._load_tower()
        cache_dtype = self._cache_dtype(model)
        free = self._free_memory() // self._tp.size  # ranks share it
        count = self._tp.least(num_blocks(config, spec, cache_dtype, free))
        self._num_blocks = count
        self._runner = self._make_runner(model)
        groups = groups_of(config, spec)
        size = count * block_bytes(spec, config.block_size, cache_dtype, groups) / (1 << 20)
        how = "" if cache_dtype == DTYPES[config.dtype] else " in bfloat16"
        whose = f" for {len(groups)} groups of layers" if len(groups) > 1 else ""
        return ExecutorFacts(
            num_blocks=count,
            device=config.device,
            dtype=config.dtype,
            notes=(
                f"KV cache: {count} blocks of {config.block_size} tokens{how}{whose} "
                f"({size:,.0f} MiB)",
                self._computes_with(),
                *declined_notes(model.kernels, spec),
            ),
            windows=windows_of(groups),
            shelf_rows=heard_rows(config, spec, DTYPES[config.dtype], pool_bytes(config, free)),
        )

    def _free_memory(self) -> int:
        """Free bytes of the device, with the weights loaded."""
        return available_memory()

    def _computes_with(self) -> str:
        count = torch.get_num_threads()
        return f"{count} thread{'s' if count > 1 else ''}"

    def _kernels(self) -> Kernels:
        invariant = self.config.batch_invariant
        return kernels_for(self.config.device, self._shape, batch_invariant=invariant)

    @property
    def _shape(self) -> HeadShape:
        return head_shape(self.spec, self.config.block_size, DTYPES[self.config.dtype])

    def _build(self, weights: Weights | LoadedModule) -> Decoder | ModuleModel:
        config, shape, kernels = self.config, self._shape, self._kernels()
        if config.adapters is not None:
            device = torch.device(config.device)
            changed = weights if isinstance(weights, LoadedModule) else self.spec
            self._sites = make_sites(
                config.adapters, changed, kernels, shape.dtype, device, self._tp
            )
        return build_any_model(
            self.spec, weights, kernels, shape, max_len=0, tp=self._tp, adapters=self._sites
        )

    def _load_tower(self) -> None:
        """Load the tower now if there are several ranks: a plan that takes as long as reading files
        would be taken for one that hangs. A single rank loads it when the first item comes."""
        if self._tp.size > 1:
            self.shelf.load()

    def load_tower(self) -> int | None:
        """Load the tower now. Returns the bytes of one of its rows if threads may encode items
        beside plans (Shelf.encode_aside). None on several ranks: all of them must encode, which
        only plans tell them."""
        self.shelf.load()
        return None if self._tp.size > 1 else 4 * self.shelf.tower.row_width

    def _cache_dtype(self, model: Model) -> torch.dtype:
        auto = self.config.kv_cache_dtype == "auto"
        return model.kv_dtype if auto else DTYPES[self.config.dtype]

    def _make_runner(self, model: Model) -> Runner:
        config, spec, device = self.config, self.spec, torch.device(self.config.device)
        cache_dtype = self._cache_dtype(model)
        groups = groups_of(config, spec)
        windows = windows_of(groups)
        count = self._num_blocks + any(window is not None for window in windows)  # see Runner
        model.rotary.reach(longest_sequence(config, self._num_blocks, windows))
        return Runner(
            model,
            make_cache(spec, count, config.block_size, cache_dtype, device, groups),
            DeviceRows(config.max_num_seqs, device, BlockTables.of(groups)),
            self._make_sampler(config, spec.vocab_size, device, self.handles),
            config.block_size,
            handles=self.handles,
            groups=groups,
            scores_as_logits=config.logprobs_mode.endswith("_logits"),
            shelf=self.shelf,
            adapters=row_adapters(config, self._sites, self.handles),
        )

    def sleep(self, *, keep_weights: bool) -> None:
        """Drop the KV cache, and the weights unless they are kept: they are in main memory
        anyway."""
        self._runner = None
        if not keep_weights:
            self._model = self.handles.exchange = None
            self.shelf.drop_tower()

    def wake_up(self, part: Part) -> None:
        if self._model is None:
            if self._read_again is None:
                raise EngineClosed("the weights were dropped, and there is no way to read them.")
            self._model = self._build(self._read_again())
            self._load_tower()
        if part == "kv_cache" and self._runner is None:
            self._runner = self._make_runner(self._model)

    def load_weights(self, named: Iterable[tuple[str, Tensor]]) -> set[str]:
        if self._model is None:
            raise EngineClosed("this executor has no weights that could be exchanged.")
        if not isinstance(self._model, Decoder):
            raise NotSupported(NO_EXCHANGE)
        if self._runner is not None and self._runner.adapters is not None:
            self._runner.adapters.forget()
        if self.handles.exchange is None:
            self.handles.exchange = NewWeights(self._model, self.spec)
        return self.handles.exchange.load(named)

    def submit(self, plan: StepPlan) -> FinishedStep:
        if self._runner is None:
            raise EngineClosed("this executor does not run; call start() before submit().")
        result = self._runner.run(plan)
        if plan.masks is not None:  # also if no row that draws has used them
            self.handles.wait_for(plan.masks)
        return FinishedStep(result)

    def reset(self) -> None:
        """End all rows. The model and the KV cache stay."""
        if self._runner is not None:
            self._runner.end_rows(np.arange(self.config.max_num_seqs, dtype=np.int32))
        self.shelf.clear()

    def close(self) -> None:
        """Drop the model and the KV cache, which frees their memory at once."""
        self._runner = self._model = self._weights = self.handles.exchange = None
        self.shelf.drop_tower()


def limit_threads() -> None:
    """Use no more threads than this process has cores: torch counts those of the machine, though a
    container may have fewer. OMP_NUM_THREADS wins if it is set."""
    if "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > num_cores():
        torch.set_num_threads(num_cores())
