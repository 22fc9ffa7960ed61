"""CudaExecutor: runs the model on one GPU, while the host plans the next steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quire.backends.capturing import WHOLE_DEVICE
from quire.backends.choose import kernels_for
from quire.backends.ops import STEADY_ROWS, HeadShape
from quire.config import EngineConfig
from quire.errors import EngineClosed, NotSupported
from quire.executor.adapters import make_sites, row_adapters
from quire.executor.cpu.local import DTYPES, NO_EXCHANGE
from quire.executor.cuda.device_rows import DeviceColumns
from quire.executor.cuda.errors import gpu_errors
from quire.executor.cuda.masks import pinned_masks
from quire.executor.cuda.memory import num_cuda_blocks, num_cuda_sounds
from quire.executor.cuda.offload import OffloadedWeights, give_back
from quire.executor.cuda.prompts import NOTHING_CAPTURED, Captured
from quire.executor.cuda.runner import CudaRunner
from quire.executor.cuda.steady import check_steady
from quire.executor.cuda.step import CudaStep
from quire.executor.declined import declined_notes
from quire.executor.executor import ExecutorFacts, Part
from quire.executor.memory import groups_of, longest_sequence, make_cache, windows_of
from quire.executor.new_weights import NewWeights
from quire.executor.precompile.warmup import Warmup
from quire.executor.samplers import MakeSampler, sampler_for
from quire.executor.shelf import Shelf, Tower
from quire.executor.sound_pages import SoundPages
from quire.executor.torch_defaults import computes_by_usual_defaults
from quire.layers.adapted import AdapterSites
from quire.layers.kv_groups import BlockTables
from quire.layers.tp import TensorParallel
from quire.models.decoder import Decoder, head_shape
from quire.models.fallback.loaded import LoadedModule
from quire.models.model import ModuleModel
from quire.models.registry import build_any_model
from quire.models.weight_parts import Weights
from quire.spec import ModelSpec
from quire.step import StepPlan
from quire.steps.automata import AutomatonRoom, num_states_for
from quire.steps.handles import Handles

if TYPE_CHECKING:
    from quire.executor.cuda.adapters import CudaAdapters

# Numbers of rows of a small step and of a short prompt: the library has kernels for each.
TOUCHED_ROWS = (4, 256)
SPARE_BYTES = 1 << 30


@computes_by_usual_defaults
class CudaExecutor:
    """Runs plans on one GPU; `submit` returns before they are computed.

    `weights` are on the GPU already. The dict is emptied while the model is built.
    """

    def __init__(
        self,
        config: EngineConfig,
        spec: ModelSpec,
        weights: Weights | LoadedModule,
        warmup: Warmup | None = None,
        *,
        read_again: Callable[[], Weights | LoadedModule] | None = None,
        tower: Callable[[], Tower] | None = None,
        tp: TensorParallel | None = None,
        make_sampler: MakeSampler = sampler_for,
    ) -> None:
        """`warmup`: compiles kernels already, if given. `read_again` reads the weights again after
        a sleep that dropped them. `tower` makes the encoder of media. `tp`: this rank, if there are
        several; `spec` is then of its share."""
        if config.kv_cache_dtype not in ("auto", "fp8", config.dtype):
            raise NotSupported(
                f"kv_cache_dtype={config.kv_cache_dtype!r}: the KV cache has the model's type "
                f"({config.dtype}) or fp8. Leave it at 'auto', or use 'fp8'."
            )
        check_steady(config, spec)
        self.config, self.spec, self._read_again = config, spec, read_again
        self._tp, self._make_sampler = tp or TensorParallel(), make_sampler
        self.handles, self.shelf = Handles(), Shelf(tower)
        self.handles.new_masks = pinned_masks
        self.handles.automata = AutomatonRoom(num_states_for(spec.vocab_size))
        self._device = torch.device("cuda", torch.cuda.current_device())
        self._weights: Weights | LoadedModule | None = weights
        self._warmup = warmup
        self._model: Decoder | ModuleModel | None = None
        self._on_host: OffloadedWeights | None = None
        self._runner: CudaRunner | None = None
        self._num_blocks = self._num_sounds = 0
        self._why_not_captured = ""
        self._sites: AdapterSites | None = None

    def start(self) -> ExecutorFacts:
        """Build the model and the KV pool, and return facts about them."""
        if self._weights is None:
            raise EngineClosed("this executor was started or closed before; make a new one.")
        weights, self._weights = self._weights, None
        config, dtype = self.config, DTYPES[self.config.dtype]
        with gpu_errors("while starting"):
            self._model = model = self._build(weights)
            self.shelf.load()  # before free memory is read
            if isinstance(model, Decoder):
                _touch(model, self.spec, dtype, self._device)
            if self._warmup is not None:
                self._warmup.wait()
            with WHOLE_DEVICE:
                torch.cuda.synchronize(self._device)
            self._drop_garbage(dtype)
            free, total = torch.cuda.mem_get_info(self._device)
            one = self.spec.heard_rows  # sounds: each is copied to its pages at once
            encoded = one or config.max_num_batched_tokens
            free -= self.shelf.reserved_bytes(encoded, dtype.itemsize)
            if not one:
                free -= self.shelf.keep(free, dtype.itemsize)
            count = num_cuda_blocks(config, self.spec, dtype, free=free, total=total)
            self._num_blocks = count = self._tp.least(count)
            sounds = num_cuda_sounds(config, self.spec, dtype, free=free, total=total)
            self._num_sounds = self._tp.least(sounds)
            self._runner = self._make_runner(model)
        size, rows = self._runner.cache.nbytes / (1 << 30), self.shelf.num_rows
        name = torch.cuda.get_device_name(self._device)
        return ExecutorFacts(
            num_blocks=count,
            device=str(self._device),
            dtype=config.dtype,
            notes=(
                f"{name}: KV cache of {count} blocks x {config.block_size} ({size:,.1f} GiB)",
                *declined_notes(model.kernels, self.spec),
                *((f"no CUDA graphs: {why}",) if (why := self._why_not_captured) else ()),
            ),
            windows=windows_of(groups_of(config, self.spec)),
            shelf_rows=self._num_sounds * self.spec.heard_rows or self._tp.least(rows),
        )

    def submit(self, plan: StepPlan) -> CudaStep:
        if self._runner is None:
            raise EngineClosed("this executor does not run; call start() before submit().")
        with gpu_errors("in a step"):
            step = self._runner.run(plan)
            if plan.masks is not None:  # also if no row that draws has used them
                self.handles.wait_for(plan.masks)
            return step

    def reset(self) -> None:
        """End all rows. The model and the KV cache stay."""
        if self._runner is not None:
            with gpu_errors("in a reset"):
                self._runner.end_all()
        self.shelf.clear()

    def close(self) -> None:
        """Drop everything on the device, which frees its memory at once."""
        if self._warmup is not None:
            self._warmup.stop()
        if self._runner is not None:
            self._runner.close()
        self._runner = self._model = self._weights = self._on_host = None
        self.handles.exchange = None
        self.shelf.drop_tower()
        give_back()

    def sleep(self, *, keep_weights: bool) -> None:
        """Free the KV cache, the graphs that use it, and the GPU memory of the weights. Weights to
        be kept are copied to main memory."""
        with gpu_errors("while going to sleep"):
            if self._runner is not None:
                self._runner.close()
            self._runner = None
            self.shelf.drop_tower()  # it is read from files again
            if self._sites is not None:
                self._sites.release()
            if not keep_weights:
                self._model = self._on_host = self._sites = self.handles.exchange = None
            elif self._model is not None and self._on_host is None:
                self._on_host = OffloadedWeights(self._model)
            give_back()

    def wake_up(self, part: Part) -> None:
        with gpu_errors("while waking up"):
            if self._on_host is not None:
                self._on_host.bring_back()
                self._on_host = None
            if self._model is None:
                if self._read_again is None:
                    raise EngineClosed("the weights were dropped, and nothing can read them.")
                self._model = self._build(self._read_again())
            self.shelf.load()
            if part == "kv_cache" and self._runner is None:
                self._runner = self._make_runner(self._model)

    def load_weights(self, named: Iterable[tuple[str, Tensor]]) -> set[str]:
        if self._model is None or self._on_host is not None:
            raise EngineClosed("this executor has no weights that could be exchanged.")
        if not isinstance(self._model, Decoder):
            raise NotSupported(NO_EXCHANGE)
        with gpu_errors("while taking other weights"):
            if self._runner is not None:
                self._runner.forget_adapters()
            if self.handles.exchange is None:
                self.handles.exchange = NewWeights(self._model, self.spec)
            return self.handles.exchange.load(named)

    def _drop_garbage(self, dtype: torch.dtype) -> None:
        """Free the memory of an earlier engine that was not closed and is garbage now. Collecting
        takes a tenth of a second, so it is done only if more is allocated than this model needs."""
        ours = (self.spec.body_weights + 2 * self.spec.head_weights) * dtype.itemsize
        if torch.cuda.memory_reserved(self._device) > 2 * ours + SPARE_BYTES:
            give_back()

    @property
    def _shape(self) -> HeadShape:
        config = self.config
        fp8_kv = config.kv_cache_dtype == "fp8"
        return head_shape(self.spec, config.block_size, DTYPES[config.dtype], fp8_kv=fp8_kv)

    def _build(self, weights: Weights | LoadedModule) -> Decoder | ModuleModel:
        config, shape = self.config, self._shape
        kernels = kernels_for("cuda", shape, batch_invariant=config.batch_invariant)
        if config.adapters is not None:
            if config.batch_invariant:
                raise NotSupported(
                    "batch_invariant=True with enable_lora=True is not built on a GPU. Leave one "
                    "of them out, or set device='cpu'."
                )
            given = (config.adapters, self.spec, kernels, shape.dtype)
            self._sites = make_sites(*given, self._device, self._tp)
        made = (self.spec, weights, kernels, shape)
        model = build_any_model(*made, max_len=0, tp=self._tp, adapters=self._sites)
        if not isinstance(model, Decoder) and not config.enforce_eager:
            alone = self._tp.size == 1
            self._why_not_captured = model.why_not_captured() if alone else "ranks compute it"
        return model

    def _adapters(self) -> CudaAdapters | None:
        """The LoRA adapters of rows, None if the model has no slots."""
        rows = row_adapters(self.config, self._sites, self.handles)
        if rows is None or self.config.adapters is None:
            return None
        from quire.backends.triton.adapter_stacks import stacked_rank
        from quire.executor.cuda.adapters import CudaAdapters

        rows.watch_room(stacked_rank(self.config.adapters.max_lora_rank), self._free_bytes)
        return CudaAdapters(rows, self.config.adapters.max_loras, self._device)

    def _free_bytes(self) -> int:
        """The device's free bytes, with those that torch has reserved but does not use."""
        kept = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        return torch.cuda.mem_get_info(self._device)[0] + kept

    def _make_runner(self, model: Decoder | ModuleModel) -> CudaRunner:
        from quire.backends.cuda_c.few_rows_linear import wait_until_loaded
        from quire.executor.cuda.guessing import most_lines
        from quire.executor.cuda.small_batch import SmallBatchPass
        from quire.executor.cuda.triton_ops import TritonOps

        config, spec, device, shape = self.config, self.spec, self._device, self._shape
        groups, size = groups_of(config, spec), config.block_size
        windows = windows_of(groups)
        model.use_groups(groups)
        cache = make_cache(spec, self._num_blocks, size, shape.kv_dtype, device, groups)
        longest = longest_sequence(config, self._num_blocks, windows)
        model.rotary.reach(longest)
        width = -(-longest // size) + 3 & ~3  # lines of 16 bytes
        columns = DeviceColumns(
            config.max_num_seqs,
            width,
            vocab_size=spec.vocab_size,
            device=device,
            all_special=bool(config.batch_processors),
            logprobs_mode=config.logprobs_mode,
            seen=BlockTables.of(groups),
            num_states=num_states_for(spec.vocab_size),
        )
        sampler = self._make_sampler(config, spec.vocab_size, device, self.handles)
        if self._num_sounds:
            given = (spec, self._num_sounds, size, shape.dtype, device)
            self.shelf.pages = SoundPages(*given)
        few_rows = None
        wait_until_loaded()
        if isinstance(model, Decoder) and not config.batch_invariant:
            few_rows = SmallBatchPass.of(model, spec, shape.dtype)
        least = STEADY_ROWS if config.batch_invariant else 1
        guesses = 0 if config.speculation is None else most_lines(least)
        lines = max(config.max_num_seqs, guesses)
        return CudaRunner(
            model,
            cache,
            columns,
            sampler,
            TritonOps(
                *(columns, model.kinds, size),
                max_rows=lines,
                state_tables=model.state_tables,
                steady=config.batch_invariant,
            ),
            handles=self.handles,
            block_size=size,
            max_repeat=config.max_repeat,
            max_tokens=config.max_num_batched_tokens,
            captured=self._captured(),
            capture=not config.enforce_eager and not self._why_not_captured,
            groups=groups,
            few_rows=few_rows,
            least_places=least,
            scores_as_logits=config.logprobs_mode.endswith("_logits"),
            shelf=self.shelf,
            adapters=self._adapters(),
        )

    def _captured(self) -> Captured:
        """The same on all ranks, though their shares may differ. To be captured a pass runs once
        more, so passes with states are not: states would take the tokens twice."""
        if self.spec.keeps_states:
            return NOTHING_CAPTURED
        own = Captured.of(self.spec)
        return Captured(self._tp.least(own.num_tokens), self._tp.least(own.num_pairs))


@torch.inference_mode()
def _touch(model: Decoder, spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> None:
    """Make the vendor's library load its kernels while others are still being compiled. Its handle
    belongs to this thread, which runs the passes."""
    layer = model.layers[0]
    plan, hidden = spec.layers[0], spec.hidden_size
    products = [*zip(layer.attention.products, (hidden, plan.mixed_width), strict=True)]
    if layer.mlp is not None and plan.mlp is not None:
        products += zip(layer.mlp.products, (hidden, plan.mlp.product_width), strict=True)
    few, more = TOUCHED_ROWS
    for linear, width in products:
        linear(torch.zeros(few, width, dtype=dtype, device=device))
        linear(torch.zeros(more, width, dtype=dtype, device=device))
    model.logits(torch.zeros(few, spec.hidden_size, dtype=dtype, device=device))
