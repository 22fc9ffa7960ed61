"""Options, a ModelSpec and facts -> EngineConfig: every choice in one place, with its reason.

Pure: facts about the machine are passed in. `EngineConfig.notes` says what was chosen without
being asked for.
"""

from __future__ import annotations

from typing import Any

from quire.config import AdapterOptions, EngineConfig
from quire.errors import InvalidOption, NotSupported
from quire.options.checks import FIT_TO_MEMORY
from quire.options.facts import DeviceFacts, WeightFacts
from quire.options.options import Options
from quire.options.quantization import quantization_for
from quire.options.speculation import speculation_for
from quire.params.reasoning import ReasoningConfig
from quire.params.rules import fail
from quire.params.structured import StructuredOutputsConfig
from quire.ranks.shares import RankShare, of_rank
from quire.spec import AnySpec, ModelSpec

GIB = 1 << 30
DEFAULT_BLOCK_SIZE = 16
FP8_SCALE_BYTES = 4  # of a head's keys, and of its values, of a token (backends/fp8.py)
LEAST, TILE = 16, 128  # tokens: the smallest block that holds a state; a tile of attention
MAX_WAIT = 60.0
# Few enough that a step on two cores takes well under a second, so that progress shows and Ctrl-C
# works quickly; prefill would not get faster with more.
CPU_TOKENS, CPU_SEQS = 1024, 256
GPU_TOKENS, GPU_SEQS = 8192, 256
BIG_GPU, BIG_GPU_TOKENS, BIG_GPU_SEQS = 70 * GIB, 16384, 2048
GPU_REPEAT = 32
# The dtype of everything that is not in bytes.
QUANTISED_DTYPES = {"int8": "float32"}
UNKNOWN_WEIGHTS = WeightFacts()


def resolve(
    options: Options, spec: AnySpec, facts: DeviceFacts, weights: WeightFacts = UNKNOWN_WEIGHTS
) -> EngineConfig:
    """Decide everything the engine runs with."""
    _check_device(options, facts)
    notes, on_gpu, overlap = list[str](), facts.device == "cuda", options.async_scheduling
    max_num_seqs, max_num_batched_tokens = _batch_limits(options, facts, notes)
    quantization = quantization_for(options, facts, weights, notes)
    dtype = QUANTISED_DTYPES.get(quantization or "") or options.dtype or _dtype(spec, facts, notes)
    batch_invariant = _batch_invariant(options, facts, dtype)
    batch_processors, request_processors = _processors(options)
    speculation = speculation_for(
        options.speculative_config,
        device=facts.device,
        batch_invariant=batch_invariant,
        spec=spec,
        has_processors=bool(batch_processors),
        notes=notes,
    )
    return EngineConfig(
        device=facts.device,
        dtype=dtype,
        quantization=quantization,
        max_model_len=decided_len(options, spec),
        block_size=_block_size(options, spec, quantization or dtype, notes),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        enable_prefix_caching=options.enable_prefix_caching is not False,
        depth=2 if (on_gpu if overlap is None else overlap) else 1,
        max_repeat=GPU_REPEAT if on_gpu else 1,
        keeps_states=spec.keeps_states,
        batch_invariant=batch_invariant,
        seed=options.seed,
        gpu_memory_utilization=options.gpu_memory_utilization,
        memory_taken=facts.memory_total - facts.memory_free,
        kv_cache_memory_bytes=options.kv_cache_memory_bytes,
        num_blocks=options.num_gpu_blocks_override,
        kv_cache_dtype=_kv_cache_dtype(options, spec, facts),
        enforce_eager=options.enforce_eager,
        logprobs_mode=options.logprobs_mode,
        max_logprobs=options.max_logprobs,
        load_format=options.load_format,
        skip_tokenizer_init=options.skip_tokenizer_init,
        trust_remote_code=options.trust_remote_code,
        max_wait=MAX_WAIT,
        tensor_parallel_size=options.tensor_parallel_size,
        # Merging two partial results rounds differently from reading all at once, unless the
        # kernels add up in the same order either way.
        prefix_groups=on_gpu or facts.steady_kernels or not batch_invariant,
        speculation=speculation,
        notes=tuple(notes),
        reasoning=options.reasoning_config or ReasoningConfig(),
        reasoning_parser=options.reasoning_parser,
        tool_call_parser=options.tool_call_parser,
        structured_outputs=_structured_outputs(options),
        batch_processors=batch_processors,
        request_processors=request_processors,
        adapters=_adapters(options),
    )


