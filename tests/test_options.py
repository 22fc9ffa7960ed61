"""Every option is honoured, moot or refused."""

from __future__ import annotations

import argparse
import dataclasses
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.config import PoolerConfig, ReasoningConfig, Speculation
from quire.errors import InvalidOption, NotSupported, QuireError, QuireWarning, UnknownOption
from quire.options import OPTIONS, Options, parse_options, resolve
from quire.params.structured import StructuredOutputsConfig
from quire.session.engine_args import EngineArgs
from tests.media import options
from tests.test_decided_config import cpu, spec

NAN, INF = float("nan"), float("inf")

# For each honoured option, values that are taken (with what becomes of them) ...


class Nudge:
    """What a class needs to pass for a logits processor."""

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None: ...

    def apply(self, logits: Any) -> Any:
        return logits


TAKEN: dict[str, list[tuple[Any, Any]]] = {
    "tokenizer": [("some/tokenizer", "some/tokenizer"), (Path("/a"), "/a")],
    "tokenizer_mode": [("auto", "auto"), ("hf", "hf")],
    "skip_tokenizer_init": [(True, True)],
    "trust_remote_code": [(True, True)],
    "model_impl": [("quire", "quire"), ("vllm", "vllm"), ("transformers", "transformers")],
    "dtype": [
        *(("auto", None), ("half", "float16"), ("float", "float32"), ("bfloat16", "bfloat16")),
        *(("float16", "float16"), ("float32", "float32")),
    ],
    "quantization": [("none", "none"), ("int8", "int8"), ("awq_marlin", "awq"), ("fp8", "fp8")],
    "revision": [("main", "main")],
    "tokenizer_revision": [("main", "main")],
    "chat_template": [("{{ x }}", "{{ x }}"), (Path("t.jinja"), "t.jinja")],
    "special_tokens_in_messages": [(True, True)],
    "seed": [(7, 7), (-3, -3)],
    "gpu_memory_utilization": [(0.5, 0.5), (1, 1.0)],
    "kv_cache_memory_bytes": [(2**30, 2**30)],
    "enforce_eager": [(True, True)],
    "hf_token": [("secret", "secret"), (True, True)],
    "hf_overrides": [({"a": 1}, {"a": 1})],
    "max_model_len": [(512, 512), (-1, -1), ("auto", -1)],
    "max_num_seqs": [(3, 3)],
    "max_num_batched_tokens": [(77, 77)],
    "enable_prefix_caching": [(False, False)],
    "block_size": [(1, 1), (64, 64), (384, 384), (2176, 2176), (65_536, 65_536)],
    "kv_cache_dtype": [
        *(("auto", "auto"), ("half", "float16"), ("bfloat16", "bfloat16")),
        *(("fp8", "fp8"), ("fp8_e4m3", "fp8"), ("fp8_per_token_head", "fp8")),
    ],
    "mamba_cache_dtype": [("float32", "float32")],
    "mamba_ssm_cache_dtype": [("float32", "float32")],
    "num_gpu_blocks_override": [(12, 12)],
    "async_scheduling": [(False, False)],
    "load_format": [("dummy", "dummy"), ("gguf", "gguf"), ("safetensors", "safetensors")],
    "download_dir": [("/models", "/models")],
    "max_logprobs": [(20, 20), (-1, -1)],
    "logprobs_mode": [("processed_logits", "processed_logits")],
    "generation_config": [("vllm", "vllm"), ("/folder", "/folder")],
    "override_generation_config": [({"top_k": 5}, {"top_k": 5})],
    "logits_processors": [([Nudge], (Nudge,)), ([f"{__name__}:Nudge"], (Nudge,))],
    "speculative_config": [
        ({"method": "ngram", "num_speculative_tokens": 4}, Speculation(4, 1, 8)),
        (
            {"num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 5},
            Speculation(3, 2, 5),
        ),
        ({"method": "ngram", "prompt_lookup_max": 4}, Speculation(16, 4, 4)),
        ({"num_speculative_tokens": 0}, Speculation(0, 1, 8)),
        ({"model": "[ngram]", "num_speculative_tokens": 4}, Speculation(4, 1, 8)),
        ({"method": "[ngram]", "num_speculative_tokens": 4}, Speculation(4, 1, 8)),
        ({"model": "draft", "num_speculative_tokens": 0}, Speculation(0, 1, 8)),
        ({}, None),
    ],
    "reasoning_parser": [("qwen3", "<think>"), ("mistral", "[THINK]"), ("", "")],
    "reasoning_config": [
        ({"reasoning_end_str": "Enough.</think>"}, ReasoningConfig("", "", "Enough.</think>")),
        (ReasoningConfig("", "<a>", "</a>"), ReasoningConfig("", "<a>", "</a>")),
        ({}, None),
    ],
    "tool_call_parser": [("llama3_json", "llama3"), ("hermes", "hermes")],
    "structured_outputs_config": [
        ({"disable_any_whitespace": True}, StructuredOutputsConfig(disable_any_whitespace=True)),
        ({"disable_additional_properties": True}, StructuredOutputsConfig(False, True)),
        ({"backend": "auto", "enable_in_reasoning": False}, None),
        ({"backend": "auto:disable-any-whitespace"}, StructuredOutputsConfig(True)),
    ],
    "guided_decoding_backend": [
        ("guidance:disable-any-whitespace,no-fallback", StructuredOutputsConfig(True)),
        ("auto:no-additional-properties", StructuredOutputsConfig(False, True)),
    ],
    "guided_decoding_disable_any_whitespace": [(True, True)],
    "guided_decoding_disable_additional_properties": [(True, True)],
    "runner": [("pooling", "pooling"), ("generate", "generate")],
    "convert": [("embed", "embed"), ("none", "none")],
    "task": [("embed", "embed"), ("score", "score")],
    "pooler_config": [
        (
            {"pooling_type": "mean", "normalize": False},
            {"pooling_type": "MEAN", "use_activation": False},
        ),
        (PoolerConfig("CLS"), {"pooling_type": "CLS"}),
    ],
    "override_pooler_config": [({"pooling_type": "LAST"}, {"pooling_type": "LAST"})],
    "device": [("cpu", "cpu"), ("cuda", "cuda"), ("auto", None)],
    "batch_invariant": [(True, True)],
    **dict.fromkeys(("data_parallel_size", "tensor_parallel_size"), [(1, 1), (4, 4)]),
    "distributed_executor_backend": [
        ("mp", "mp"),
        ("uni", "uni"),
        ("external_launcher", "external_launcher"),
    ],
    **options.TAKEN,
    "enable_lora": [(True, True)],
    **{f"max_{what}": [(1, 1), (32, 32)] for what in ("loras", "lora_rank", "cpu_loras")},
}
# ... and values that are not.
BAD: dict[str, list[Any]] = {
    "tokenizer": [5, "", "a\0b", b"bytes"],
    "tokenizer_mode": ["quick", 3],
    "skip_tokenizer_init": [1, "yes"],
    "trust_remote_code": [1],
    "dtype": ["float8", 16, "int8"],
    "quantization": [8],
    "revision": [1],
    "tokenizer_revision": [1],
    "chat_template": [{}],
    "special_tokens_in_messages": [1],
    "seed": [1.5, True, 2**64, "0"],
    "gpu_memory_utilization": [0.0, 1.1, NAN, -1, "0.9", True],
    "kv_cache_memory_bytes": [0, -1, 1.5, 2**63],
    "enforce_eager": [1],
    "hf_token": [7, ""],
    "hf_overrides": ["a", {1: 2}],
    "max_model_len": [0, -2, 2**31, 4096.0, True, "long", -1.0],
    "max_num_seqs": [0, 2**21, 1.0, NAN],
    "max_num_batched_tokens": [0, 2**63, INF],
    "enable_prefix_caching": ["on"],
    "block_size": [0, 3, 192, 500, 65_664, 16.0],
    **dict.fromkeys(("mamba_cache_dtype", "mamba_ssm_cache_dtype"), ["float8", 32]),
    "num_gpu_blocks_override": [0, -4],
    "async_scheduling": [1],
    "load_format": ["floppy", 3],
    "download_dir": [4],
    "max_logprobs": [-2, 1.5],
    "logprobs_mode": ["cooked"],
    "generation_config": [3],
    "override_generation_config": [[]],
    "structured_outputs_config": [
        *(7, "auto", {1: 2}, {"disable_any_whitespace": 1}, {"disable_whitespace": True}),
        {"enable_in_reasoning": "yes"},
    ],
    "guided_decoding_backend": ["auto:nothing-known", 3],
    "guided_decoding_disable_any_whitespace": [1],
    "guided_decoding_disable_additional_properties": ["yes"],
    "runner": ["embed", 3],
    "convert": ["reward", True],
    "task": ["dance"],
    "pooler_config": ["MEAN", {"pooling_type": "MAX"}, {"use_activation": 1}],
    "override_pooler_config": [{"pooling_type": 3}],
    "device": ["cuda:1"],
    "logits_processors": ["a:B", [Path], ["no_such_module:X"], ["json:NoSuch"], [lambda: 0], 5],
    "speculative_config": [
        *(7, "ngram", {1: 2}, {"num_speculative_tokens": -1}, {"num_speculative_tokens": 1.5}),
        *({"num_speculative_tokens": True}, {"prompt_lookup_min": 0}, {"prompt_lookup_max": "4"}),
        *({"prompt_lookup_min": 5, "prompt_lookup_max": 2}, {"method": "dice"}, {"modle": "m"}),
    ],
    **dict.fromkeys(("reasoning_parser", "tool_call_parser"), ["nobody", 3]),
    "reasoning_config": [
        *("</think>", {"zzz": "a"}, {"reasoning_end_str": 3}, {"reasoning_start_str": "<mine>"}),
        *({"reasoning_end_str": e} for e in ("Enough.", "</think> So")),
        {"reasoning_start_str": "<think>", "reasoning_end_str": "[/THINK]"},
    ],
    "batch_invariant": [1],
    "data_parallel_size": [0, 257, "2", True],
    "tensor_parallel_size": [-1, "2", True, 1.5],
    "distributed_executor_backend": ["gloo", 3],
    **options.BAD,
    **{f"max_{what}": [0, True, "2", 1 << 30] for what in ("loras", "lora_rank", "cpu_loras")},
}


def of_kind(kind: str) -> list[str]:
    return [name for name, option in OPTIONS.items() if option.kind == kind]


def test_options_holds_exactly_the_honoured_ones_with_their_defaults() -> None:
    fields = {f.name: f.default for f in dataclasses.fields(Options)}
    assert list(fields) == of_kind("honoured")
    assert list(TAKEN) == of_kind("honoured")
    assert parse_options({}) == Options()
    assert parse_options({name: o.default for name, o in OPTIONS.items()}) == Options()


@pytest.mark.parametrize("name", of_kind("honoured"))
def test_an_honoured_option_arrives_as_written(name: str) -> None:
    for value, expected in TAKEN[name]:
        assert getattr(parse_options({name: value}), name) == expected
    default = getattr(Options(), name)
    assert getattr(parse_options({name: None}), name) == default


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, many in BAD.items() for v in many])
def test_a_bad_value_names_the_option(name: str, value: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        parse_options({name: value})
    assert caught.value.parameter == name
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("quantization", "aqlm"),
        ("kv_cache_dtype", "fp8_e5m2"),
        ("kv_cache_dtype", "int8_per_token_head"),
        ("mamba_cache_dtype", "float16"),
        ("mamba_ssm_cache_dtype", "bfloat16"),
        ("tokenizer_mode", "slow"),
        ("load_format", "bitsandbytes"),
        ("hf_overrides", lambda config: config),
        ("device", "tpu"),
        ("reasoning_parser", "granite"),
        ("tool_call_parser", "step3"),
    ],
)
def test_a_value_that_exists_elsewhere_is_not_supported(name: str, value: Any) -> None:
    with pytest.raises(NotSupported, match=name):
        parse_options({name: value})


