"""Rotary settings, in every spelling, are those that Transformers computes with."""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from quire.errors import CorruptModel, UnsupportedModel
from quire.families.rope_config import for_length, long_len
from quire.layer_parts.rope import FactorRope, YarnRope
from quire.layer_plan import Rope
from quire.layers.rotary import attention_factor, frequencies
from quire.spec import ModelSpec
from quire.weights.gguf_config import spec_from_gguf
from quire.weights.gguf_file import GgufFile
from quire.weights.hf_config import spec_from_hf
from tests.weights.test_hf_config import LLAMA, LLAMA3_SCALING
from tests.weights.tiny import tiny_model, write_gguf

HEADS = {**LLAMA, "hidden_size": 256, "rope_theta": None}  # heads of 64
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0 + i / 40 for i in range(32)],
    "long_factor": [2.0 + i for i in range(32)],
    "original_max_position_embeddings": 128,
}


def rope_of(spec: ModelSpec) -> Rope:
    return spec.rope


def check(config: dict[str, Any]) -> None:
    """Our frequencies and our factor are Transformers', to the last bits."""
    config = {key: value for key, value in config.items() if value is not None}
    theirs = LlamaRotaryEmbedding(LlamaConfig(**json.loads(json.dumps(config))))
    rope = rope_of(spec_from_hf(config))
    assert torch.allclose(frequencies(rope), theirs.inv_freq, rtol=3e-7, atol=0), config
    assert attention_factor(rope) == pytest.approx(theirs.attention_scaling, rel=1e-12), config


YARNS: list[dict[str, Any]] = [
    {},
    {"attention_factor": 1.7},
    {"mscale": 0.707, "mscale_all_dim": 1.0},
    {"mscale": 0.707},
    {"mscale_all_dim": 0.8},
    {"mscale": 0.0, "mscale_all_dim": 1.0},
    {"beta_fast": 8.0, "beta_slow": 0.5},
    {"beta_fast": 4, "beta_slow": 2},
    {"beta_fast": 0, "beta_slow": 0},
    {"truncate": False},
    {"truncate": False, "beta_fast": 8.0},
    {"factor": 1.0},
    {"factor": None},
    {"factor": 0.5},
    {"original_max_position_embeddings": 7},
    {"original_max_position_embeddings": 100_000},
    {"rope_theta": 5e5},
]


@pytest.mark.parametrize("change", YARNS, ids=repr)
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_yarn_in_every_parameterisation(key: str, change: dict[str, Any]) -> None:
    check({**HEADS, key: {**YARN, **change}, "max_position_embeddings": 640})


def test_random_settings_in_random_places_are_read_as_transformers_reads_them() -> None:
    rng = random.Random(5)
    kinds: list[dict[str, Any]] = [
        {},
        {"rope_type": "default"},
        {"type": "linear", "factor": 3.0},
        LLAMA3_SCALING,
        YARN,
        LONG,
    ]
    refused = 0
    for scaling, parameters in itertools.product([None, *kinds], repeat=2):
        for _ in range(6):
            config: dict[str, Any] = {**HEADS, "max_position_embeddings": 512}
            if rng.random() < 0.5:
                config["rope_theta"] = 5e5
            if rng.random() < 0.5:
                config["original_max_position_embeddings"] = 64
            for name, value in (("rope_scaling", scaling), ("rope_parameters", parameters)):
                if value is not None:
                    theta = {"rope_theta": 2e4} if rng.random() < 0.4 else {}
                    config[name] = {**value, **theta}
            try:
                check(config)
            except CorruptModel as error:
                assert "replaces rope_parameters" in str(error)
                refused += 1
    assert 0 < refused < 60


def test_a_scaling_that_would_lose_its_theta_is_refused() -> None:
    config = {**HEADS, "rope_scaling": YARN, "rope_parameters": {"rope_theta": 5e5}}
    with pytest.raises(CorruptModel, match=r"10000 would hold instead of the 500000.*rope_scaling"):
        spec_from_hf(config)
    check({**config, "rope_scaling": {**YARN, "rope_theta": 5e5}})


def test_a_length_outside_wins_over_the_one_in_the_settings() -> None:
    for kind in (LLAMA3_SCALING, YARN):
        config = {**HEADS, "rope_scaling": kind}
        without = frequencies(rope_of(spec_from_hf(config)))
        beside = {**config, "original_max_position_embeddings": 16}
        assert not torch.equal(frequencies(rope_of(spec_from_hf(beside))), without)
        check(beside)