def _check_device(options: Options, facts: DeviceFacts) -> None:
    if options.device is not None and options.device != facts.device:
        hint = f"This machine offers {facts.device!r}."
        fail(InvalidOption, "device", "a device that is there", options.device, hint)


def _block_size(options: Options, spec: AnySpec, kept: str, notes: list[str]) -> int:
    """The size that was asked for, or the default; larger where a block must hold the state of a
    layer. `kept` is the dtype of weights or activations."""
    asked = options.block_size or DEFAULT_BLOCK_SIZE
    if not isinstance(spec, ModelSpec) or not spec.keeps_states:
        return asked
    # Keys and values beside weights in bytes may be in 16 bits.
    size, kv_bytes, scale_bytes = options.tensor_parallel_size, 4 if kept == "float32" else 2, 0
    if options.kv_cache_dtype == "fp8":
        kv_bytes, scale_bytes = 1, FP8_SCALE_BYTES
    shares = (of_rank(spec, RankShare(rank, size)) for rank in range(size))
    least = max(least_block_size(share, kv_bytes, scale_bytes) for share in shares)
    if asked >= least:
        return asked
    if options.block_size is not None:
        rule = f"at least {least}: a block holds the state of a layer"
        fail(InvalidOption, "block_size", rule, asked, "Leave it out.")
    why = "so many tokens' keys and values are as large as a state"
    if not spec.attentions:
        why = "after so many tokens a state is kept, for texts that begin alike"
    notes.append(f"block_size {least}: {why}")
    return least


def _adapters(options: Options) -> AdapterOptions | None:
    if not options.enable_lora:
        return None
    most, kept = options.max_loras, options.max_cpu_loras or options.max_loras
    if kept < most:
        hint = "Adapters of a batch are read from there."
        fail(InvalidOption, "max_cpu_loras", f"at least max_loras ({most})", kept, hint)
    return AdapterOptions(most, options.max_lora_rank, kept)


def _structured_outputs(options: Options) -> StructuredOutputsConfig:
    """The config, merged with its older spellings."""
    given = options.structured_outputs_config or StructuredOutputsConfig()
    older = options.guided_decoding_backend
    return StructuredOutputsConfig(
        given.disable_any_whitespace
        or older.disable_any_whitespace
        or options.guided_decoding_disable_any_whitespace,
        given.disable_additional_properties
        or older.disable_additional_properties
        or options.guided_decoding_disable_additional_properties,
    )


def _processors(options: Options) -> tuple[tuple[type[Any], ...], tuple[type[Any], ...]]:
    """Classes of logits processors: those that edit every row, and those that serve a request."""
    every_row, by_request = list[type[Any]](), list[type[Any]]()
    for one in options.logits_processors or ():
        (by_request if hasattr(one, "new_req_logits_processor") else every_row).append(one)
    return tuple(every_row), tuple(by_request)


def _kv_cache_dtype(options: Options, spec: AnySpec, facts: DeviceFacts) -> str:
    if options.kv_cache_dtype == "fp8":
        if facts.device != "cuda":
            raise NotSupported(
                "kv_cache_dtype='fp8' is built for GPUs. Leave it out, or use a machine that has "
                "one."
            )
        if isinstance(spec, ModelSpec) and (why := _keeps_fp8_out(spec)):
            raise NotSupported(
                f"kv_cache_dtype='fp8' is not built for models that {why}. Leave it out."
            )
        if spec.head_dim % 4 or options.block_size == 1:
            raise NotSupported(
                f"kv_cache_dtype='fp8' with head_dim {spec.head_dim} and block_size "
                f"{options.block_size or DEFAULT_BLOCK_SIZE}: it takes heads of a multiple of 4 "
                "and blocks of 2 tokens or more. Use 'auto', or another block_size."
            )
    return options.kv_cache_dtype


