"""Calls as programs written for vLLM make them, beyond generate and chat."""

from __future__ import annotations

import inspect
import sys
import time
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from quire import (
    LLM,
    BatchError,
    EngineArgs,
    EngineClosed,
    InvalidBatch,
    InvalidOption,
    NotSupported,
    SamplingParams,
    UnknownOption,
)
from quire.errors import InvalidGrammar, InvalidLogits
from quire.exceptions import VLLMValidationError
from quire.options import OPTIONS, plugins
from quire.sampling_params import StructuredOutputsParams
from quire.session.hf_config import config_object, config_of
from quire.session.metrics import MOST_OBSERVED, _Observed
from quire.v1.metrics.reader import Counter, Gauge, Histogram
from quire.weights.source import locate
from tests.tiny_llm import tiny_llm

GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
WORDS = ["The river", "A quiet house by", "Once"]


def test_a_wrong_call_says_what_to_call_instead(llm: LLM) -> None:
    broken = SamplingParams(structured_outputs=StructuredOutputsParams(regex="(a"))
    generate: Any = llm.generate
    calls: list[tuple[Any, str]] = [
        (lambda: llm.generate([{"role": "user", "content": "x"}]), r"for chat\(\)"),
        (lambda: llm.generate([["a", "b"]]), "one flat list"),
        (lambda: llm.generate("a", broken, use_tqdm=False), "is prompt 0: regex"),
        (lambda: llm.generate("a", tokenization_kwargs={"zzz": 1}), "max_length"),
        (lambda: llm.plan("a", probe="x"), "probe must be an integer"),
        (lambda: generate(None, GREEDY, [[1]]), "takes prompts, sampling_params by"),
        (lambda: generate("a", "greedy"), "is a SamplingParams or a list of them, not str"),
        # What programs look for in vLLM's error.
        (lambda: generate([[1] * 600]), "maximum context length is 512"),
        (
            lambda: generate([[1] * 600]),
            r"\(length 600\).* is longer than the maximum model length",
        ),
    ]
    for call, words in calls:
        with pytest.raises(ValueError, match=words):
            call()


def test_an_argument_of_the_wrong_kind_is_refused_by_name(llm: LLM, tmp_path: Path) -> None:
    told: Any = llm
    user = [{"role": "user", "content": "x"}]
    calls: list[tuple[str, Any]] = [
        ("priority", lambda: told.generate("a", GREEDY, priority=1)),
        ("priority", lambda: told.chat(user, GREEDY, priority={"a": 1})),
        ("tokenization_kwargs", lambda: told.generate("a", tokenization_kwargs=True)),
        ("tokenization_kwargs", lambda: told.chat(user, tokenization_kwargs="truncation")),
        ("on_result", lambda: told.generate("a", GREEDY, on_result=True)),
        ("chat_template", lambda: told.chat(user, chat_template=True)),
        ("chat_template", lambda: told.chat(user, chat_template="a\0b")),
        ("tools", lambda: told.chat(user, tools=True)),
        ("tools", lambda: told.chat(user, tools=1)),
        ("method", lambda: told.collective_rpc(None)),
        ("func", lambda: told.apply_model(None)),
        ("tags", lambda: told.wake_up(tags=True)),
        ("tags", lambda: told.wake_up(tags=[["weights"]])),
    ]
    with tiny_llm(tmp_path, convert="embed") as pooling:
        asked: Any = pooling
        calls += [
            ("pooling_params", lambda: asked.embed("a", pooling_params=True)),
            ("tokenization_kwargs", lambda: asked.embed("a", tokenization_kwargs="truncation")),
            ("prompt_name", lambda: asked.embed("a", prompt_name=["query"])),
        ]
        for name, call in calls:
            with pytest.raises(VLLMValidationError) as caught:
                call()
            assert caught.value.parameter == name, name


def test_what_older_scripts_write_out_and_what_asks_for_nothing_is_taken() -> None:
    given = {"use_beam_search": False, "length_penalty": 1.0, "early_stopping": None}
    assert SamplingParams(n=2, **given) == SamplingParams(n=2)
    for name, value in {"use_beam_search": True, "length_penalty": 1.2}.items():
        with pytest.raises(UnknownOption, match="beam_search"):
            SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("keyword", "meant"),
    [
        ("temperature", r"sampling_params=SamplingParams\(...\)\.$"),
        ("max_new_tokens", "SamplingParams.*It is max_tokens here"),
        ("guided_options_request", "structured_outputs=StructuredOutputsParams"),
        ("promts", "Did you mean 'prompts'"),
        ("inputs", "It is prompts here"),
    ],
)
def test_a_keyword_that_generate_does_not_take_says_where_it_goes(
    llm: LLM, keyword: str, meant: str
) -> None:
    with pytest.raises(UnknownOption, match=f"LLM.generate takes no '{keyword}'.*{meant}"):
        llm.generate("a", **{keyword: 1})