@pytest.mark.parametrize(("written", "expected"), [(128, 512), (512, 512), (2048, 2048)])
def test_yarn_stretches_the_length_of_a_config_that_has_the_original_one(
    written: int, expected: int
) -> None:
    config = {**HEADS, "rope_scaling": YARN, "max_position_embeddings": written}
    assert spec_from_hf(config).max_model_len == expected
    assert spec_from_hf(config, {"max_position_embeddings": 99}).max_model_len == 99


def test_longrope_has_its_long_factors_where_longer_texts_are_asked_for() -> None:
    config = {**HEADS, "rope_scaling": LONG, "max_position_embeddings": 1024}
    spec = spec_from_hf(config)
    assert (spec.max_model_len, long_len(spec)) == (128, 1024)
    longer = for_length(spec, 129)
    assert (longer.max_model_len, long_len(longer)) == (1024, 0)
    for made, name in ((spec, "short_factor"), (longer, "long_factor")):
        assert isinstance(made.rope.scaling, FactorRope)
        assert made.rope.scaling.factors == tuple(LONG[name])
        assert made.rope.scaling.attention_factor == pytest.approx(
            math.sqrt(1 + math.log(8) / math.log(128))
        )
    assert for_length(spec, 128) is spec and for_length(longer, 4096) is longer
    assert long_len(spec_from_hf(config, {"max_position_embeddings": 512})) == 512
    whole = spec_from_hf({**config, "max_position_embeddings": 128})
    assert for_length(whole, 1024) is whole


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("plain", [{"rope_scaling": None}, {"rope_parameters": {}}])
@pytest.mark.parametrize(
    "kind", [YARN, LONG, LLAMA3_SCALING, {**YARN, "rope_type": "dynamic"}, {**YARN, "type": "su"}]
)
def test_without_its_scaling_a_model_has_its_original_length(
    key: str, plain: dict[str, Any], kind: dict[str, Any]
) -> None:
    config = {**HEADS, key: {**kind, "rope_theta": 3e4}, "max_position_embeddings": 1024}
    spec = spec_from_hf(config, plain)
    assert (spec.rope.scaling, spec.rope.theta, spec.max_model_len) == (None, 3e4, 128)
    beside = {**HEADS, key: {"rope_type": kind["rope_type"]}, "max_position_embeddings": 1024}
    beside["original_max_position_embeddings"] = 256
    assert spec_from_hf(beside, plain).max_model_len == 256
    assert spec_from_hf(config, {**plain, "max_position_embeddings": 640}).max_model_len == 640


@pytest.mark.parametrize("before", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("after", ["rope_scaling", "rope_parameters"])
def test_an_override_wins_in_either_spelling(before: str, after: str) -> None:
    config = {**HEADS, before: {**LLAMA3_SCALING, "rope_theta": 3e4}}
    spec = spec_from_hf(config, {after: YARN})
    assert isinstance(spec.rope.scaling, YarnRope)
    assert (spec.rope.theta, spec.max_model_len) == (3e4, 512)
    assert spec_from_hf(config, {after: {**YARN, "rope_theta": 7.0}}).rope.theta == 7.0
    assert spec_from_hf(config, {after: YARN, "rope_theta": 9.0}).rope.theta == 9.0
    with pytest.raises(CorruptModel, match=after):
        spec_from_hf(config, {after: "yarn"})


@pytest.mark.parametrize(
    "change",
    [
        {"factor": 0},
        {"factor": "4"},
        {"attention_factor": 0},
        {"attention_factor": -1.0},
        {"mscale": -1.0},
        {"beta_fast": "32"},
        {"truncate": 1},
        {"beta_slow": False},
        {"original_max_position_embeddings": 0},
        {"rope_theta": 1.0},
    ],
    ids=repr,
)
def test_absurd_yarn_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CorruptModel):
        spec_from_hf({**HEADS, "rope_scaling": {**YARN, **change}})


@pytest.mark.parametrize(
    "change", [{"short_factor": [1.0] * 31}, {"long_factor": None}, {"short_factor": [0.0] * 32}]
)
def test_absurd_longrope_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CorruptModel):
        spec_from_hf({**HEADS, "rope_scaling": {**LONG, **change}})


def gguf_spec(path: Path, **said: int | float | str) -> Any:
    metadata = {f"{{arch}}.rope.scaling.{key}": value for key, value in said.items()}
    write_gguf(tiny_model("llama"), path / "m", metadata=metadata)
    return spec_from_gguf(GgufFile(path / "m"))


