"""Ranks for a model: checks options, decides the config, and gives each rank's process its job."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from quire.base.system import can_share_with_ranks
from quire.config import EngineConfig
from quire.errors import InvalidOption, NotSupported
from quire.executor.cpu.spinning import short_spins
from quire.executor.driver import count_gpus, first_gpu
from quire.executor.executor import ModelExecutor
from quire.executor.precompile.cuda_context import torch_knows_cuda
from quire.options import DeviceFacts, Options, resolve
from quire.ranks.shares import OPTION, RankShare, check_ranks, of_rank
from quire.session.fallback import AskedClass, check_divided, resolve_fallback
from quire.session.media import ModelMedia
from quire.session.quantisation import weight_facts
from quire.spec import ModelSpec
from quire.weights.source import ModelFiles

if TYPE_CHECKING:
    from quire.models.fallback.planning import FallbackPlan

MODULE = "quire.session.rank"
# Torch's switch for several ranks on one GPU, which is only useful for tests.
OVERLAPPING = "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"
GPU_SILENCE = 300.0  # seconds: kernels are compiled when they are first used


def refuse_ranks(options: Options, what: str) -> None:
    """Raise NotSupported if ranks are asked for `what`, which cannot be divided yet."""
    if options.tensor_parallel_size > 1:
        raise NotSupported(
            f"{OPTION}={options.tensor_parallel_size} is not built for {what}. Leave it out, and "
            "run replicas of the whole model if one is not enough: data_parallel_size."
        )


def ranks_executor(
    files: ModelFiles,
    planned: ModelSpec | FallbackPlan,
    options: Options,
    media: ModelMedia | None = None,
) -> tuple[EngineConfig, ModelExecutor]:
    """Decide how ranks run the model, and start them; they load it in the background."""
    from quire.executor.ranks.executor import RanksExecutor  # torch
    from quire.executor.ranks.processes import SILENCE

    size = options.tensor_parallel_size
    if not can_share_with_ranks():
        raise NotSupported(
            f"{OPTION}={size}: ranks share memory in a way that Linux alone has. Leave it out, or "
            "compute on Linux."
        )
    shares, transformers = [RankShare(rank, size) for rank in range(size)], ""
    weights = weight_facts(files)
    if isinstance(planned, ModelSpec):
        spec = planned
        check_ranks(spec, size)
        facts = _facts(spec, options, shares)
        config = resolve(options, spec, facts, weights)
    else:
        spec, transformers = planned.spec, AskedClass.of(options).as_text()
        check_divided(planned, files, options)
        facts = _facts(None, options, shares)
        config = resolve_fallback(options, planned, facts, stored=weights.stored)
    config = replace(config, notes=(*config.notes, *_few_cores(size, facts)))
    own = config
    if facts.device == "cpu" and config.kv_cache_memory_bytes is not None:
        # The memory is shared by all ranks.
        own = replace(config, kv_cache_memory_bytes=config.kv_cache_memory_bytes // size)
    jobs = [
        {
            "files": files,
            "spec": spec,
            "config": own,
            "share": share,
            "num_threads": max(1, facts.num_cores // size),
            "media": "" if media is None else media.as_text(),
            "transformers": transformers,
        }
        for share in shares
    ]
    silence = SILENCE if facts.device == "cpu" else GPU_SILENCE
    return config, RanksExecutor(config, MODULE, jobs, silence=silence)


def _facts(spec: ModelSpec | None, options: Options, shares: list[RankShare]) -> DeviceFacts:
    """`spec` is of the whole model; None if quire's own layers do not compute it."""
    gpu = None if options.device == "cpu" or not torch_knows_cuda() else first_gpu()
    if gpu is not None:  # found through the driver, so that this process opens no GPU
        _check_gpus(len(shares))
        return gpu.facts()
    with short_spins():
        from quire.executor.probe import device_facts  # torch
    from quire.session.cpu_weights import with_kernels

    facts = device_facts("cpu")
    if spec is None:
        return facts
    steady = [with_kernels(facts, of_rank(spec, s), options).steady_kernels for s in shares]
    return replace(facts, steady_kernels=all(steady))


def _check_gpus(size: int) -> None:
    found = count_gpus()
    if size > found and os.environ.get(OVERLAPPING) != "1":
        raise InvalidOption(
            f"{OPTION}={size} needs as many GPUs, and this process may use {found}. Use at most "
            f"{found}, or device='cpu'.",
            parameter=OPTION,
            value=size,
        )


def _few_cores(size: int, facts: DeviceFacts) -> Iterator[str]:
    if facts.device == "cpu" and size > facts.num_cores:
        yield f"{OPTION}={size} on {facts.num_cores} cores: ranks wait for each other's cores"