# ------------------------------------------------------------------ what is read off the engine


def test_the_config_is_read_by_every_path(llm: LLM) -> None:
    engine = llm.llm_engine
    configs = [engine.model_config, engine.vllm_config.model_config, llm.model_config]
    configs += [engine.get_model_config(), engine.get_vllm_config().model_config]
    for config in configs:
        assert config.max_model_len == 512 and config.get_vocab_size() == 49152
        assert (config.get_hidden_size(), config.get_head_size()) == (32, 8)
        assert str(config.dtype) == "torch.float32"
    cache = engine.vllm_config.cache_config
    assert (cache.num_gpu_blocks, cache.block_size) == (llm.kv_cache.num_blocks, 16)
    scheduler = engine.scheduler_config
    assert (scheduler.max_num_seqs, scheduler.max_model_len) == (256, 512)
    assert engine.get_tokenizer() is engine.tokenizer is llm.get_tokenizer()


def test_request_ids_of_the_callers_own_loop_are_those_of_the_llm(llm: LLM) -> None:
    engine, params = llm.llm_engine, SamplingParams(max_tokens=1)
    first = next(llm.request_counter)
    engine.add_request(str(first), "a", params)
    while engine.has_unfinished_requests():
        assert all(output.request_id == str(first) for output in engine.step())
        engine.do_log_stats()
    following = llm.request_counter.counter
    assert llm.generate("a", params, use_tqdm=False)[0].request_id == str(following)


def test_the_config_of_transformers_is_an_object(llm: LLM) -> None:
    from transformers import LlamaConfig

    config = llm.llm_engine.model_config.hf_config
    assert isinstance(config, LlamaConfig)
    assert (config.eos_token_id, config.num_hidden_layers) == (2, 2)
    assert llm.model_config.hf_config is config
    assert llm.model_config.architectures == ["LlamaForCausalLM"]


def test_without_transformers_it_is_a_plain_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tiny_llm(tmp_path, hf_overrides={"eos_token_id": 7}) as one:
        monkeypatch.setitem(sys.modules, "transformers", None)
        config = one.model_config.hf_config
    assert type(config).__name__ == "SimpleNamespace"
    assert (config.eos_token_id, config.vocab_size, config.model_type) == (7, 49152, "llama")


def test_the_config_of_a_gguf_file_has_the_same_names(default_model: Path) -> None:
    spec = locate(default_model).spec()
    config = config_object(config_of(spec), spec.family)
    assert (config.model_type, config.hidden_size, config.num_key_value_heads) == ("llama", 576, 3)
    assert (config.eos_token_id, config.rope_parameters["rope_theta"]) == (2, 100000.0)


def test_options_are_named_by_signatures() -> None:
    for signature in (inspect.signature(LLM), inspect.signature(LLM.__init__)):
        names = [name for name in signature.parameters if name != "self"]
        assert names == ["model", *OPTIONS]
        assert signature.parameters["gpu_memory_utilization"].default == 0.92
    assert [*inspect.signature(LLM).parameters] == [*inspect.signature(EngineArgs).parameters]
    optional = inspect.signature(SamplingParams.from_optional).parameters
    assert [*optional] == list(SamplingParams.__struct_fields__)
    assert optional["max_tokens"].default == 16
    taken = {"max_tokens": 3, "no_such": 1}
    assert SamplingParams.from_optional(**{k: taken[k] for k in taken if k in optional})


# ------------------------------------------------------------------ freeing the memory


def _deleted(llm: LLM) -> None:
    del llm.llm_engine.model_executor


@pytest.mark.parametrize(
    "free",
    [
        _deleted,
        lambda llm: llm.llm_engine.engine_core.shutdown(),
        lambda llm: llm.llm_engine.model_executor.shutdown(),
        lambda llm: llm.shutdown(),
    ],
)
def test_every_way_to_free_the_memory_closes(free: Any, tmp_path: Path) -> None:
    one = tiny_llm(tmp_path)
    assert hasattr(one.llm_engine, "model_executor")
    free(one)
    assert not hasattr(one.llm_engine, "model_executor")
    assert one._session.model.executor._model is None  # type: ignore[attr-defined]
    free_again = one.llm_engine.engine_core.shutdown
    free_again()
    with pytest.raises(EngineClosed):
        one.generate("a", use_tqdm=False)


