"""Ranks for a model: what is asked is checked, decided, and told to a process for each."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from quire.config import EngineConfig
from quire.errors import InvalidOption, NotSupported
from quire.executor.cpu.spinning import short_spins
from quire.executor.driver import count_gpus, first_gpu
from quire.executor.executor import ModelExecutor
from quire.executor.precompile.cuda_context import torch_knows_cuda
from quire.options import DeviceFacts, Options, resolve
from quire.ranks.shares import OPTION, RankShare, check_ranks, of_rank
from quire.session.quantisation import stored_method
from quire.spec import ModelSpec
from quire.weights.source import ModelFiles

if TYPE_CHECKING:
    from quire.models.fallback.planning import FallbackPlan

MODULE = "quire.session.rank"
# Torch's own word for several ranks on one GPU, which is good for tests and for nothing else.
OVERLAPPING = "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"
GPU_SILENCE = 300.0  # seconds: kernels are compiled when they are first used


def refuse_ranks(options: Options, what: str) -> None:
    """NotSupported where ranks are asked for of something that is not divided yet."""
    if options.tensor_parallel_size > 1:
        raise not_divided(options, what)


def not_divided(options: Options, what: str) -> NotSupported:
    return NotSupported(
        f"{OPTION}={options.tensor_parallel_size} is not built for {what}. Leave it out, and run "
        "replicas of the whole model if one is not enough: data_parallel_size."
    )


def ranks_executor(
    files: ModelFiles,
    spec: ModelSpec | FallbackPlan,
    options: Options,
    media: object | None = None,
) -> tuple[EngineConfig, ModelExecutor]:
    """Decide how ranks run the model, and start them; they load it while this goes on."""
    from quire.executor.ranks.executor import RanksExecutor  # torch
    from quire.executor.ranks.processes import SILENCE

    size = options.tensor_parallel_size
    if not isinstance(spec, ModelSpec):
        raise not_divided(options, "models that Transformers computes")
    if options.enable_lora:
        raise not_divided(options, "LoRA adapters (enable_lora)")
    if media is not None:
        raise not_divided(options, "models that read images or sound")
    if options.distributed_executor_backend == "uni":
        raise InvalidOption(
            f'distributed_executor_backend="uni" is one process, and {OPTION}={size} needs as '
            "many. Leave one of them out.",
            parameter="distributed_executor_backend",
            value="uni",
        )
    check_ranks(spec, size)
    shares = [RankShare(rank, size) for rank in range(size)]
    facts = _facts(spec, options, shares)
    config = _config(options, spec, facts, stored_method(files))
    own = config
    if facts.device == "cpu" and config.kv_cache_memory_bytes is not None:
        # One memory for all ranks.
        own = replace(config, kv_cache_memory_bytes=config.kv_cache_memory_bytes // size)
    jobs = [
        {
            "files": files,
            "spec": spec,
            "config": own,
            "share": share,
            "num_threads": max(1, facts.num_cores // size),
        }
        for share in shares
    ]
    silence = SILENCE if facts.device == "cpu" else GPU_SILENCE
    return config, RanksExecutor(config, MODULE, jobs, silence=silence)


def _facts(spec: ModelSpec, options: Options, shares: list[RankShare]) -> DeviceFacts:
    gpu = None if options.device == "cpu" or not torch_knows_cuda() else first_gpu()
    if gpu is not None:  # asked of the driver: this process opens no GPU
        _check_gpus(len(shares))
        return gpu.facts()
    with short_spins():
        from quire.executor.probe import device_facts  # torch
    from quire.session.cpu_weights import with_kernels

    facts = device_facts("cpu")
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


def _config(options: Options, spec: ModelSpec, facts: DeviceFacts, stored: str) -> EngineConfig:
    config = resolve(options, spec, facts, stored=stored)
    size, own = options.tensor_parallel_size, facts.num_cores // options.tensor_parallel_size
    if facts.device != "cpu" or own >= 1:
        return config
    line = f"{OPTION}={size} on {facts.num_cores} cores: ranks wait for each other's cores"
    return replace(config, notes=(*config.notes, line))
