"""How many KV blocks fit into memory, and their allocation.

A block holds the keys and values of block_size tokens for the layers of one group (kv_groups.py),
which is all layers if none has a window. States are kept in blocks as well, which are large enough
for them (options/decide.py). The pool is allocated once, when the executor starts; on a CPU a page
takes no memory until a block in it is used.
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
from quire.layers.kv_groups import Heads, KVGroup, kv_groups
from quire.spec import ModelSpec

CPU_SHARE, CPU_LIMIT = 0.25, 4 << 30


def groups_of(config: EngineConfig, spec: ModelSpec) -> tuple[KVGroup, ...]:
    """The layers of a model, grouped by how far back they see, and by their heads where these
    differ. A chunk begins no further back than a window of its size."""
    states = [state is not None for state in spec.states]
    heads = spec.kv_heads if len(set(spec.kv_heads)) > 1 else ()
    reaches = [layer.attention.reach for layer in spec.layers]
    return kv_groups(reaches, config.max_model_len, states, heads, spec.kv_sources)


def windows_of(groups: Sequence[KVGroup]) -> Windows:
    return tuple(group.window for group in groups)


def places_in_block(groups: Sequence[KVGroup]) -> int:
    """The places of a block: those that the largest group needs."""
    return max(group.num_places for group in groups)


def _block_shape(spec: ModelSpec, block_size: int, dtype: torch.dtype) -> tuple[int, ...]:
    """The shape of a place's keys in one block. Layers with other heads see it in another shape."""
    heads = set(spec.kv_heads)
    count, width = heads.pop() if len(heads) == 1 else (1, spec.place_numbers)
    return block_shape(count, block_size, width, dtype)


def block_bytes(
    spec: ModelSpec, block_size: int, dtype: torch.dtype, groups: Sequence[KVGroup] = ()
) -> int:
    """Bytes of one block, with the scales of fp8: for a group's layers, or all layers."""
    num_places = places_in_block(groups) if groups else spec.num_layers
    shape = _block_shape(spec, block_size, dtype)
    kept = num_places * spec.layers[0].attention.kv_tensors
    return kept * math.prod(shape) * dtype.itemsize


def pool_bytes(config: EngineConfig, free: int) -> int:
    """How many of `free` bytes the pool may take.

    CPU: a quarter, at most 4 GiB. CUDA: the share gpu_memory_utilization.
    """
    if config.kv_cache_memory_bytes is not None:
        return config.kv_cache_memory_bytes
    if config.device == "cpu":
        return min(int(free * CPU_SHARE), CPU_LIMIT)
    return int(free * config.gpu_memory_utilization)


def heard_rows(config: EngineConfig, spec: ModelSpec, dtype: torch.dtype, pool: int) -> int:
    """How many rows of encoded sounds get room beside the KV blocks, for models with
    cross-attention: their share of a sequence of full length, at least those of one sound. A row
    takes as many bytes as a token of KV."""
    one = spec.heard_rows
    if not one:
        return 0
    if config.num_blocks is not None:
        return max(one, config.num_blocks * config.block_size * one // config.max_model_len)
    share = one / (one + config.max_model_len)
    return max(one, int(pool * share) // (spec.kv_values_per_token * dtype.itemsize))


def num_blocks(config: EngineConfig, spec: ModelSpec, dtype: torch.dtype, free: int) -> int:
    """How many blocks the pool gets. NotEnoughMemory if they do not hold the shortest text, which
    needs blocks of every group of layers."""
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
        way_out = f"Set kv_cache_memory_bytes to at least {needed * size + beside}, or free memory."
        if config.num_blocks is not None:
            way_out = f"Set num_gpu_blocks_override to at least {needed}, or leave it out."
        raise NotEnoughMemory(
            f"a KV block of {config.block_size} tokens takes {_mib(size)}, the shortest text "
            f"{needed} of them, and {_mib(budget)} are set aside for the KV cache ({_mib(free)} "
            f"free). {way_out}"
        )
    return count


def longest_sequence(config: EngineConfig, count: int, windows: Windows = ONE_GROUP) -> int:
    """The longest sequence that fits into `count` blocks: tables of positions and blocks need to be
    no longer, whatever length a model claims."""
    return most_tokens(windows, config.block_size, count, config.max_model_len)


def make_cache(
    spec: ModelSpec,
    count: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    groups: Sequence[KVGroup] = (),
) -> Tensor:
    """Keys and values, not initialised: [places, 2, blocks, kv_heads, block_size, head_dim], or
    [places, 1, ...] if values are a part of keys. Without groups each layer has a place.

    In fp8 the last two dimensions are one (backends/fp8.py), and all bytes are 0, as
    whole blocks may be converted to other types."""
    block = _block_shape(spec, block_size, dtype)
    num_places = places_in_block(groups) if groups else spec.num_layers
    shape = (num_places, spec.layers[0].attention.kv_tensors, count, *block)
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
    """Each layer's part of the cache: [2 or 1, blocks, kv_heads, block_size, head_dim], with as
    many times more blocks as layers share a place."""
    found: dict[int, Tensor] = {}
    for group in groups:
        for layer, index in group.members:
            place = cache[index // group.parts]
            found[layer] = place if group.heads is None else _seen_as(place, group.heads)
    return tuple(found[layer] for layer in range(len(found)))


def own_caches(spec: ModelSpec, cache: Tensor, places_of: Sequence[int] = ()) -> tuple[Tensor, ...]:
    """As `caches_by_layer`, for a cache without groups. `places_of`: the place of each layer; empty
    if each has its own."""
    layers = [i if source is None else source for i, source in enumerate(spec.kv_sources)]
    places = [cache[places_of[layer] if places_of else layer] for layer in layers]
    same = len(set(spec.kv_heads)) == 1
    return tuple(places if same else map(_seen_as, places, spec.kv_heads))


def _seen_as(place: Tensor, heads: Heads) -> Tensor:
    """A place [kept, blocks, any, block_size, any] as layers with these heads see it."""
    (count, width), block_size = heads, place.shape[3]
    return place.view(place.shape[0], -1, count, block_size, width)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"
