"""Options: every option that is honoured, declared once.

The names and defaults are those that scripts for vLLM write, older spellings included, and three
of quire's own: device, batch_invariant and special_tokens_in_messages.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from quire.config import Speculation
from quire.options import checks, nested, parsers
from quire.options.option import honoured
from quire.options.speculation import speculation
from quire.params.reasoning import ReasoningConfig
from quire.params.structured import StructuredOutputsConfig

_COUNT = checks.integer(1, 2**31 - 1)
_ROWS = checks.integer(1, 2**20)
_LOAD_FORMAT = checks.choice(
    *("auto", "safetensors", "gguf", "dummy"),
    others=(
        *("pt", "npcache", "tensorizer", "bitsandbytes", "sharded_state", "mistral", "hf"),
        *("runai_streamer", "runai_streamer_sharded", "fastsafetensors", "modelexpress"),
    ),
    instead="Convert the weights to safetensors or GGUF.",
)
_STATE_DTYPE = checks.choice(
    *("auto", "float32"),
    others=("float16", "bfloat16"),
    instead="Leave it out: states of layers are kept in float32.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for, in the form that each option's check gives it; None leaves the decision
    to `resolve`."""

    tokenizer: str | None = honoured(
        None, checks.text, "Path or Hub id; by default the model's own."
    )
    tokenizer_mode: str = honoured(
        "auto",
        checks.choice(
            "auto",
            "hf",
            others=("slow", "mistral", "custom", "deepseek_v32"),
            instead="Use 'auto' with a tokenizer.json.",
        ),
        "auto and hf both read tokenizer.json (or the GGUF file) with the `tokenizers` library.",
    )
    skip_tokenizer_init: bool = honoured(False, checks.flag, "Token ids in, token ids out.")
    trust_remote_code: bool = honoured(
        False,
        checks.flag,
        "A permission to run the code in a model's directory; it is run if the directory names "
        "neither a family of quire nor a class of Transformers.",
    )
    model_impl: str = honoured(
        "auto",
        checks.choice(
            *("auto", "quire", "vllm", "transformers"),
            others=("terratorch",),
            instead="Use 'auto'.",
        ),
        '"quire" (or "vllm"): a family of quire\'s own; "transformers": the causal class of '
        "Transformers, on quire's engine; auto: a family if there is one for the model.",
    )
    dtype: str | None = honoured(
        "auto",
        checks.dtype,
        "auto: the stored type if it is fast on the device, else bfloat16 if that is, else "
        "float32. half, float16, bfloat16, float and float32 are used as named.",
    )
    quantization: str | None = honoured(
        None,
        checks.quantization,
        '"int8": weights and activations in bytes, on a CPU. "none": computed in dtype. The '
        "method of a checkpoint (awq, gptq, compressed-tensors, fp8, mxfp4, bitsandbytes, gguf): "
        "weights stay quantised on a GPU. None: fp8 and 4 bits (awq, gptq, w4a16) stay quantised "
        "on Hopper GPUs, unless batch_invariant, float32, adapters or several ranks are asked for; "
        "others are dequantised on load. On a CPU None means int8 if the checkpoint is quantised, "
        "int8 is fast and accurate enough, and no dtype is given.",
    )
    revision: str | None = honoured(None, checks.text, "Branch, tag or commit on the Hub.")
    tokenizer_revision: str | None = honoured(None, checks.text, "As revision, for the tokenizer.")
    chat_template: str | None = honoured(None, checks.text, "A Jinja template, or the path of one.")
    special_tokens_in_messages: bool = honoured(
        False,
        checks.flag,
        "Whether the text of a special token in a chat message (<|im_end|>) becomes that token, as "
        "in vLLM; by default it stays text and cannot end a message. chat() has it for one call.",
    )
    seed: int = honoured(0, checks.seed, "The seed of sampling for requests that have none.")
    gpu_memory_utilization: float = honoured(
        0.92,
        checks.share,
        "Share of GPU memory that this engine may have, above 0 and at most 1; memory of other "
        "programs does not count, so two engines may have 0.45 each.",
    )
    kv_cache_memory_bytes: int | None = honoured(
        None, checks.integer(1, 2**63 - 1), "Bytes of the KV pool; by default from free memory."
    )
    enforce_eager: bool = honoured(False, checks.flag, "No CUDA graphs.")
    hf_token: bool | str | None = honoured(
        None, checks.hf_token, "For the Hub; True = the stored one. A job never stores it."
    )
    hf_overrides: dict[str, Any] | None = honoured(
        None, checks.mapping, "A dict merged into the model's config."
    )
    max_model_len: int | None = honoured(
        None,
        checks.max_model_len,
        "Prompt and answer together. None: the model's length, and a row that outgrows the KV "
        'cache fails alone; -1 or "auto": at most what the KV cache holds.',
    )
    max_num_seqs: int | None = honoured(
        None, _ROWS, "Rows on the device: 2048 (GPU of 70 GiB or more), else 256."
    )
    max_num_batched_tokens: int | None = honoured(
        None,
        checks.integer(1, 2**24),
        "Tokens of one step: 16384 (GPU of 70 GiB), 8192 (other GPUs), 1024 (CPU).",
    )
    enable_prefix_caching: bool | None = honoured(None, checks.flag, "On unless False.")
    block_size: int | None = honoured(
        None,
        checks.block_size,
        "Tokens per KV block: 16; a power of two up to 128, or a multiple of 128.",
    )
    kv_cache_dtype: str = honoured(
        "auto",
        checks.kv_dtype,
        "auto is the model's dtype; fp8 (fp8_e4m3, fp8_per_token_head): only on a GPU, with a "
        "scale for each token and head.",
    )
    mamba_cache_dtype: str = honoured(
        "auto", _STATE_DTYPE, "States of layers are kept in float32, whatever the model's dtype."
    )
    mamba_ssm_cache_dtype: str = honoured("auto", _STATE_DTYPE, "As mamba_cache_dtype.")
    num_gpu_blocks_override: int | None = honoured(None, _COUNT, "Exactly this many KV blocks.")
    async_scheduling: bool | None = honoured(
        None, checks.flag, "True: a step is planned while one runs; None: only on a GPU."
    )
    load_format: str = honoured(
        "auto", _LOAD_FORMAT, "auto, safetensors, gguf, or dummy for random weights."
    )
    download_dir: str | None = honoured(
        None, checks.text, "Where Hub files go; the Hub cache by default."
    )
    max_logprobs: int = honoured(
        -1,
        checks.integer(-1, 2**31 - 1),
        "The most logprobs a request may ask for; -1 is the whole vocabulary.",
    )
    logprobs_mode: str = honoured(
        "raw_logprobs",
        checks.choice("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"),
        "Logprobs or logits, raw or after penalties and truncation (processed).",
    )
    generation_config: str = honoured(
        "auto",
        checks.text,
        'Sampling defaults: "auto" = the model\'s, "vllm" = none, or the path of a folder.',
    )
    override_generation_config: dict[str, Any] | None = honoured(
        None, checks.mapping, "Single defaults that replace those of generation_config."
    )
    logits_processors: tuple[type[Any], ...] | None = honoured(
        None,
        checks.processors,
        'Classes (or "module:Class", or the name of an entry point in the group '
        "vllm.logits_processors) that edit the logits of every row; one that derives from "
        "AdapterLogitsProcessor gives single requests a function of their own. Installed ones that "
        "are not named are not loaded, and a note says so.",
    )
    speculative_config: Speculation | None = honoured(
        None,
        speculation,
        '{"method": "ngram", "num_speculative_tokens": k, "prompt_lookup_min": .., '
        '"prompt_lookup_max": ..} guesses at most k tokens of a row at once, from what followed '
        "when its last tokens occurred before; the text is the same. On a CPU it guesses if "
        "measured times say that it pays, on a GPU while at most 16 rows run, no row waits, and "
        "their last tokens could have been guessed. None: on a CPU, if bits do not depend on the "
        "batch; k = 0: never. A draft model and further limits have no effect, with a warning.",
    )
    reasoning_parser: str = honoured(
        "",
        parsers.reasoning_parser,
        'Whose tags separate reasoning from an answer: "deepseek_r1", "qwen3", "mistral" ...; by '
        "default the tags with which the answer begins.",
    )
    reasoning_config: ReasoningConfig | None = honoured(
        None,
        nested.reasoning_config,
        '{"reasoning_start_str": "<think>", "reasoning_end_str": "I have to answer now.</think>"}: '
        "the tag that opens thoughts, and the text that thinking_token_budget ends them with; by "
        "default the model's own tags.",
    )
    tool_call_parser: str | None = honoured(
        None,
        parsers.tool_call_parser,
        'How tool calls are written: "hermes", "llama3_json", "mistral", "pythonic" ...; by '
        "default it is seen from the answer, if chat() was given tools.",
    )
    structured_outputs_config: StructuredOutputsConfig | None = honoured(
        None,
        nested.structured_outputs_config,
        'For every structured output {"disable_any_whitespace": True} writes JSON without white '
        'space, and {"disable_additional_properties": True} allows no further properties in '
        "objects made of several schemas, too. A backend in it has no effect, and a grammar "
        "always holds from an answer's first token on (enable_in_reasoning).",
    )
    guided_decoding_backend: StructuredOutputsConfig = honoured(
        "auto",
        nested.guided_decoding_backend,
        '"xgrammar:disable-any-whitespace" and ":no-additional-properties" do what they do in '
        "vLLM; the backend itself has no effect.",
    )
    guided_decoding_disable_any_whitespace: bool = honoured(
        False,
        checks.flag,
        "The older spelling of disable_any_whitespace in structured_outputs_config.",
    )
    guided_decoding_disable_additional_properties: bool = honoured(
        False,
        checks.flag,
        "The older spelling of disable_additional_properties in structured_outputs_config.",
    )
    runner: str = honoured(
        "auto",
        checks.choice(
            *("auto", "generate", "pooling"), others=("draft",), instead="Leave it at 'auto'."
        ),
        "auto: as the model's files say. pooling: a model that generates gives embeddings of its "
        "last token. generate: a sentence-transformers directory writes text.",
    )
    convert: str = honoured(
        "auto",
        checks.choice("auto", "none", "embed", "classify"),
        "embed: embeddings from a model that was made for something else.",
    )
    task: str = honoured(
        "auto",
        checks.choice(
            *("auto", "generate", "embed", "embedding", "classify", "score", "reward"),
            others=("draft", "transcription"),
            instead="Leave it out.",
        ),
        'The older spelling of runner and convert: "embed" is convert="embed".',
    )
    pooler_config: dict[str, Any] | None = honoured(
        None,
        nested.pooler_config,
        'How states become an embedding, instead of what the files say: {"pooling_type": "LAST", '
        '"CLS" or "MEAN", "use_activation": whether it is normalised}.',
    )
    override_pooler_config: dict[str, Any] | None = honoured(
        None, nested.pooler_config, "The older name of pooler_config."
    )
    device: str | None = honoured(None, checks.device, '"cpu" or "cuda"; by default a GPU if any.')
    batch_invariant: bool | None = honoured(
        None,
        checks.flag,
        "True: tokens and logprobs are bitwise the same in any batch. Off by default, "
        "except for float32 and 8 bits on a CPU with a compiler, where it costs nothing.",
    )
    data_parallel_size: int = honoured(
        1,
        checks.integer(1, 256),
        "How many replicas of the model run behind one LLM, each in a process with a GPU or a "
        "share of the cores; outputs are in the order of the prompts. docs/parallel.md.",
    )
    tensor_parallel_size: int = honoured(
        1, checks.num_devices, "Ranks, each with a share of the model. docs/parallel.md."
    )
    distributed_executor_backend: str | None = honoured(
        None,
        checks.choice(
            "mp",
            "uni",
            "external_launcher",
            others=("ray",),
            instead="On a Ray cluster use `quire run --ray`.",
        ),
        '"mp" (the default) starts processes for replicas and ranks. "uni" and "external_launcher" '
        "(torchrun, a trainer) allow neither: each process has an LLM of its own.",
    )
    limit_mm_per_prompt: dict[str, int] | None = honoured(
        {},
        checks.limit_mm_per_prompt,
        "How many media of each kind a prompt may have, by default 999; with 0 for all kinds the "
        "model's encoder of media is not loaded.",
    )
    language_model_only: bool = honoured(
        False, checks.flag, "Only text is read; the parts for media are not loaded."
    )
    allowed_local_media_path: str | None = honoured(
        "", checks.folder, "The folder from which prompts may name files; by default none."
    )
    allowed_media_domains: tuple[str, ...] | None = honoured(
        None,
        checks.domains,
        "Hosts from which media may be fetched, at the scheme's own port or as name:port; by "
        "default none, where vLLM's None means all.",
    )
    mm_processor_kwargs: dict[str, Any] | None = honoured(
        None, checks.mapping, "Options of the model's processor; those of a prompt replace these."
    )
    interleave_mm_strings: bool = honoured(
        False,
        checks.flag,
        "If a chat template reads only text, placeholders of media stand where the media stood, "
        "and not before the text.",
    )
    enable_mm_embeds: bool = honoured(
        False,
        checks.flag,
        "Images may be passed as embeddings: torch tensors, instead of what the model's encoder "
        "would make. Only their shape is checked, so allow it only if you trust the prompts.",
    )
    enable_lora: bool = honoured(
        False,
        checks.flag,
        "Whether prompts may name a LoRA adapter each (lora_request). docs/adapters.md.",
    )
    max_loras: int = honoured(
        1, checks.integer(1, 1024), "Adapters in one batch; prompts with other adapters wait."
    )
    max_lora_rank: int = honoured(
        16,
        checks.integer(1, 1024),
        "The highest rank of an adapter; on a GPU each slot has room for it.",
    )
    max_cpu_loras: int | None = honoured(
        None,
        checks.integer(1, 1 << 20),
        "How many of the last used adapters main memory keeps; by default max_loras.",
    )

    def __repr__(self) -> str:
        """Shows only what was set, and never the token."""
        shown = []
        for one in fields(self):
            value = getattr(self, one.name)
            if value not in (None, one.default):
                shown.append(f"{one.name}={'...' if one.name == 'hf_token' else repr(value)}")
        return f"Options({', '.join(shown)})"
