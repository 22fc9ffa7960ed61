"""EngineConfig: every decision made, nothing left to guess. Frozen; measured values are
return values of whoever measured them, never written back here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the engine runs with, after `options.resolve` decided."""

    device: str  # "cpu" or "cuda"
    dtype: str  # "float32", "bfloat16" or "float16": what weights and activations are
    quantization: str | None
    max_model_len: int
    block_size: int
    max_num_seqs: int  # rows on the device
    max_num_batched_tokens: int  # tokens of one step
    enable_prefix_caching: bool
    depth: int  # plans in flight: 1 waits for each, 2 hides the host
    max_repeat: int  # decode steps one plan may ask for
    batch_invariant: bool
    seed: int
    gpu_memory_utilization: float
    kv_cache_memory_bytes: int | None
    num_blocks: int | None  # None: from memory
    kv_cache_dtype: str  # "auto" = as dtype
    enforce_eager: bool
    logprobs_mode: str
    max_logprobs: int
    load_format: str
    skip_tokenizer_init: bool
    trust_remote_code: bool
    max_wait: float  # seconds after which a waiting request goes first
    prefix_groups: bool = True  # read shared prefixes once in decode
    notes: tuple[str, ...] = ()  # what was chosen and why, one line each
