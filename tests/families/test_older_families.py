"""What configs of older families may not say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from quire import LLM
from quire.errors import CorruptModel, QuireError, UnsupportedModel
from quire.weights.hf_config import read_config, spec_from_hf
from quire.weights.load import load_weights
from quire.weights.source import locate
from tests.parity.more_families import random_model
from tests.parity.older_families import DBRX, OLDER


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gptj", {"rotary_dim": None}),
        ("gptj", {"rotary_dim": 7}),
        ("gptj", {"rotary_dim": 18}),
        ("gptj", {"activation_function": "tanh"}),
        ("gptj", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
        ("gptj", {"rope_theta": 500.0}),
        ("codegen", {"n_head": 6}),
        ("codegen", {"head_dim": 128}),
        ("gpt_neo", {"attention_types": [[["global", "local"], 1]]}),
        ("gpt_neo", {"attention_types": [[["global", "near"], 1], [["local"], 1]]}),
        ("gpt_neo", {"attention_types": [["global"], 3]}),
        ("gpt_neo", {"window_size": 0}),
        ("persimmon", {"hidden_act": "silu"}),
        ("biogpt", {"hidden_act": "silu"}),
        ("bitnet", {"hidden_act": "gelu"}),
        ("xglm", {"pad_token_id": 2}),
        ("xglm", {"add_cross_attention": True}),
        ("dbrx", {"attn_config": {"rope_theta": 500000.0}}),
        ("dbrx", {"attn_config": {"clip_qkv": -1.0}}),
        ("dbrx", {"ffn_config": {"moe_normalize_expert_weights": 2.0}}),
        ("dbrx", {"ffn_config": {"moe_top_k": 5}}),
        ("dbrx", {"ffn_config": {"ffn_act_fn": {"name": "gelu"}}}),
        ("dbrx", {"tie_word_embeddings": True}),
    ],
)
def test_what_would_make_another_model_is_refused_by_key(name: str, said: dict[str, Any]) -> None:
    config = OLDER[name]
    given = {**config.to_dict(), "architectures": None}
    spec_from_hf(given)
    with pytest.raises(QuireError, match=next(iter(said))):
        spec_from_hf({**given, **said})


def test_theta_where_the_files_of_dbrx_have_it_holds() -> None:
    """Their class in Transformers reads it nowhere, and takes 10,000."""
    given = {**DBRX, "architectures": ["DbrxForCausalLM"]}
    inner = {**DBRX["attn_config"], "rope_theta": 500_000.0}
    assert spec_from_hf({**given, "attn_config": inner}).rope.theta == 500_000.0
    saved = {**given, "attn_config": inner, "rope_parameters": {"rope_theta": 10_000.0}}
    with pytest.raises(CorruptModel, match="hf_overrides"):
        spec_from_hf(saved)
    assert spec_from_hf(saved, {"rope_theta": 500_000.0}).rope.theta == 500_000.0


def test_heads_of_keys_are_those_of_the_inner_config() -> None:
    """Transformers writes them beside it, too, and reads them there no more."""
    given = {**DBRX, "architectures": ["DbrxForCausalLM"], "num_key_value_heads": 6}
    assert spec_from_hf(given).num_kv_heads == 2


def test_experts_of_dbrx_that_are_wider_than_said_are_refused(tmp_path: Path) -> None:
    """Else rows of one would be taken for those of another."""
    random_model(OLDER["dbrx"]).save_pretrained(tmp_path)
    changed = {"ffn_config": {**DBRX["ffn_config"], "ffn_hidden_size": 16}}
    spec = spec_from_hf(read_config(tmp_path), changed)
    with pytest.raises(CorruptModel, match="shape"):
        load_weights(locate(tmp_path), spec, dtype=torch.float32, device="cpu")


def test_bitnet_that_rounds_what_products_read_is_refused_by_name(tmp_path: Path) -> None:
    """Released models round activations to 8 bits and weights to three values."""
    random_model(OLDER["bitnet"]).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitnet", "quantization_mode": "online"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match="bitnet"):
        LLM(str(tmp_path), skip_tokenizer_init=True, dtype="float32", device="cpu")