def test_process_groups_are_taken_apart_without_harm() -> None:
    from quire.distributed import parallel_state

    parallel_state.destroy_model_parallel()
    parallel_state.destroy_distributed_environment()
    parallel_state.cleanup_dist_env_and_memory()


# ------------------------------------------------------------------ errors


def test_a_grammar_that_cannot_be_is_a_value_error_with_all_outputs(llm: LLM) -> None:
    broken = SamplingParams(structured_outputs=StructuredOutputsParams(regex="(["), max_tokens=4)
    with pytest.raises(ValueError, match="prompt 1") as caught:
        llm.generate(WORDS[:2], [GREEDY, broken], use_tqdm=False)
    error = caught.value
    assert isinstance(error, InvalidBatch) and isinstance(error, BatchError)
    assert isinstance(error, VLLMValidationError) and error.index == 1
    assert error.outputs[0].outputs[0].token_ids and isinstance(error.errors[1], InvalidGrammar)


def test_rows_that_went_wrong_by_themselves_are_no_value_error() -> None:
    outputs: list[Any] = [None, None]
    plain = BatchError(outputs, {0: InvalidLogits("nan")})
    assert type(plain) is BatchError and not isinstance(plain, ValueError)
    mixed = BatchError(outputs, {0: InvalidLogits("nan"), 1: InvalidGrammar("bad", value=3)})
    assert isinstance(mixed, InvalidBatch) and (mixed.index, mixed.value) == (1, 3)
    assert "2 rows of 2 failed" in str(mixed) and mixed.outputs == outputs


# ------------------------------------------------------------------ metrics


def numbers(llm: LLM) -> dict[str, Any]:
    return {m.name: m for m in llm.get_metrics() if "finished_reason" not in m.labels}


def test_metrics_count_what_was_done(tmp_path: Path) -> None:
    with tiny_llm(tmp_path) as one:
        assert numbers(one)["vllm:generation_tokens"].value == 0
        prompts = [{"prompt_token_ids": [*range(100, 164), i]} for i in range(3)]
        one.generate(prompts, GREEDY, use_tqdm=False)
        one.generate(iter(["fine", ""]), GREEDY, use_tqdm=False, on_error="return")
        found, metrics = numbers(one), one.get_metrics()
        reasons = {
            m.labels["finished_reason"]: m.value
            for m in metrics
            if isinstance(m, Counter) and m.name == "vllm:request_success"
        }
        assert one.get_metrics() == metrics
    fine = found["vllm:prompt_tokens"].value - 3 * 65
    assert fine > 0 and found["vllm:generation_tokens"].value == 4 * 5
    assert found["vllm:prefix_cache_hits"].value == 2 * 64
    assert found["vllm:prefix_cache_queries"].value == 3 * 65 + fine
    assert reasons == {"stop": 0, "length": 4, "abort": 0, "error": 1, "repetition": 0}
    assert isinstance(found["vllm:num_requests_running"], Gauge)
    assert found["vllm:num_requests_running"].value == found["vllm:kv_cache_usage_perc"].value == 0
    lengths = found["vllm:request_generation_tokens"]
    assert isinstance(lengths, Histogram) and (lengths.count, lengths.sum) == (4, 20.0)
    assert (lengths.buckets["2.0"], lengths.buckets["5.0"], lengths.buckets["+Inf"]) == (0, 4, 4)
    latency = found["vllm:e2e_request_latency_seconds"]
    assert latency.count == 4 and 0 < latency.sum < 60 and latency.buckets["+Inf"] == 4
    assert found["vllm:iteration_tokens_total"].sum >= 3 * 65 - 2 * 64 + 4 * 5 - 4
    assert {m.labels["model_name"] for m in metrics} == {str(tmp_path)}


def test_many_observations_are_all_counted() -> None:
    observed = _Observed({"name": (1.0, 2.0)}, lambda numbers: {"name": numbers[0]})
    for i in range(3 * MOST_OBSERVED + 7):
        observed.add(float(i % 3))
    (found,) = observed.histograms({})
    assert found.count == found.buckets["+Inf"] == 3 * MOST_OBSERVED + 7
    assert found.buckets["1.0"] == sum(i % 3 <= 1 for i in range(found.count))
    assert found.sum == sum(i % 3 for i in range(found.count))


def test_counters_never_fall(llm: LLM) -> None:
    llm.generate([[5, 6] * 40], SamplingParams(temperature=0, max_tokens=40), use_tqdm=False)
    before = numbers(llm)
    llm._session.engine.reset()
    after = numbers(llm)
    for name, metric in before.items():
        if isinstance(metric, Counter):
            assert after[name].value >= metric.value


