"""Configs that programs make before there is an engine, and what they look for in one that is."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from quire import LLM, EngineArgs, InvalidOption, LLMEngine, SamplingParams
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