def another(default: Any) -> Any:
    """A value that differs from the default and has its type."""
    if isinstance(default, bool):
        return not default
    if isinstance(default, int | float):
        return default + 1
    if isinstance(default, str):
        return "something"
    return {"something": 1} if isinstance(default, dict) else ["something"]


SPECIAL = {"enable_chunked_prefill": False, "scheduling_policy": "priority"}


@pytest.mark.parametrize("name", of_kind("moot"))
def test_a_moot_option_warns_once_with_the_reason(name: str) -> None:
    option = OPTIONS[name]
    value = SPECIAL.get(name, another(option.default))
    if value in option.harmless:
        assert parse_options({name: value}) == Options()  # it asks for what is done anyway
        return
    with pytest.warns(QuireWarning, match=name) as caught:
        assert parse_options({name: value}) == Options()
    assert len(caught) == 1
    assert option.why in str(caught[0].message)
    assert caught[0].filename == __file__
    assert parse_options({name: option.default}) == parse_options({name: None}) == Options()


@pytest.mark.parametrize("name", of_kind("refused"))
def test_a_refused_option_says_what_to_do_instead(name: str) -> None:
    option = OPTIONS[name]
    with pytest.raises(NotSupported, match=name) as caught:
        parse_options({name: SPECIAL.get(name, another(option.default))})
    assert option.why in str(caught.value)
    assert parse_options({name: option.default}) == parse_options({name: None}) == Options()