def test_yarn_of_a_gguf_file(tmp_path: Path) -> None:
    spec = gguf_spec(
        tmp_path,
        type="yarn",
        factor=4.0,
        original_context_length=64,
        yarn_beta_fast=16.0,
        yarn_beta_slow=2.0,
        yarn_ext_factor=1.0,
        finetuned=1,
    )
    assert spec.rope.scaling == YarnRope(4.0, 64, 0.1 * math.log(4) + 1, 16.0, 2.0)
    assert spec.max_model_len == 256


def test_attention_factors_of_a_gguf_file_multiply(tmp_path: Path) -> None:
    spec = gguf_spec(tmp_path, type="yarn", factor=4.0, yarn_attn_factor=1.5, attn_factor=2.0)
    assert spec.rope.scaling == YarnRope(4.0, 256, 3.0)
    assert spec.max_model_len == 1024


@pytest.mark.parametrize(
    "said",
    [
        {"type": "yarn", "factor": 4.0, "yarn_ext_factor": 0.5},
        {"type": "yarn", "factor": 4.0, "yarn_log_multiplier": 0.1},
        {"type": "linear", "factor": 4.0, "attn_factor": 1.5},
        {"type": "none", "alpha": 1.5},
    ],
    ids=repr,
)
def test_scalings_of_a_gguf_file_that_quire_lacks_are_refused(
    said: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=r"yarn_ext|yarn_log|attn_factor|alpha"):
        gguf_spec(tmp_path, **said)


def test_a_scaling_beside_settings_of_three_coordinates_is_not_lost() -> None:
    """As it is in every other family: the scaling counts, or its missing theta is named."""
    plain = {"rope_type": "default", "rope_theta": 1e7, "mrope_section": [2, 1, 1]}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    config = {"model_type": "qwen3_5_text", "rope_parameters": plain, "rope_scaling": yarn}
    with pytest.raises(CorruptModel, match="Write rope_theta into rope_scaling"):
        spec_from_hf(config)
    rope = spec_from_hf({**config, "rope_scaling": {**yarn, "rope_theta": 1e7}}).rope
    assert (rope.theta, rope.scaling.factor) == (1e7, 4.0)
    settings = {"rope_parameters": {**plain, "type": "yarn"}, "rope_scaling": None}
    assert spec_from_hf({**config, **settings}).rope.scaling is None  # rope_type counts for more


@pytest.mark.parametrize("model_type", ["qwen2_vl_text", "qwen3_5_text"])
@pytest.mark.parametrize("section", [-1, True, 2.0, [1], None, 1 << 40], ids=repr)
def test_pairs_of_a_coordinate_are_a_whole_number(model_type: str, section: Any) -> None:
    rope = {"rope_type": "default", "rope_theta": 1e7, "mrope_section": [2, 1, section]}
    with pytest.raises(CorruptModel, match="mrope_section has three whole numbers up to"):
        spec_from_hf({"model_type": model_type, "rope_parameters": rope})


def test_queries_grow_by_the_length_that_stands_beside_the_settings() -> None:
    config = {"model_type": "ministral3", "original_max_position_embeddings": 32}
    rope = {"rope_type": "yarn", "factor": 4.0, "llama_4_scaling_beta": 0.1}
    config["rope_parameters"] = {**rope, "original_max_position_embeddings": 64}
    spec = spec_from_hf(config)
    growth = spec.layers[0].attention.query_growth
    assert growth.original_max_len == spec.rope.scaling.original_max_len == 32


def test_words_of_other_families_for_a_rope_are_passed_over_by_neox() -> None:
    own = {"model_type": "gpt_neox", "rotary_pct": 1.0, "rotary_emb_base": 99.0}
    rope = spec_from_hf({**own, "partial_rotary_factor": 0.5, "rope_theta": 5.0}).rope
    assert (rope.dims, rope.theta) == (96, 99.0)


@pytest.mark.parametrize("model_type", ["gemma3_text", "olmo3"])
def test_settings_for_all_layers_of_a_family_that_has_them_by_kind_are_refused(
    model_type: str,
) -> None:
    """Transformers passes over them."""
    rope = {"rope_type": "linear", "factor": 8.0}
    with pytest.raises(UnsupportedModel, match="rope_parameters must be settings by kind of layer"):
        spec_from_hf({"model_type": model_type, "rope_parameters": rope})
    asked = spec_from_hf({"model_type": model_type}, {"rope_parameters": rope})
    plain = spec_from_hf({"model_type": model_type})
    seen_by = {one.attention.window: one.attention.rope for one in asked.layers}
    assert seen_by[None].scaling.factor == 8.0
    assert {one.theta for one in seen_by.values()} == {
        one.attention.rope.theta for one in plain.layers
    }
