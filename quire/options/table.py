"""Every option an LLM takes: honoured, moot or refused, with its default and the reason.

The names and defaults are those that scripts for vLLM write, older spellings included, and three
of quire's own: device, batch_invariant and special_tokens_in_messages. Nothing that changes results
is ever moot. The table is rendered into docs/api.md.
"""

from __future__ import annotations

from typing import Any

from quire.options import checks
from quire.options.adapters import ADAPTER_OPTIONS
from quire.options.media import MEDIA_OPTIONS
from quire.options.moot import MOOT
from quire.options.nested import pooler_config, reasoning_config, structured_outputs_config
from quire.options.option import Kind, Option, honoured
from quire.options.parsers import reasoning_parser, tool_call_parser
from quire.options.refused import REFUSED
from quire.options.speculation import speculation

_COUNT = checks.integer(1, 2**31 - 1)
_ROWS = checks.integer(1, 2**20)
_SIZE = checks.integer(1, 2**20)
_LOAD_FORMAT = checks.choice(
    *("auto", "safetensors", "gguf", "dummy"),
    others=(
        *("pt", "npcache", "tensorizer", "bitsandbytes", "sharded_state", "mistral", "hf"),
        *("runai_streamer", "runai_streamer_sharded", "fastsafetensors", "modelexpress"),
    ),
    instead="Convert the weights to safetensors or GGUF.",
)


