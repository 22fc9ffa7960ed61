"""A Hugging Face config becomes the spec that Transformers would run, or a typed error."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from quire.errors import CorruptModel, ModelError, ModelNotFound, UnsupportedModel
from quire.layer_parts.rope import LinearRope, Llama3Rope
from quire.layer_plan import mlps_of
from quire.spec import ModelSpec
from quire.weights.hf_config import ARCHITECTURES, read_config, read_generation_config, spec_from_hf

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 500000.0,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "torch_dtype": "bfloat16",
}
LLAMA3_SCALING = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
    "rope_type": "llama3",
}


def family(name: str, **changes: Any) -> dict[str, Any]:
    architecture = next(a for a, f in ARCHITECTURES.items() if f == name)
    return {**LLAMA, "architectures": [architecture], "model_type": name, **changes}


def biases_and_norms(spec: ModelSpec) -> tuple[bool, bool, bool, bool]:
    """Of q, k and v, of o, of the feed-forward; and whether heads are normed."""
    attention = spec.layers[0].attention
    biases = (attention.qkv_bias, attention.o_bias, mlps_of(spec.layers[0])[0].bias)
    return *biases, attention.qk_norm is not None


def test_every_field_of_a_plain_llama_is_read() -> None:
    spec = spec_from_hf(LLAMA)
    assert (spec.family, spec.vocab_size, spec.hidden_size) == ("llama", 128, 64)
    assert (spec.intermediate_size, spec.num_layers) == (96, 4)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (4, 2, 16)
    assert (spec.max_model_len, spec.norm_eps, spec.rope.theta) == (512, 1e-5, 500000.0)
    assert (spec.eos_ids, spec.bos_id, spec.dtype) == ((2,), 1, "bfloat16")
    assert spec.windows == (None,) * 4
    assert not any(biases_and_norms(spec))
    assert spec.rope.scaling is None
    assert not spec.tied_embeddings


@pytest.mark.parametrize(
    ("config", "qkv_bias", "o_bias", "mlp_bias", "qk_norm"),
    [
        (family("llama", attention_bias=True), True, True, False, False),
        (family("llama", mlp_bias=True), False, False, True, False),
        (family("mistral", attention_bias=True), False, False, False, False),
        (family("qwen2"), True, False, False, False),
        (family("qwen3"), False, False, False, True),
        (family("qwen3", attention_bias=True), True, True, False, True),
    ],
)
def test_biases_and_norms_are_those_of_the_family(
    config: dict[str, Any], qkv_bias: bool, o_bias: bool, mlp_bias: bool, qk_norm: bool
) -> None:
    spec = spec_from_hf(config)
    found = biases_and_norms(spec)
    assert found == (qkv_bias, o_bias, mlp_bias, qk_norm)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 500000.0, "rope_scaling": LLAMA3_SCALING},
        {"rope_parameters": {**LLAMA3_SCALING, "rope_theta": 500000.0}, "rope_theta": None},
    ],
)
def test_llama3_scaling_is_read_in_both_spellings(rope: dict[str, Any]) -> None:
    spec = spec_from_hf({**LLAMA, **rope})
    assert spec.rope.theta == 500000.0
    assert spec.rope.scaling == Llama3Rope(8.0, 1.0, 4.0, 128)


@pytest.mark.parametrize(
    "scaling", [{"type": "linear", "factor": 2.0}, {"rope_type": "linear", "factor": 2}]
)
def test_linear_scaling_is_read_with_its_old_and_new_key(scaling: dict[str, Any]) -> None:
    spec = spec_from_hf({**LLAMA, "rope_scaling": scaling})
    assert spec.rope.scaling == LinearRope(2.0)


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        (family("mistral", sliding_window=7), (7, 7, 7, 7)),
        (family("mistral", sliding_window=None), (None,) * 4),
        (family("mistral"), (4096,) * 4),
        (family("qwen2", sliding_window=7), (None,) * 4),
        (
            family("qwen2", sliding_window=7, use_sliding_window=True, max_window_layers=3),
            (None, None, None, 7),
        ),
        (
            family("qwen2", sliding_window=7, use_sliding_window=True, max_window_layers=0),
            (7, 7, 7, 7),
        ),
        (
            family(
                "qwen3",
                sliding_window=7,
                use_sliding_window=True,
                layer_types=["sliding_attention", "full_attention"] * 2,
            ),
            (7, None, 7, None),
        ),
        (family("llama", sliding_window=7), (None,) * 4),
    ],
)
def test_windows_are_given_layer_by_layer(
    config: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    assert spec_from_hf(config).windows == windows


@pytest.mark.parametrize("config_class", [LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config])
def test_what_transformers_writes_today_is_read(config_class: Any) -> None:
    config = config_class(num_hidden_layers=3, rope_theta=5e5, eos_token_id=[4, 9]).to_dict()
    spec = spec_from_hf(config)
    assert spec.rope.theta == config["rope_parameters"]["rope_theta"]
    assert spec.head_dim == 128
    assert spec.num_kv_heads == config["num_key_value_heads"]
    assert spec.eos_ids == (4, 9)
    assert spec.dtype == "float32"


def test_absent_fields_mean_what_they_mean_to_transformers() -> None:
    sparse = {k: v for k, v in LLAMA.items() if k not in ("num_key_value_heads", "rope_theta")}
    spec = spec_from_hf(sparse)
    assert spec.num_kv_heads == 4
    assert spec.rope.theta == LlamaConfig(**sparse).rope_parameters["rope_theta"]
    assert spec_from_hf(family("qwen3")).head_dim == Qwen3Config().head_dim
    no_eos = spec_from_hf({**LLAMA, "eos_token_id": None, "bos_token_id": None})
    assert no_eos.eos_ids == ()
    assert no_eos.bos_id is None


def test_overrides_win_and_leave_the_config_alone() -> None:
    config = {**LLAMA, "rope_parameters": {**LLAMA3_SCALING, "rope_theta": 1e4}}
    before = json.dumps(config)
    spec = spec_from_hf(config, {"max_position_embeddings": 99, "rope_theta": 7.0})
    assert (spec.max_model_len, spec.rope.theta) == (99, 7.0)
    assert spec.rope.scaling is not None
    plain = spec_from_hf(config, {"rope_scaling": None})
    assert (plain.rope.scaling, plain.rope.theta) == (None, 1e4)
    assert json.dumps(config) == before


UNSUPPORTED: list[tuple[dict[str, Any], list[str]]] = [
    ({"architectures": ["BloomForCausalLM"]}, ["BloomForCausalLM", "the nearest are"]),
    (
        {"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True},
        ["T5ForConditionalGeneration", "an encoder reads, a decoder writes", "Use a causal one"],
    ),
    ({"architectures": ["LlamaForQuestionAnswering"]}, ["LlamaForQuestionAnswering"]),
    ({"architectures": None, "model_type": "mamba"}, ["mamba"]),
    ({"architectures": [], "model_type": None}, ["no architecture"]),
    ({"hidden_act": "gelu"}, ["gelu", "silu"]),
    ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, ["dynamic", "yarn"]),
    ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, ["kind of layer"]),
    ({"rope_parameters": {"rope_theta": 1.0, "partial_rotary_factor": 0.5}}, ["partial_rotary"]),
    ({"torch_dtype": "float8_e4m3fn"}, ["float8_e4m3fn"]),
    # Which Transformers takes for false, and not for absent.
    (
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "truncate": None}},
        ["truncate must be true or false"],
    ),
]


@pytest.mark.parametrize(
    ("by_part", "dtype"),
    [
        ({"": "bfloat16", "vision_config": "float32"}, "bfloat16"),
        ({"": "float32", "text_config": "float16"}, "float16"),
        ({"vision_config": "bfloat16"}, "float32"),
    ],
)
def test_a_dtype_by_parts_is_that_of_the_text(
    by_part: dict[str, str], dtype: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "torch_dtype": by_part}))
    assert spec_from_hf(read_config(tmp_path)).dtype == dtype


@pytest.mark.parametrize(("change", "words"), UNSUPPORTED)
def test_what_quire_does_not_run_is_refused_by_name(
    change: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        spec_from_hf({**LLAMA, **change})
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_null_flag_is_not_taken_for_one_that_is_true_when_absent() -> None:
    config = {**LLAMA, "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox"}
    config |= {"hidden_act": "gelu", "num_key_value_heads": None}
    assert spec_from_hf(config).layers[0].norms == "parallel_two"
    with pytest.raises(UnsupportedModel, match="use_parallel_residual must be true or false"):
        spec_from_hf({**config, "use_parallel_residual": None})


CORRUPT: list[dict[str, Any]] = [
    *[{key: None} for key in ("vocab_size", "hidden_size", "intermediate_size")],
    *[{key: None} for key in ("num_hidden_layers", "num_attention_heads")],
    {"max_position_embeddings": None},
    *[{"vocab_size": bad} for bad in (-1, 0, 1.5, "128", True, [128], 2**40, float("nan"))],
    {"num_hidden_layers": 10**9},
    {"num_attention_heads": 5},
    {"num_key_value_heads": 3},
    {"num_key_value_heads": 0},
    {"head_dim": -16},
    {"rms_norm_eps": float("nan")},
    {"rms_norm_eps": "1e-5"},
    {"rms_norm_eps": -1e-5},
    {"rope_theta": float("inf")},
    {"rope_theta": 10**400},
    {"rope_scaling": "linear"},
    {"rope_scaling": {"rope_type": "linear"}},
    {"rope_scaling": {"rope_type": "linear", "factor": 0}},
    {"rope_scaling": {**LLAMA3_SCALING, "low_freq_factor": 4.5}},
    {"rope_scaling": {"rope_type": 3}},
    {"eos_token_id": "</s>"},
    {"eos_token_id": [2, None]},
    {"eos_token_id": -7},
    {"architectures": "LlamaForCausalLM"},
    {"tie_word_embeddings": "yes"},
    {"attention_bias": 1},
    {"torch_dtype": 3},
]


@pytest.mark.parametrize("change", CORRUPT, ids=repr)
def test_absurd_fields_are_refused_by_name(change: dict[str, Any]) -> None:
    with pytest.raises(CorruptModel) as caught:
        spec_from_hf({**LLAMA, **change})
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"sliding_window": -1},
        {"sliding_window": 7, "max_window_layers": -1},
        {"sliding_window": 7, "layer_types": ["full_attention"]},
        {"sliding_window": 7, "layer_types": "full"},
    ],
    ids=repr,
)
def test_absurd_windows_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CorruptModel):
        spec_from_hf(family("qwen2", use_sliding_window=True, **change))


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "qwen2_moe"])
def test_windows_from_no_layer_on_are_refused_and_without_windows_it_is_not_read(name: str) -> None:
    config = family(name, sliding_window=7, max_window_layers=None)
    spec = spec_from_hf({**config, "use_sliding_window": False})
    assert all(layer.attention.window is None for layer in spec.layers)
    with pytest.raises(CorruptModel, match="max_window_layers"):
        spec_from_hf({**config, "use_sliding_window": True})


@pytest.mark.parametrize("kind", ["chunked_attention", ["x"], None])
def test_an_unknown_kind_of_layer_is_refused(kind: Any) -> None:
    config = family("qwen2", use_sliding_window=True, sliding_window=7, layer_types=[kind] * 4)
    with pytest.raises(UnsupportedModel, match="layer type"):
        spec_from_hf(config)


def test_the_json_files_of_a_directory_are_read(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        read_config(tmp_path)
    assert read_generation_config(tmp_path) == {}
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6}')
    assert read_config(tmp_path) == LLAMA
    assert read_generation_config(tmp_path) == {"temperature": 0.6}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        '{"a": 1, "a": 2}',
        '{"a":' + "[" * 100_000,
        '{"a": ' + "9" * 10_000 + "}",
    ],
    ids=lambda text: text[:12],
)
def test_a_config_that_is_not_one_json_object_is_corrupt(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CorruptModel, match=r"config\.json"):
        read_config(tmp_path)


def test_a_config_of_many_megabytes_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(CorruptModel, match="1,073,741,824 bytes"):
        read_config(tmp_path)


def test_a_config_that_is_a_link_out_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outside.json").write_text(json.dumps(LLAMA))
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").symlink_to(tmp_path / "outside.json")
    with pytest.raises(CorruptModel, match="outside"):
        read_config(model)


def test_a_tower_that_no_family_has_is_named() -> None:
    config = {
        "architectures": ["PaliGemmaForConditionalGeneration"],
        "model_type": "paligemma",
        "vision_config": {"model_type": "siglip_vision_model"},
        "text_config": {"model_type": "unheard_of"},
    }
    wanted = r"its tower \(vision_config\) or its text \('unheard_of'\).*Gemma3ForCond"
    with pytest.raises(UnsupportedModel, match=wanted):
        spec_from_hf(config)


@pytest.mark.parametrize(
    "change",
    [
        *({"text_config": {"model_type": bad}} for bad in ([None], {"a": 1}, 3)),
        *({"architectures": ["LlavaForConditionalGeneration", bad]} for bad in (3, ["x"], None)),
        {"architectures": ["XForConditionalGeneration"], "text_config": {"model_type": ["x"]}},
    ],
    ids=repr,
)
def test_names_that_are_no_words_are_passed_over_or_refused(change: dict[str, Any]) -> None:
    named = {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava"}
    with suppress(ModelError):
        spec_from_hf({**named, "vision_config": {}, "text_config": {}, **change})


@pytest.mark.parametrize("whole", [True, False])
def test_what_a_config_says_of_the_whole_ties_the_head_of_its_text(whole: bool) -> None:
    config = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "model_type": "mistral3",
        "tie_word_embeddings": whole,
        "vision_config": {"model_type": "pixtral"},
        "text_config": {**LLAMA, "model_type": "mistral", "tie_word_embeddings": False},
    }
    del config["text_config"]["architectures"]
    assert spec_from_hf(config).tied_embeddings is whole


def test_a_dtype_that_says_nothing_is_as_if_it_were_not_there() -> None:
    unsaid = {key: value for key, value in LLAMA.items() if key != "torch_dtype"}
    assert spec_from_hf({**LLAMA, "torch_dtype": "auto"}) == spec_from_hf(unsaid)


def test_an_unknown_architecture_is_told_the_nearest() -> None:
    with pytest.raises(UnsupportedModel) as refused:
        spec_from_hf({**LLAMA, "architectures": ["Lama3ForCausalLM"]})
    assert "the nearest are LlamaForCausalLM" in str(refused.value)
    assert len(str(refused.value)) < 200  # a reason that comes behind it must be seen