def _keeps_fp8_out(spec: ModelSpec) -> str | None:
    attention = spec.layers[0].attention
    if attention.softcap is not None:
        return "bound their scores (softcap)"
    if attention.latent is not None:
        return "keep latents in place of keys and values"
    if len(set(spec.kv_heads)) > 1 or any(one is not None for one in spec.kv_sources):
        return "have other heads in some layers, or layers that read the keys of others"
    return "attend to sounds" if spec.heard_rows else None


def _batch_invariant(options: Options, facts: DeviceFacts, dtype: str) -> bool:
    """By default on where it costs nothing: steady kernels add up float32 in one fixed order, and
    their sums of bytes are exact."""
    if options.batch_invariant is None:
        return facts.steady_kernels and dtype == "float32"
    return options.batch_invariant


def _dtype(spec: AnySpec, facts: DeviceFacts, notes: list[str]) -> str:
    """The stored type where it is fast here, else the fast type of the widest range.

    Stored float32 becomes bfloat16 where that is fast, on either device. On a CPU float16
    never stands in for another type: activations of models trained in bfloat16 overflow it.
    """
    fast, stored = facts.fast_dtypes, spec.dtype
    where = "GPU" if facts.device == "cuda" else "CPU"
    if stored in fast:
        chosen, why = stored, "as stored, and fast here"
    elif "bfloat16" in fast:
        chosen, why = "bfloat16", f"stored as {stored}; bfloat16 is fast on this {where}"
    elif facts.device == "cuda" and "float16" in fast:
        chosen, why = "float16", f"stored as {stored}; this GPU has no fast bfloat16"
    else:
        chosen, why = "float32", f"this {where} computes nothing smaller faster"
    notes.append(f"dtype {chosen}: {why} (override with dtype=)")
    return chosen


def _batch_limits(options: Options, facts: DeviceFacts, notes: list[str]) -> tuple[int, int]:
    """(max_num_seqs, max_num_batched_tokens). Every row needs a token in one step: a budget that
    was asked for limits the rows, and rows that were asked for raise the default budget."""
    if facts.device != "cuda":
        tokens, seqs = CPU_TOKENS, CPU_SEQS
    elif facts.memory_total >= BIG_GPU:
        tokens, seqs = BIG_GPU_TOKENS, BIG_GPU_SEQS
    else:
        tokens, seqs = GPU_TOKENS, GPU_SEQS
    seqs = options.max_num_seqs or seqs
    if options.max_num_batched_tokens is None:
        return seqs, max(tokens, seqs)
    tokens = options.max_num_batched_tokens
    if seqs > tokens:
        notes.append(f"max_num_seqs {tokens}: a step of {tokens} tokens moves no more rows")
        seqs = tokens
    return seqs, tokens


def decided_len(options: Options, spec: AnySpec) -> int:
    """The length asked for, or the model's. What fits into memory is found later."""
    if options.max_model_len in (None, FIT_TO_MEMORY):
        return spec.max_model_len
    if options.max_model_len > spec.max_model_len:
        rule = f"at most {spec.max_model_len}, the length the model was made for"
        hint = "To stretch it, give its rope_scaling and max_position_embeddings in hf_overrides."
        fail(InvalidOption, "max_model_len", rule, options.max_model_len, hint)
    return options.max_model_len


def least_block_size(spec: ModelSpec, kv_bytes: int, scale_bytes: int = 0) -> int:
    """The fewest tokens whose keys and values in one layer take as many bytes as the state of one;
    `kv_bytes` are the bytes of one of their numbers, `scale_bytes` those of each head beside them.
    A power of two, or a multiple of TILE."""
    states = [state.state_numbers for state in spec.states if state is not None]
    half = 4 * -(-max(states, default=0) // 2)  # half is kept beside the keys, half with the values
    token = spec.place_numbers * kv_bytes + spec.num_kv_heads * scale_bytes
    size = LEAST
    while size * token < half:
        size += min(size, TILE)
    return size
