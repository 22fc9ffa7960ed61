"""Keyword arguments -> Options: nothing unknown, nothing half understood."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from quire.base.notes import warn
from quire.config import Speculation
from quire.errors import InvalidOption, NotSupported, UnknownOption
from quire.options.adapters import MAX_LORAS, MAX_RANK
from quire.options.table import OPTIONS
from quire.params.reasoning import ReasoningConfig
from quire.params.rules import PARAMS_STATUS, show
from quire.params.structured import StructuredOutputsConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The honoured options as they were written; None leaves the decision to `resolve`."""

    tokenizer: str | None = None
    tokenizer_mode: str = "auto"
    skip_tokenizer_init: bool = False
    trust_remote_code: bool = False
    model_impl: str = "auto"
    dtype: str | None = None
    quantization: str | None = None
    revision: str | None = None
    tokenizer_revision: str | None = None
    chat_template: str | None = None
    special_tokens_in_messages: bool = False
    seed: int = 0
    gpu_memory_utilization: float = 0.92
    kv_cache_memory_bytes: int | None = None
    enforce_eager: bool = False
    hf_token: bool | str | None = None
    hf_overrides: dict[str, Any] | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enable_prefix_caching: bool | None = None
    block_size: int | None = None
    kv_cache_dtype: str = "auto"
    num_gpu_blocks_override: int | None = None
    async_scheduling: bool | None = None
    load_format: str = "auto"
    download_dir: str | None = None
    max_logprobs: int = -1
    logprobs_mode: str = "raw_logprobs"
    generation_config: str = "auto"
    override_generation_config: dict[str, Any] | None = None
    logits_processors: tuple[type[Any], ...] | None = None
    speculative_config: Speculation | None = None
    reasoning_parser: str = ""
    reasoning_config: ReasoningConfig | None = None
    tool_call_parser: str | None = None
    structured_outputs_config: StructuredOutputsConfig | None = None
    guided_decoding_disable_any_whitespace: bool = False
    guided_decoding_disable_additional_properties: bool = False
    runner: str = "auto"
    convert: str = "auto"
    task: str = "auto"
    pooler_config: dict[str, Any] | None = None
    override_pooler_config: dict[str, Any] | None = None
    device: str | None = None
    batch_invariant: bool | None = None
    data_parallel_size: int = 1
    tensor_parallel_size: int = 1
    distributed_executor_backend: str | None = None
    limit_mm_per_prompt: dict[str, int] | None = None
    language_model_only: bool = False
    allowed_local_media_path: str | None = None
    allowed_media_domains: tuple[str, ...] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    interleave_mm_strings: bool = False
    enable_mm_embeds: bool = False
    enable_lora: bool = False
    max_loras: int = MAX_LORAS
    max_lora_rank: int = MAX_RANK
    max_cpu_loras: int | None = None

    def __repr__(self) -> str:
        """Only what was set, and never the token."""
        shown = []
        for name in self.__slots__:
            value, default = getattr(self, name), OPTIONS[name].default
            if value != default and value is not None:
                shown.append(f"{name}={'...' if name == 'hf_token' else repr(value)}")
        return f"Options({', '.join(shown)})"


def parse_options(given: Mapping[str, Any]) -> Options:
    """The honoured options of `given`, checked.

    An unknown name raises UnknownOption with the nearest known one; a refused option raises
    NotSupported and a moot one warns, each only when set to something else than its default.
    """
    honoured: dict[str, Any] = {}
    for name, value in given.items():
        option = OPTIONS.get(name)
        if option is None:
            raise _unknown(name, value)
        if value is None:
            continue
        if option.check is not None:
            value = option.check(name, value)
        if option.kind == "honoured":
            honoured[name] = value
        elif not option.is_default(value):
            if option.kind == "refused":
                raise NotSupported(f"{name}={show(value)} is not built. {option.why}")
            warn(f"{name}={show(value)} has no effect. {option.why}")
    options = Options(**{name: value for name, value in honoured.items() if value is not None})
    _check_processes(options)
    return options


def _check_processes(options: Options) -> None:
    backend = options.distributed_executor_backend
    sizes = {
        "data_parallel_size": options.data_parallel_size,
        "tensor_parallel_size": options.tensor_parallel_size,
    }
    for name, size in sizes.items():
        if size > 1 and backend in ("uni", "external_launcher"):
            raise InvalidOption(
                f"distributed_executor_backend={backend!r} is one process, and {name}={size} needs "
                "as many. Leave one of them out: quire starts its processes itself.",
                parameter="distributed_executor_backend",
                value=backend,
            )


def _unknown(name: str, value: Any) -> UnknownOption:
    def likeness(known: str) -> float:
        # Of two near names, the one that does something is more likely to be meant.
        bonus = 0.1 if OPTIONS[known].kind == "honoured" else 0.0
        return SequenceMatcher(None, wanted, known).ratio() + bonus

    wanted = str(name).replace("-", "_").lower()
    nearest = max(OPTIONS, key=likeness)
    if wanted in PARAMS_STATUS:
        hint = f" It is a parameter of the request: SamplingParams({wanted}=...)."
    elif likeness(nearest) >= 0.6:
        hint = f" Did you mean {nearest!r}?"
    else:
        hint = " docs/api.md lists them all."
    return UnknownOption(f"LLM has no option {show(name)}.{hint}", parameter=str(name), value=value)
