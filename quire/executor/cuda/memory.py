"""How much of a GPU's memory the KV cache may have: what is free, less what a step needs.

This is computed, not measured: the largest pass of a plan is a few tensors of known size, and a
trial run would cost seconds of every start.
"""

from __future__ import annotations

import torch

from quire.backends.fp8 import FP8, MOST_WIDENED
from quire.backends.pieces import most_pieces
from quire.cache.groups import ONE_GROUP
from quire.config import EngineConfig
from quire.errors import NotEnoughMemory
from quire.executor.cuda.device_edits import arena_words
from quire.executor.cuda.drawn_scores import ENTRY
from quire.executor.cuda.graphs import EDIT_BUCKETS
from quire.executor.cuda.prompts import Captured
from quire.executor.memory import block_bytes, groups_of, heard_rows, windows_of
from quire.layer_plan import AttentionPlan, mlps_of
from quire.layers.kv_groups import BlockTables
from quire.spec import ModelSpec
from quire.step import MOST_TRIED
from quire.steps.automata import num_states_for

MIB = 1 << 20
# Memory that libraries take when first used: workspace of matrix products, code of kernels, and
# fragments that the allocator keeps.
LIBRARIES = 768 * MIB
# Captured passes over prompts have their own memory: the largest, and all smaller ones together
# about as much again.
CAPTURED_COPIES = 2
# Logits in graphs of different sizes share only some memory, and sampling reads a few lines as
# float32.
LOGITS_COPIES = 4
# Masks of guided rows: those in use, and those of two plans in flight.
MASK_COPIES = 3
# Of grammars that the device follows: the state after each byte, and the text of a token.
STATE_BYTES, TEXT_BYTES = 4 * 259, 16
# Block tables: those of all rows, and those of captured passes over prompts.
TABLE_COPIES = 2
SOUNDS_PER_ROW = 2
# Share left free at least, unless gpu_memory_utilization says less: other programs may grow.
SPARED = 0.08


