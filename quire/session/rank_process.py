"""What a rank does: it loads its share of the weights, connects to the other ranks, and runs plans
in the order in which they come."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.config import EngineConfig
from quire.executor.executor import ModelExecutor
from quire.executor.plain_data import from_json, to_json
from quire.executor.ranks.adapters import RankAdapters
from quire.executor.ranks.board import Board, Column
from quire.executor.ranks.sampler import RankSampler
from quire.executor.ranks.wire import Kind, Message
from quire.executor.shelf import Tower
from quire.layers.tp import TensorParallel
from quire.ranks.shares import RankShare, of_rank
from quire.session.fallback import AskedClass, load_fallback, plan_asked
from quire.session.media import ModelMedia
from quire.spec import ModelSpec
from quire.step import StepResult
from quire.steps.codec import decode, encode
from quire.steps.ranked import RankPlan, RankResult
from quire.weights.source import ModelFiles

if TYPE_CHECKING:
    from quire.models.fallback.loaded import LoadedModule
    from quire.models.weight_parts import Weights


@dataclass(frozen=True, slots=True)
class RankJob:
    """What a rank has to compute; sent to it at its start."""

    files: ModelFiles
    spec: ModelSpec  # of the whole model
    config: EngineConfig
    share: RankShare
    num_threads: int
    meeting: str  # a file through which ranks find each other
    media: str = ""  # how the model reads media, or "" (session/media.py)
    transformers: str = ""  # how Transformers computes the model, or "" (session/fallback.py)


class RankProcess:
    def __init__(self, job: RankJob, board: Board) -> None:
        self.job, self._board, self._rank = job, board, job.share.rank
        self._drawn = self._num_sums = self._num_encoded = 0
        self.samplers: list[RankSampler] = []
        self._notes: tuple[str, ...] = ()
        self._media = ModelMedia.from_text(job.files, job.media) if job.media else None
        self.executor = self._make_executor()
        self._adapters = RankAdapters(job.spec, job.share, job.config)
        self.executor.handles.adapter = self._adapters.weights

    def start(self) -> bytes:
        facts = self.executor.start()
        return to_json(replace(facts, notes=(*facts.notes, *self._notes)))

    def do(self, message: Message) -> bytes:
        if message.kind is Kind.PLAN:
            return self._run(message)
        if message.kind is Kind.RESET:
            self.executor.reset()
        elif message.kind is Kind.ADAPTER:
            self._adapters.take(decode(message.data))
        elif message.kind is Kind.SLEEP:
            self.executor.sleep(**from_json(message.data))
        else:
            self.executor.wake_up(**from_json(message.data))
        return b""

    def _run(self, message: Message) -> bytes:
        """Run a plan. The first rank sends its result; a checksum shows that all drew alike."""
        self._board.write(self._rank, Column.BEGUN, message.number, message.checksum)
        given: RankPlan = decode(message.data)
        sampler = self.samplers[-1]
        sampler.processed, sampler.failures = given.processed, given.failures
        result: StepResult = self.executor.submit(given.plan).result()
        asked = sampler.take_asked()
        made = (result.tokens.tobytes(), result.counts.tobytes(), b"%d" % self._num_sums)
        self._drawn = zlib.crc32(b"".join(made), self._drawn)
        self._board.write(self._rank, Column.FINISHED, message.number, self._drawn)
        return encode(RankResult(result, asked)) if self._rank == 0 else b""

    @property
    def _tower(self) -> Callable[[], Tower] | None:
        return None if self._media is None else partial(self._load_tower, self._media)

    def _load_tower(self, media: ModelMedia) -> Tower:
        """Every rank encodes all media, which may take minutes and needs no other rank. Each part
        of the tower that begins is reported on the board as progress."""
        tower = media.tower(self.job.config, self.job.share)
        for part in tower.module.modules():
            part.register_forward_pre_hook(self._encodes)
        return tower

    def _encodes(self, *_: object) -> None:
        self._num_encoded += 1
        self._board.write(self._rank, Column.ENCODED, self._num_encoded)

    def _make_executor(self) -> ModelExecutor:
        import torch

        torch.set_num_threads(self.job.num_threads)
        return self._on_cores() if self.job.config.device == "cpu" else self._on_gpu()

    def _on_gpu(self) -> ModelExecutor:
        import torch

        from quire.executor.cuda.executor import CudaExecutor
        from quire.executor.cuda.fp8_kv import check_fp8
        from quire.executor.ranks.gpu_exchange import gpu_exchange
        from quire.executor.ranks.nccl import NcclExchange
        from quire.session.gpu_weights import load_gpu_weights

        job, config = self.job, self.job.config
        # There may be fewer GPUs than ranks only where torch's switch for tests allows it.
        torch.cuda.set_device(job.share.rank % torch.cuda.device_count())
        check_fp8(config)
        dtype: torch.dtype = getattr(torch, config.dtype)
        largest = config.max_num_batched_tokens * job.spec.hidden_size * dtype.itemsize
        exchange = gpu_exchange(job.share, Path(job.meeting), largest, self._begun)
        if isinstance(exchange, NcclExchange):
            config = replace(config, enforce_eager=True)
            self._notes = ("GPUs cannot read each other's memory: NCCL between them, no graphs",)
        tp = TensorParallel(job.share, exchange)
        own = partial(load_gpu_weights, job.files, job.spec, config, job.share)
        return self._of_share(CudaExecutor, config, tp, own)

    def _on_cores(self) -> ModelExecutor:
        from quire.executor.cpu.local import LocalExecutor
        from quire.executor.ranks.gloo import GlooExchange
        from quire.session.cpu_weights import load_cpu_weights

        job = self.job
        exchange = GlooExchange(job.share, Path(job.meeting), self._begun)
        tp = TensorParallel(job.share, exchange)
        own = partial(load_cpu_weights, job.files, job.spec, job.config, share=job.share)
        return self._of_share(LocalExecutor, job.config, tp, own)

    def _of_share(
        self,
        make: Callable[..., ModelExecutor],
        config: EngineConfig,
        tp: TensorParallel,
        own: Callable[[], Weights],
    ) -> ModelExecutor:
        spec, read = self._share(tp, own)
        given = {"tower": self._tower, "tp": tp, "make_sampler": self._make_sampler}
        return make(config, spec, read(), read_again=read, **given)

    def _share(
        self, tp: TensorParallel, own: Callable[[], Weights]
    ) -> tuple[ModelSpec, Callable[[], Weights | LoadedModule]]:
        """The spec of this rank's share, and the function that reads its weights: `own`, unless
        Transformers computes the model."""
        job = self.job
        if not job.transformers:
            return of_rank(job.spec, job.share), own
        plan = plan_asked(job.files, AskedClass.from_text(job.transformers), job.share)
        return plan.spec, partial(load_fallback, job.files, plan, job.config, tp)

    def _begun(self, number: int) -> None:
        self._num_sums = number
        self._board.write(self._rank, Column.SUMS, number)

    def _make_sampler(self, *arguments: Any) -> RankSampler:
        self.samplers = [RankSampler(*arguments)]
        return self.samplers[-1]