@pytest.mark.parametrize(
    ("name", "value"),
    [("config_format", "hf")],
)
def test_asking_for_what_happens_anyway_is_fine(name: str, value: str) -> None:
    assert parse_options({name: value}) == Options()


def test_no_reason_is_empty_and_every_name_is_a_word() -> None:
    for name, option in OPTIONS.items():
        assert name.isidentifier() and option.why.endswith("."), name


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("max_len", "max_model_len"),
        ("max-model-len", "max_model_len"),
        ("gpu_memory_utilisation", "gpu_memory_utilization"),
        ("tensor_parallel", "tensor_parallel_size"),
        ("dtpye", "dtype"),
        ("Seed", "seed"),
        ("temperature", "SamplingParams(temperature=...)"),
        ("qwxz", "docs/api.md"),
    ],
)
def test_an_unknown_option_is_told_the_nearest_known_one(wrong: str, right: str) -> None:
    with pytest.raises(UnknownOption) as caught:
        parse_options({wrong: 1})
    assert right in str(caught.value)
    assert isinstance(caught.value, TypeError)
    assert caught.value.parameter == wrong


def test_the_options_never_show_the_token() -> None:
    options = parse_options({"hf_token": "hf_abcdef", "seed": 3})
    assert repr(options) == "Options(seed=3, hf_token=...)"
    with pytest.raises(InvalidOption) as caught:
        parse_options({"hf_token": ["hf_abcdef"]})
    assert "hf_abcdef" not in str(caught.value)
    assert "hf_abcdef" not in repr(EngineArgs("m", hf_token="hf_abcdef"))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.binary(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=3,
)