def step_bytes(config: EngineConfig, spec: ModelSpec, dtype: torch.dtype) -> int:
    """The most bytes that passes use at once, beside weights and KV cache."""
    # The residual, its norm, and the widest moment: qkv with q and the attended values, or gate, up
    # and their product.
    streams = 1 if spec.streams is None else spec.streams.count
    around, gates = 3 * spec.hidden_size * streams, 3 * spec.intermediate_size
    if any(mlp.sparse is not None for layer in spec.layers for mlp in mlps_of(layer)):
        gates *= 3  # their cutoff is found in float32
    mixed = max(0 if one is None else one.pass_numbers for one in spec.states) * 4 // dtype.itemsize
    per_token = around + max(*map(_attention_numbers, spec.attentions), gates, mixed)
    most = config.max_num_batched_tokens
    captured = 0 if config.enforce_eager else min(Captured.of(spec).num_tokens, most)
    activations = (most + CAPTURED_COPIES * captured) * per_token
    if config.kv_cache_dtype == "fp8":  # also here captured passes have their own memory
        widened = MOST_WIDENED * 2 * spec.place_numbers
        activations += widened * (2 if captured else 1)
    # Logits of a step in two halves, which wait for masks, have their own memory.
    lines = (LOGITS_COPIES + 1) * config.max_num_seqs
    lines += min(MOST_TRIED, config.max_num_seqs * config.max_repeat)  # of late draws
    logits = lines * spec.vocab_size
    # Partial results of attention, float32; for all pieces if these are cut by position alone.
    each = most_pieces(config.max_model_len) if config.batch_invariant else 4
    attended = {(one.num_heads, one.head_dim) for one in spec.attentions}
    parts = each * config.max_num_seqs * sum(n * width for n, width in attended) * 4
    entries = config.max_repeat * config.max_num_seqs * ENTRY * 4  # logprobs of a plan
    edits = (min(EDIT_BUCKETS[-1], config.max_num_seqs) * spec.vocab_size) * 4
    edits += arena_words(config.max_num_seqs) * 4
    line = -(-spec.vocab_size // 32) * 4  # of bits
    edits += MASK_COPIES * (config.max_num_seqs + 1) * line
    edits += num_states_for(spec.vocab_size) * (line + STATE_BYTES) + TEXT_BYTES * spec.vocab_size
    return (activations + logits) * dtype.itemsize + parts + entries + edits + LIBRARIES


def _attention_numbers(plan: AttentionPlan) -> int:
    """Numbers of a token in attention: q, k and v, q again and what was attended."""
    return (3 * plan.num_heads + 2 * plan.num_kv_heads) * plan.head_dim


def num_cuda_blocks(
    config: EngineConfig, spec: ModelSpec, dtype: torch.dtype, *, free: int, total: int
) -> int:
    """How many KV blocks to make with `free` of `total` bytes left after the weights.

    gpu_memory_utilization is the share of the whole GPU that this engine may have in the end.
    """
    kept_as, groups = FP8 if config.kv_cache_dtype == "fp8" else dtype, groups_of(config, spec)
    size = block_bytes(spec, config.block_size, kept_as, groups)
    if config.num_blocks is not None:
        return config.num_blocks
    budget, why = _budget(config, spec, dtype, free, total)
    sounds = num_cuda_sounds(config, spec, dtype, free=free, total=total)
    budget -= sounds * _sound_bytes(config, spec, dtype)
    if budget < size:
        raise NotEnoughMemory(
            f"no memory for a KV cache: {_gib(max(budget, 0))} ({why}), and one block of "
            f"{config.block_size} tokens takes {_gib(size)}. Lower max_num_batched_tokens or "
            "max_num_seqs, raise gpu_memory_utilization, or free memory on the GPU."
        )
    if config.kv_cache_memory_bytes is not None:
        return budget // size
    return _beside_tables(budget, size, config, spec)


def num_cuda_sounds(
    config: EngineConfig, spec: ModelSpec, dtype: torch.dtype, *, free: int, total: int
) -> int:
    """How many sounds have room beside the KV blocks: as on a CPU, but at most SOUNDS_PER_ROW per
    row."""
    if not spec.heard_rows:
        return 0
    budget = 0 if config.num_blocks is not None else _budget(config, spec, dtype, free, total)[0]
    count = heard_rows(config, spec, dtype, budget) // spec.heard_rows
    return min(count, SOUNDS_PER_ROW * config.max_num_seqs)


def _sound_bytes(config: EngineConfig, spec: ModelSpec, dtype: torch.dtype) -> int:
    """The bytes of a sound's keys and values, in whole blocks."""
    blocks = -(-spec.heard_rows // config.block_size)
    return blocks * block_bytes(spec, config.block_size, dtype)


def _budget(
    config: EngineConfig, spec: ModelSpec, dtype: torch.dtype, free: int, total: int
) -> tuple[int, str]:
    """Bytes for KV of tokens and sounds, and how they were computed, in words."""
    if config.kv_cache_memory_bytes is not None:
        return config.kv_cache_memory_bytes, "kv_cache_memory_bytes"
    needed = step_bytes(config, spec, dtype)
    spared = total * (1 - config.gpu_memory_utilization)
    # What other programs use counts as left free.
    kept = int(max(spared - config.memory_taken, min(spared, total * SPARED)))
    why = (
        f"{_gib(free)} free of {_gib(total)} after the weights, less {_gib(kept)} left alone "
        f"(gpu_memory_utilization={config.gpu_memory_utilization}) and {_gib(needed)} for "
        f"steps of {config.max_num_batched_tokens} tokens and {config.max_num_seqs} rows"
    )
    # Other programs may have freed memory since.
    return min(free - kept, total - int(spared)) - needed, why


def _beside_tables(budget: int, size: int, config: EngineConfig, spec: ModelSpec) -> int:
    """How many blocks of `size` bytes fit beside the tables of the longest sequence that they hold:
    cos and sin of each position in float32, and the block tables of all rows."""
    groups = groups_of(config, spec)
    angles = sum(dims // 2 for _, dims in spec.rotations)
    positions = config.block_size * 2 * 4 * angles
    lists = TABLE_COPIES * 4 * (config.max_num_seqs + 1) * len(BlockTables.of(groups))
    longest = -(-config.max_model_len // config.block_size)
    count = budget // (size + positions + lists)
    # With windows, few blocks may hold a long sequence.
    if count > longest or windows_of(groups) != ONE_GROUP:
        count = (budget - longest * (positions + lists)) // size
    return max(count, 1)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):,.3f} GiB"
