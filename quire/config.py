"""EngineConfig: every decision made, nothing left to guess. Frozen: what is measured later is
returned by the code that measures it, and never written back here. VllmConfig is the part of it
that logits processors get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quire.params.pooling import PoolerConfig as PoolerConfig  # a name that scripts know
from quire.params.reasoning import ReasoningConfig as ReasoningConfig
from quire.params.structured import StructuredOutputsConfig


@dataclass(frozen=True, slots=True)
class Speculation:
    """Tokens are guessed from what followed where a row's last tokens occurred before.

    At most `num_tokens` at a time; at least `shortest` tokens must agree, and more than
    `longest` are not compared. If `device_lines` > 0 the device looks them up, in every pass: a
    pass of up to that many lines takes about as long as one of a single line.
    """

    num_tokens: int
    shortest: int
    longest: int
    device_lines: int = 0


@dataclass(frozen=True, slots=True)
class AdapterOptions:
    """Limits of LoRA adapters: how many in one batch, of which rank, and how many in memory."""

    max_loras: int
    max_lora_rank: int
    max_cpu_loras: int


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
    depth: int  # plans in flight: 1 waits for each; 2 hides the host's time behind the device's
    max_repeat: int  # decode steps one plan may ask for
    batch_invariant: bool
    seed: int
    gpu_memory_utilization: float
    kv_cache_memory_bytes: int | None
    num_blocks: int | None  # None: as many as memory allows
    kv_cache_dtype: str  # "auto": the same as dtype
    enforce_eager: bool
    logprobs_mode: str
    max_logprobs: int
    load_format: str
    skip_tokenizer_init: bool
    trust_remote_code: bool
    max_wait: float  # seconds after which a waiting request goes first
    memory_taken: int = 0  # bytes of the device that others used before this engine began
    tensor_parallel_size: int = 1  # ranks that each compute a share of every layer
    keeps_states: bool = False  # some layers keep a state, which cannot go back to an earlier token
    prefix_groups: bool = True  # read shared prefixes once in decode
    speculation: Speculation | None = None  # None: no token is guessed
    notes: tuple[str, ...] = ()  # what was chosen and why, one line each
    reasoning_parser: str = ""  # the tag that opens reasoning; "" for any
    reasoning: ReasoningConfig = ReasoningConfig()
    tool_call_parser: str | None = None  # how tool calls are written; None: recognised by form
    structured_outputs: StructuredOutputsConfig = StructuredOutputsConfig()
    # Classes of logits processors: those that edit every row, and those made for one request.
    batch_processors: tuple[Callable[..., Any], ...] = ()
    request_processors: tuple[Callable[..., Any], ...] = ()
    adapters: AdapterOptions | None = None  # None: no LoRA adapters


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """`vllm_config.model_config`, as far as processors look into it."""

    max_model_len: int
    dtype: str
    seed: int
    vocab_size: int

    def get_vocab_size(self) -> int:
        return self.vocab_size


@dataclass(frozen=True, slots=True)
class SchedulerFacts:
    """`vllm_config.scheduler_config`: limits of rows and tokens in one step, and of one row."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int

    @classmethod
    def of(cls, config: EngineConfig) -> SchedulerFacts:
        return cls(config.max_num_seqs, config.max_num_batched_tokens, config.max_model_len)


@dataclass(frozen=True, slots=True)
class VllmConfig:
    """The engine's config as logits processors get it, under the names that they read."""

    model_config: ModelFacts
    scheduler_config: SchedulerFacts

    @classmethod
    def of(cls, config: EngineConfig, vocab_size: int) -> VllmConfig:
        return cls(
            ModelFacts(config.max_model_len, config.dtype, config.seed, vocab_size),
            SchedulerFacts.of(config),
        )


class _GivenConfig:
    """An object that scripts make for an option of LLM. It keeps what it is given. The option
    decides what becomes of it (docs/api.md): a warning, or NotSupported."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        self.given = given
        vars(self).update(settings)

    def __repr__(self) -> str:
        shown = [*map(repr, self.given)]
        shown += [f"{name}={value!r}" for name, value in vars(self).items() if name != "given"]
        return f"{type(self).__name__}({', '.join(shown)})"


class AttentionConfig(_GivenConfig):
    """For attention_config."""


class CompilationConfig(_GivenConfig):
    """For compilation_config."""


class KVTransferConfig(_GivenConfig):
    """For kv_transfer_config."""


class ProfilerConfig(_GivenConfig):
    """For profiler_config."""


class WeightTransferConfig(_GivenConfig):
    """For weight_transfer_config."""