@given(st.sampled_from(sorted(OPTIONS)), values)
def test_any_value_of_any_option_is_taken_or_refused_by_type(name: str, value: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QuireWarning)
        try:
            options = parse_options({name: value})
        except QuireError:
            return
        if options.device is None and (options.max_model_len or 1) <= 2048:
            config = resolve(options, spec(), cpu())
            assert 1 <= config.max_num_seqs <= config.max_num_batched_tokens


@pytest.mark.parametrize("size", ["data_parallel_size", "tensor_parallel_size"])
@pytest.mark.parametrize("backend", ["uni", "external_launcher"])
def test_one_process_is_no_home_for_two(backend: str, size: str) -> None:
    parse_options({"distributed_executor_backend": backend, size: 1})
    with pytest.raises(InvalidOption, match=f"{backend}' is one process, and {size}=2"):
        parse_options({"distributed_executor_backend": backend, size: 2})


def test_a_dict_option_is_copied() -> None:
    mine = {"a": 1}
    options = parse_options({"hf_overrides": mine})
    mine["b"] = 2
    assert options.hf_overrides == {"a": 1}


# ------------------------------------------------------------------------- EngineArgs


def test_engine_args_hold_every_option_and_make_the_same_options() -> None:
    args: Any = EngineArgs(model="m", max_model_len=64, dtype="half")
    assert args.given() == {"model": "m", "max_model_len": 64, "dtype": "half"}
    everything = dataclasses.asdict(args)
    assert everything.pop("model") == "m" and set(everything) == set(OPTIONS)
    assert parse_options(everything) == args.parsed() == Options(max_model_len=64, dtype="float16")
    assert repr(args) == "EngineArgs(model='m', dtype='half', max_model_len=64)"


def test_engine_args_are_checked_when_made() -> None:
    make: Any = EngineArgs
    with pytest.raises(InvalidOption):
        make("m", max_num_seqs=0)
    with pytest.raises(NotSupported):
        make("m", enable_lora_bias=True)
    with pytest.raises(InvalidOption):
        make(5)
    with pytest.raises(TypeError):
        make("m", no_such_option=1)


def test_engine_args_read_a_command_line() -> None:
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    line = ["--model", "m", "--max-model-len", "64", "--enforce-eager", "--dtype", "half"]
    args = EngineArgs.from_cli_args(parser.parse_args(line))
    assert args.parsed() == Options(max_model_len=64, dtype="float16", enforce_eager=True)
    for words, meant in [
        (["--enable-prefix-caching"], True),
        (["--no-enable-prefix-caching"], False),
        (["--enable-prefix-caching", "false"], False),
        (["--enable-prefix-caching", "--seed", "1"], True),
        ([], None),
    ]:
        read = parser.parse_args(["--model", "m", "--no-enable-chunked-prefill", *words])
        assert read.enable_prefix_caching is meant and read.enable_chunked_prefill is False
    short = parser.parse_args(["--model", "m", "-tp=2", "-dp", "3", "-q", "int8", "-O3", "-ep"])
    assert (short.tensor_parallel_size, short.data_parallel_size, short.quantization) == (
        2,
        3,
        "int8",
    )
    for word, tokens in [("8k", 8000), ("8K", 8192), ("1.5m", 1_500_000), ("auto", "auto")]:
        assert parser.parse_args(["--max-model-len", word]).max_model_len == tokens
    with pytest.raises(InvalidOption, match=r"max_model_len .* '1\.5K'"):
        EngineArgs.from_cli_args(parser.parse_args(["--model", "m", "--max-model-len", "1.5K"]))
    with pytest.raises(InvalidOption, match="--model"):
        EngineArgs.from_cli_args(argparse.Namespace(seed=1))
    with pytest.raises(InvalidOption, match="--model"):
        EngineArgs.from_cli_args(parser.parse_args([]))