HONOURED: tuple[Option, ...] = (
    honoured("tokenizer", None, checks.text, "Path or Hub id; the model's own by default."),
    honoured(
        "tokenizer_mode",
        "auto",
        checks.choice(
            "auto",
            "hf",
            others=("slow", "mistral", "custom", "deepseek_v32"),
            instead="Use 'auto' with a tokenizer.json.",
        ),
        "Both read tokenizer.json (or the GGUF file) with the `tokenizers` library.",
    ),
    honoured("skip_tokenizer_init", False, checks.flag, "Token ids in, token ids out."),
    honoured(
        "trust_remote_code",
        False,
        checks.flag,
        "A permission: a model's own code is run if its directory has some and neither a family of "
        "quire nor a class of Transformers is named by it.",
    ),
    honoured(
        "model_impl",
        "auto",
        checks.choice(
            *("auto", "quire", "vllm", "transformers"),
            others=("terratorch",),
            instead="Use 'auto'.",
        ),
        '"quire" (or "vllm"): a family of quire\'s own; "transformers": the causal class of '
        "Transformers, on quire's engine; auto: the first where there is one for the model.",
    ),
    honoured(
        "dtype",
        "auto",
        checks.dtype,
        "auto: the stored type where it is fast, else bfloat16 where that is, else float32. "
        "half, float16, bfloat16, float and float32 are taken as they are.",
    ),
    honoured(
        "quantization",
        None,
        checks.quantization,
        '"int8": weights and activations in bytes, on a CPU; "none": computed in dtype. What a '
        "checkpoint is (awq, gptq, compressed-tensors, fp8, mxfp4, bitsandbytes, gguf): weights "
        "stay so on a GPU. None: fp8 and 4 bits (awq, gptq, w4a16) stay so on Hopper GPUs, unless "
        "batch_invariant, float32, adapters or several ranks are asked for; others are "
        "dequantised on load; on a CPU int8 "
        "where they were rounded before, that is fast and accurate enough, and no dtype is given.",
    ),
    honoured("revision", None, checks.text, "Branch, tag or commit on the Hub."),
    honoured("tokenizer_revision", None, checks.text, "The same, for the tokenizer."),
    honoured("chat_template", None, checks.text, "A Jinja template, or the path of one."),
    honoured(
        "special_tokens_in_messages",
        False,
        checks.flag,
        "Whether a special token written in a message of a chat (<|im_end|>) counts as one, as in "
        "vLLM; by default it is text, and opens no turn. chat() takes it for one call.",
    ),
    honoured("seed", 0, checks.seed, "Keys the noise of requests that have no seed."),
    honoured(
        "gpu_memory_utilization",
        0.92,
        checks.share,
        "Share of GPU memory that this engine may have, above 0 and at most 1; what others have on "
        "the same GPU does not count, so two engines may have 0.45 each.",
    ),
    honoured(
        "kv_cache_memory_bytes",
        None,
        checks.integer(1, 2**63 - 1),
        "Bytes of the KV pool; from the free memory by default.",
    ),
    honoured("enforce_eager", False, checks.flag, "No CUDA graphs."),
    honoured(
        "hf_token",
        None,
        checks.hf_token,
        "For the Hub; True = the stored one. A job never stores it.",
    ),
    honoured("hf_overrides", None, checks.mapping, "A dict merged into the model's config."),
    honoured(
        "max_model_len",
        None,
        checks.max_model_len,
        "Prompt and answer together. None: the model's length, and a row that outgrows the KV "
        'cache fails alone; -1 or "auto": at most what the KV cache holds.',
    ),
    honoured("max_num_seqs", None, _ROWS, "Rows on the device: 2048 (GPU of 70 GiB), else 256."),
    honoured(
        "max_num_batched_tokens",
        None,
        checks.integer(1, 2**24),
        "Tokens of one step: 16384 (GPU of 70 GiB), 8192 (other GPUs), 1024 (CPU).",
    ),
    honoured("enable_prefix_caching", None, checks.flag, "On unless False."),
    honoured("block_size", None, checks.block_size, "Tokens per KV block: 16; a power of two."),
    honoured(
        "kv_cache_dtype",
        "auto",
        checks.kv_dtype,
        "auto is the model's dtype; fp8 (fp8_e4m3, fp8_per_token_head): on a GPU, with a scale per "
        "token and head.",
    ),
    honoured("num_gpu_blocks_override", None, _COUNT, "Exactly this many KV blocks."),
    honoured(
        "async_scheduling",
        None,
        checks.flag,
        "True plans a step while one runs; None does so on a GPU.",
    ),
    honoured(
        "load_format",
        "auto",
        _LOAD_FORMAT,
        "auto, safetensors, gguf, or dummy for random weights.",
    ),
    honoured("download_dir", None, checks.text, "Where Hub files go; the Hub cache by default."),
    honoured(
        "max_logprobs",
        -1,
        checks.integer(-1, 2**31 - 1),
        "The most logprobs a request may ask for; -1 is the whole vocabulary.",
    ),
    honoured(
        "logprobs_mode",
        "raw_logprobs",
        checks.choice("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"),
        "Before or after penalties and truncation, normalised or not.",
    ),
    honoured(
        "generation_config",
        "auto",
        checks.text,
        'Sampling defaults: "auto" = the model\'s, "vllm" = none, or the path of a folder.',
    ),
    honoured(
        "override_generation_config",
        None,
        checks.mapping,
        "Single defaults that replace those of generation_config.",
    ),
    honoured(
        "logits_processors",
        None,
        checks.processors,
        'Classes (or "module:Class", or the name of an entry point in the group '
        "vllm.logits_processors) that edit the logits of every row; one that derives from "
        "AdapterLogitsProcessor gives single requests a function of their own. Installed ones that "
        "are not named are not loaded, and a note says so.",
    ),
    honoured(
        "speculative_config",
        None,
        speculation,
        '{"method": "ngram", "num_speculative_tokens": k, "prompt_lookup_min": .., '
        '"prompt_lookup_max": ..} guesses at most k tokens of a row at once, from what followed '
        "when its last tokens occurred before; the text is the same. On a CPU wherever measured "
        "times say that it pays, on a GPU while at most 16 rows run, nobody waits, and what they "
        "wrote last could have been guessed. None: on a CPU, where bits do not depend on the "
        "batch; k = 0: never. A draft model and further limits have no effect, with a warning.",
    ),
    honoured(
        "reasoning_parser",
        "",
        reasoning_parser,
        'Whose tags split reasoning off an answer: "deepseek_r1", "qwen3", "mistral" ...; by '
        "default those that the answer begins with.",
    ),
    honoured(
        "reasoning_config",
        None,
        reasoning_config,
        '{"reasoning_start_str": "<think>", "reasoning_end_str": "I have to answer now.</think>"}: '
        "what opens thoughts, and what is written where thinking_token_budget ends them; by "
        "default the model's own tags.",
    ),
    honoured(
        "tool_call_parser",
        None,
        tool_call_parser,
        'How tool calls are written: "hermes", "llama3_json", "mistral", "pythonic" ...; by '
        "default what the answer looks like, where chat() was given tools.",
    ),
    honoured(
        "structured_outputs_config",
        None,
        structured_outputs_config,
        '{"disable_any_whitespace": True} writes JSON without white space, and '
        '{"disable_additional_properties": True} closes objects that are put together from several '
        "parts, too, for every structured output. A backend in it has no effect, and a grammar "
        "always holds from an answer's first token on (enable_in_reasoning).",
    ),
    honoured(
        "guided_decoding_disable_any_whitespace",
        False,
        checks.flag,
        "The older spelling of disable_any_whitespace in structured_outputs_config.",
    ),
    honoured(
        "guided_decoding_disable_additional_properties",
        False,
        checks.flag,
        "The older spelling of disable_additional_properties in structured_outputs_config.",
    ),
    honoured(
        "runner",
        "auto",
        checks.choice(
            *("auto", "generate", "pooling"), others=("draft",), instead="Leave it at 'auto'."
        ),
        "auto: what the model's files say it is for. pooling: a generator gives embeddings of its "
        "last token; generate: a sentence-transformers directory writes text.",
    ),
    honoured(
        "convert",
        "auto",
        checks.choice("auto", "none", "embed", "classify"),
        "embed: embeddings from a model that was made for something else.",
    ),
    honoured(
        "task",
        "auto",
        checks.choice(
            *("auto", "generate", "embed", "embedding", "classify", "score", "reward"),
            others=("draft", "transcription"),
            instead="Leave it out.",
        ),
        'The older spelling of runner and convert: "embed" is convert="embed".',
    ),
    honoured(
        "pooler_config",
        None,
        pooler_config,
        'How states become an embedding, over what the files say: {"pooling_type": "LAST", "CLS" '
        'or "MEAN", "use_activation": whether it is normalised}.',
    ),
    honoured("override_pooler_config", None, pooler_config, "The older name of pooler_config."),
    honoured("device", None, checks.device, '"cpu" or "cuda"; a GPU where there is one.'),
    honoured(
        "batch_invariant",
        None,
        checks.flag,
        "True: tokens and logprobs are bitwise the same in any batch. Off by default, but for "
        "float32 and 8 bits on a CPU with a compiler, where it costs nothing.",
    ),
    honoured(
        "data_parallel_size",
        1,
        checks.integer(1, 256),
        "So many replicas of the model in processes of their own, a GPU or a share of the cores "
        "each, behind one LLM: outputs come in the order of the prompts. docs/parallel.md.",
    ),
    honoured(
        "tensor_parallel_size", 1, checks.num_devices, "Ranks, each a share. docs/parallel.md."
    ),
    honoured(
        "distributed_executor_backend",
        None,
        checks.choice(
            "mp",
            "uni",
            "external_launcher",
            others=("ray",),
            instead="On a Ray cluster use `quire run --ray`.",
        ),
        '"mp" (the default) starts processes where there are replicas or ranks; "uni" allows none, '
        'nor does "external_launcher" (torchrun, a trainer): each process has an LLM of its own.',
    ),
    *MEDIA_OPTIONS,
    *ADAPTER_OPTIONS,
)

# Values of other options that ask for nothing new, and options whose values are still checked.
_HARMLESS: dict[str, tuple[Any, ...]] = {
    "config_format": ("hf",),
    "enable_sleep_mode": (True,),
}
_CHECKED = {
    "pipeline_parallel_size": _SIZE,
    "enable_chunked_prefill": checks.flag,
    "disable_log_stats": checks.flag,
    "scheduling_policy": checks.choice("fcfs", "priority"),
}


def _table() -> dict[str, Option]:
    options = list(HONOURED)
    kinds: tuple[tuple[Kind, dict[str, dict[str, Any]]], ...] = (
        ("moot", MOOT),
        ("refused", REFUSED),
    )
    for kind, groups in kinds:
        for why, defaults in groups.items():
            for name, default in defaults.items():
                check, harmless = _CHECKED.get(name), _HARMLESS.get(name, ())
                options.append(Option(name, kind, default, why, check, harmless))
    return {option.name: option for option in options}


OPTIONS: dict[str, Option] = _table()
