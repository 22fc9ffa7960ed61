"""Configs that programs make before there is an engine, and what they look for in one that is."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from quire import (
    LLM,
    EngineArgs,
    InvalidOption,
    LLMEngine,
    NotSupported,
    SamplingParams,
    UnknownOption,
)
from tests.tiny_llm import CONFIG, tiny_llm


@pytest.fixture(name="args")
def fixture_args(tmp_path: Path) -> EngineArgs:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.5, "max_new_tokens": 3}')
    options = {"tokenizer": "smollm2", "load_format": "dummy", "kv_cache_memory_bytes": 8 << 20}
    return EngineArgs(model=str(tmp_path), max_model_len=64, dtype="float32", **options)


def test_a_models_config_is_read_without_its_weights(args: EngineArgs) -> None:
    import torch

    made = importlib.import_module("quire.config").ModelConfig(model=args.model, max_model_len=64)
    for config in (args.create_model_config(), args.create_engine_config().model_config, made):
        assert (config.max_model_len, config.get_vocab_size()) == (64, 49152)
        assert (config.get_total_num_kv_heads(), config.dtype) == (2, torch.float32)
        assert config.hf_config.num_hidden_layers == 2
        assert config.architectures == ["LlamaForCausalLM"]
        assert config.get_diff_sampling_param() == {"temperature": 0.5, "max_tokens": 3}
    with pytest.raises(InvalidOption, match="at most 512, the length the model was made for"):
        EngineArgs(model=args.model, max_model_len=1024).create_model_config()


def test_an_engine_is_made_of_a_config_that_was_made_before(args: EngineArgs) -> None:
    config = args.create_engine_config(usage_context="LLM_CLASS")
    with pytest.raises(AttributeError, match="'cache_config' is decided when the engine is made"):
        _ = config.cache_config  # type: ignore[attr-defined]
    engine = LLMEngine.from_vllm_config(config, disable_log_stats=True)
    engine.add_request("one", "The sea", SamplingParams(max_tokens=2, ignore_eos=True))
    while engine.has_unfinished_requests():
        outputs = engine.step()
    assert len(outputs[0].outputs[0].token_ids) == 2
    assert engine.model_config.max_model_len == 64
    assert engine.model_config.get_diff_sampling_param() == {"temperature": 0.5, "max_tokens": 3}
    engine.shutdown()
    with pytest.raises(InvalidOption, match=r"what EngineArgs\(\.\.\.\)\.create_engine_config"):
        LLMEngine.from_vllm_config(engine)


def test_the_model_may_be_named_after_the_options() -> None:
    args = EngineArgs(max_model_len=64)
    for make in (LLM.from_engine_args, LLMEngine.from_engine_args):
        with pytest.raises(InvalidOption, match="model must be a string, got None"):
            make(args)
    args.model = "smollm2"
    assert args.given() == {"model": "smollm2", "max_model_len": 64}


def test_weights_are_reloaded_as_programs_write_it(tmp_path: Path) -> None:
    with tiny_llm(tmp_path) as llm:
        llm.collective_rpc("update_config", args=({"load_config": {"load_format": "auto"}},))
        with pytest.raises(NotSupported, match="update_config.*what was decided stays"):
            llm.collective_rpc("update_config", args=({"cache_config": {"block_size": 8}},))
        core = llm.llm_engine.engine_core.engine_core
        assert callable(core.model_executor.driver_worker.worker.model_runner.model.load_weights)


def test_requests_as_older_scripts_add_them_say_what_the_names_are(tmp_path: Path) -> None:
    with tiny_llm(tmp_path) as llm:
        add: Any = llm.llm_engine.add_request
        with pytest.raises(UnknownOption, match=r"EngineView\.add_request .*It is params here"):
            add("1", "a", sampling_params=SamplingParams())
        with pytest.raises(UnknownOption, match="It is prompt here"):
            add("1", inputs="a", params=SamplingParams())


def test_what_an_engine_does_not_have_is_said_with_what_it_has(tmp_path: Path) -> None:
    with tiny_llm(tmp_path) as llm:
        engine = llm.llm_engine
        with pytest.raises(AttributeError, match=r"EngineView has no 'scheduler'.* step, "):
            _ = engine.scheduler  # type: ignore[attr-defined]
        with pytest.raises(AttributeError, match=r"no 'swap_space_bytes'.*block_size, "):
            _ = engine.cache_config.swap_space_bytes  # type: ignore[attr-defined]
        with pytest.raises(AttributeError, match=r"LLM has no 'tokenizer'.* get_tokenizer, "):
            _ = llm.tokenizer  # type: ignore[attr-defined]
        assert not hasattr(llm, "nothing")
    with pytest.raises(AttributeError, match="this LLM was closed"):
        _ = engine.model_executor


def test_an_llm_that_was_not_made_says_nothing_when_it_goes() -> None:
    LLM.__new__(LLM).close()
