"""How many KV blocks fit, and the memory they lie in.

A block is block_size tokens of keys and values for the layers of one group (kv_groups.py): for
every layer, where none has a window. Layers that keep a state have it in the same place, for which
a block is large enough (options/decide.py). The pool is sized once, when the executor starts; on a
CPU its pages cost nothing until a block is first used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from quire.backends.fp8 import FP8, block_shape
from quire.cache.groups import ONE_GROUP, Windows, blocks_held, most_tokens
from quire.config import EngineConfig
from quire.errors import NotEnoughMemory
from quire.layers.kv_groups import KVGroup, kv_groups
from quire.spec import ModelSpec

CPU_SHARE, CPU_LIMIT = 0.25, 4 << 30


def groups_of(config: EngineConfig, spec: ModelSpec) -> tuple[KVGroup, ...]:
    """The layers of a model by how far back they see."""
    states = [state is not None for state in spec.states]
    return kv_groups(spec.windows, config.max_model_len, states)


def windows_of(groups: Sequence[KVGroup]) -> Windows:
    return tuple(group.window for group in groups)


def layers_in_block(groups: Sequence[KVGroup]) -> int:
    """Every block has room for the layers of the largest group."""
    return max(len(group.layers) for group in groups)


def block_bytes(
    spec: ModelSpec, block_size: int, dtype: torch.dtype, groups: Sequence[KVGroup] = ()
) -> int:
    """Bytes of one block, with the scales of fp8: for all layers, or for those of a group."""
    num_layers = layers_in_block(groups) if groups else spec.num_layers
    shape = block_shape(spec.num_kv_heads, block_size, spec.head_dim, dtype)
    kept = num_layers * spec.layers[0].attention.kv_tensors
    return kept * math.prod(shape) * dtype.itemsize


def pool_bytes(config: EngineConfig, free: int) -> int:
    """Bytes the pool may take of `free` ones.

    CPU: a quarter of what is free, at most 4 GiB. CUDA: gpu_memory_utilization of it.
    """
    if config.kv_cache_memory_bytes is not None:
        return config.kv_cache_memory_bytes
    if config.device == "cpu":
        return min(int(free * CPU_SHARE), CPU_LIMIT)
    return int(free * config.gpu_memory_utilization)


def heard_rows(config: EngineConfig, spec: ModelSpec, dtype: torch.dtype, pool: int) -> int:
    """Rows of encoders that have room beside the KV blocks, for models whose layers attend to them:
    of the pool's bytes the share that they have in a sequence of full length, one sound at least.
    A row takes as much as a token of KV."""
    one = spec.heard_rows
    if not one:
        return 0
    if config.num_blocks is not None:
        return max(one, config.num_blocks * config.block_size * one // config.max_model_len)
    share = one / (one + config.max_model_len)
    return max(one, int(pool * share) // (spec.kv_values_per_token * dtype.itemsize))


def num_blocks(config: EngineConfig, spec: ModelSpec, dtype: torch.dtype, free: int) -> int:
    """How many blocks the pool gets; enough for the shortest text, of which every group of layers
    has some, or NotEnoughMemory."""
    groups = groups_of(config, spec)
    size = block_bytes(spec, config.block_size, dtype, groups)
    needed = blocks_held(windows_of(groups), config.block_size, 1)
    if config.num_blocks is not None:
        count, budget = config.num_blocks, config.num_blocks * size
    else:
        row = spec.kv_values_per_token * dtype.itemsize
        pool = pool_bytes(config, free)
        budget = pool - heard_rows(config, spec, dtype, pool) * row
        count = max(budget, 0) // size
    if count < needed:
        beside = spec.heard_rows * spec.kv_values_per_token * dtype.itemsize
        raise NotEnoughMemory(
            f"a KV block of {config.block_size} tokens takes {_mib(size)}, the shortest text "
            f"{needed} of them, and {_mib(budget)} are set aside for the KV cache ({_mib(free)} "
            f"free). Set kv_cache_memory_bytes to at least {needed * size + beside}, or free some "
            "memory."
        )
    return count


def longest_sequence(config: EngineConfig, count: int, windows: Windows = ONE_GROUP) -> int:
    """Tokens of the longest sequence that can be placed in `count` blocks: tables of positions
    and of blocks need no more, whatever length a model claims."""
    return most_tokens(windows, config.block_size, count, config.max_model_len)


def make_cache(
    spec: ModelSpec,
    count: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    groups: Sequence[KVGroup] = (),
) -> Tensor:
    """Keys and values: [layers, 2, blocks, kv_heads, block_size, head_dim], not touched yet, or
    [layers, 1, ...] where they are one. With groups as many layers as a block has room for.

    In fp8 the last two are one (backends/fp8.py), and all is zeros: no byte may be NaN."""
    block = block_shape(spec.num_kv_heads, block_size, spec.head_dim, dtype)
    num_layers = layers_in_block(groups) if groups else spec.num_layers
    shape = (num_layers, spec.layers[0].attention.kv_tensors, count, *block)
    try:
        if dtype == FP8:
            return torch.zeros(shape, dtype=torch.uint8, device=device).view(FP8)
        return torch.empty(shape, dtype=dtype, device=device)
    except RuntimeError as error:
        total = count * block_bytes(spec, block_size, dtype, groups)
        raise NotEnoughMemory(
            f"{count} KV blocks of {block_size} tokens take {_mib(total)}, which this machine "
            "does not give. Lower num_gpu_blocks_override or kv_cache_memory_bytes."
        ) from error


def caches_by_layer(cache: Tensor, groups: Sequence[KVGroup]) -> tuple[Tensor, ...]:
    """Of each layer its part of the cache: [2 or 1, blocks, kv_heads, block_size, head_dim]."""
    places = {layer: place for group in groups for place, layer in enumerate(group.layers)}
    return tuple(cache[places[layer]] for layer in range(len(places)))


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"