# ------------------------------------------------------------------ options


@pytest.mark.parametrize("asked", [-1, "auto"])
def test_a_length_that_fits_the_memory(asked: Any, tmp_path: Path) -> None:
    with tiny_llm(tmp_path, max_model_len=asked, num_gpu_blocks_override=4) as small:
        assert small.model_config.max_model_len == 64
        endless = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
        (output,) = small.generate([[5] * 10], endless, use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 54
    with tiny_llm(tmp_path, max_model_len=asked) as large:
        assert large.model_config.max_model_len == 512


class Idle:
    """A logits processor that changes nothing."""

    def __init__(self, *told: Any) -> None:
        pass

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, update: Any) -> None:
        pass

    def apply(self, logits: Any) -> Any:
        return logits


class Installed:
    """Entry points as if packages were installed."""

    def __init__(self, **points: str) -> None:
        group = plugins.GROUPS[1]
        self.points = {n: EntryPoint(n, value, group) for n, value in points.items()}

    def __call__(self) -> dict[str, EntryPoint]:
        return self.points


def test_processors_of_installed_packages_are_used_by_name_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    offered = Installed(nudge=f"{Idle.__module__}:Idle", gone="no_such_module:Gone")
    monkeypatch.setattr("quire.options.checks.installed", offered)
    monkeypatch.setattr("quire.options.plugins.installed", offered)
    caplog.set_level("INFO", logger="quire")
    with tiny_llm(tmp_path) as plain:
        assert plain._session.model.config.batch_processors == ()
    assert "installed and not used: gone, nudge" in caplog.text
    caplog.clear()
    with tiny_llm(tmp_path, logits_processors=["nudge"]) as nudged:
        assert nudged._session.model.config.batch_processors == (Idle,)
    assert "not used: gone." in caplog.text
    with pytest.raises(InvalidOption, match="no_such_module"):
        tiny_llm(tmp_path, logits_processors=["gone"])
    with pytest.raises(InvalidOption, match="There are gone, nudge"):
        tiny_llm(tmp_path, logits_processors=["nuge"])


def test_installed_processors_are_found_by_group() -> None:
    assert plugins.installed() == {} and plugins.unused_line(()) == ""


# ------------------------------------------------------------------ another tokenizer


def test_another_tokenizer_reads_and_writes(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<unk>": 0, "one": 1, "two": 2}, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    other: Any = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    other.chat_template = "{% for m in messages %}{{ m.content }} two{% endfor %}"
    allowed = SamplingParams(temperature=0, max_tokens=3, allowed_token_ids=[1])
    with tiny_llm(tmp_path) as one:
        first = one.generate(WORDS, GREEDY, use_tqdm=False)
        one.set_tokenizer(other)
        (chat,) = one.chat([{"role": "user", "content": "one"}], allowed, use_tqdm=False)
        assert (chat.prompt, chat.prompt_token_ids) == ("one two", [1, 2])
        assert chat.outputs[0].text.split() == ["one"] * 3
        assert int(chat.request_id) == len(first)  # numbers, and with them noise, go on
        with pytest.raises(InvalidOption, match="fast"):
            one.set_tokenizer(object())
    with tiny_llm(tmp_path, skip_tokenizer_init=True, tokenizer=None) as bare:
        with pytest.raises(NotSupported):
            bare.llm_engine.get_tokenizer()
        bare.set_tokenizer(other)
        assert bare.generate("two", allowed, use_tqdm=False)[0].outputs[0].text


def test_grammars_follow_another_tokenizer(tmp_path: Path) -> None:
    a_few = StructuredOutputsParams(regex="a+")
    guided = SamplingParams(temperature=0, max_tokens=4, structured_outputs=a_few)
    with tiny_llm(tmp_path) as one:
        before = one.generate("x", guided, use_tqdm=False)[0].outputs[0].text
        one.set_tokenizer(one.get_tokenizer())
        assert one.generate("x", guided, use_tqdm=False)[0].outputs[0].text == before != ""


def test_slow_processors_go_on_after_another_tokenizer(tmp_path: Path) -> None:
    """Their rows are held, and found again by the executor's numbers."""

    def slowly(output_ids: list[int], logits: Any) -> Any:
        time.sleep(0.3)
        return logits

    with tiny_llm(tmp_path) as one:
        one.set_tokenizer(one.get_tokenizer())
        params = [SamplingParams(max_tokens=2, logits_processors=[slowly]), GREEDY]
        outputs = one.generate(["x", "y"], params, use_tqdm=False)
        assert [output.error for output in outputs] == [None, None]
