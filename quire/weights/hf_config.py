"""A Hugging Face config as a ModelSpec, and the small JSON files beside it. No torch.

Absent fields mean what they mean to Transformers, for the family in question. Both ways of
writing rotary settings are read: `rope_theta` with `rope_scaling`, and `rope_parameters`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quire.errors import CorruptModel, ModelNotFound, UnsupportedModel
from quire.spec import ModelSpec, RopeScaling
from quire.weights.checkpoint import checked_file
from quire.weights.fields import Fields
from quire.weights.json_file import read_json

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
MAX_LAYERS = 10_000
_DTYPES = ("float32", "bfloat16", "float16")


def read_config(directory: Path) -> dict[str, Any]:
    """config.json of a model directory."""
    if not (directory / "config.json").exists():
        raise ModelNotFound(f"{directory}: no config.json there; is it a model directory?")
    return read_json(checked_file(directory, "config.json"))


def read_generation_config(directory: Path) -> dict[str, Any]:
    """generation_config.json of a model directory, empty if it has none."""
    if not (directory / "generation_config.json").exists():
        return {}
    return read_json(checked_file(directory, "generation_config.json"))


def spec_from_hf(
    config: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    source: str = "config.json",
) -> ModelSpec:
    """The spec of a config, with `overrides` (hf_overrides) laid over it."""
    fields = Fields(_overridden(config, overrides or {}), source)
    family = _family(fields)
    _refuse_what_changes_the_model(fields)
    num_layers = fields.count("num_hidden_layers", most=MAX_LAYERS)
    heads, kv_heads, head_dim = _heads(fields, family)
    theta, scaling = _rope(fields)
    biased = family in ("llama", "qwen3") and fields.flag("attention_bias", False)
    bos = fields.ids("bos_token_id")
    return ModelSpec(
        family=family,
        vocab_size=fields.count("vocab_size"),
        hidden_size=fields.count("hidden_size"),
        intermediate_size=fields.count("intermediate_size"),
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_model_len=fields.count("max_position_embeddings"),
        norm_eps=fields.positive("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        qkv_bias=biased or family == "qwen2",
        qk_norm=family == "qwen3",
        o_bias=biased,
        mlp_bias=family == "llama" and fields.flag("mlp_bias", False),
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        windows=_windows(fields, family, num_layers),
        eos_ids=fields.ids("eos_token_id"),
        bos_id=bos[0] if bos else None,
        dtype=_dtype(fields),
    )


def _overridden(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**config, **overrides}
    rope = merged.get("rope_parameters")
    if isinstance(rope, dict) and "rope_parameters" not in overrides:
        # An override in the old spelling must win over a config in the new one.
        theta = overrides.get("rope_theta", rope.get("rope_theta"))
        if "rope_scaling" in overrides:
            rope = overrides["rope_scaling"] or {}
        merged["rope_parameters"] = {**rope, "rope_theta": theta}
    return merged


def _family(fields: Fields) -> str:
    named = fields.values.get("architectures") or []
    if not isinstance(named, list):
        raise fields.wrong("architectures", "a list of names")
    for name in named:
        if isinstance(name, str) and name in ARCHITECTURES:
            return ARCHITECTURES[name]
    model_type = fields.word("model_type", "")
    if not named and model_type in ARCHITECTURES.values():
        return model_type
    found = ", ".join(str(name) for name in named)[:200] or model_type or "no architecture"
    raise UnsupportedModel(
        f"{fields.source}: {found} is not supported; quire runs {', '.join(ARCHITECTURES)}"
    )


def _refuse_what_changes_the_model(fields: Fields) -> None:
    activation = fields.word("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModel(f"{fields.source}: hidden_act {activation!r}; quire has silu")
    quantised = fields.values.get("quantization_config")
    if quantised:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else None
        raise UnsupportedModel(
            f"{fields.source}: the weights are quantised ({method or 'unknown method'}), which "
            "quire does not read from safetensors. Take the original weights, or a GGUF file."
        )
    for where in (fields, fields.inner("rope_parameters")):
        if where.positive("partial_rotary_factor", 1.0) != 1.0:
            raise UnsupportedModel(f"{where.source}: partial_rotary_factor is not supported")


def _heads(fields: Fields, family: str) -> tuple[int, int, int]:
    heads = fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise CorruptModel(
            f"{fields.source}: {heads} attention heads do not divide among {kv_heads} "
            "key/value heads"
        )
    hidden = fields.count("hidden_size")
    if fields.values.get("head_dim") is None and family != "qwen3" and hidden % heads:
        raise CorruptModel(
            f"{fields.source}: hidden_size {hidden} does not divide among {heads} heads"
        )
    head_dim = fields.count("head_dim", 128 if family == "qwen3" else hidden // heads)
    if head_dim % 2:
        raise CorruptModel(f"{fields.source}: head_dim {head_dim} is odd; rotary needs pairs")
    return heads, kv_heads, head_dim


def _rope(fields: Fields) -> tuple[float, RopeScaling | None]:
    new = isinstance(fields.values.get("rope_parameters"), dict)
    rope = fields.inner("rope_parameters" if new else "rope_scaling")
    if any(isinstance(value, dict) for value in rope.values.values()):
        raise UnsupportedModel(f"{rope.source}: settings by kind of layer are not supported")
    outer = fields.positive("rope_theta", 10_000.0)
    theta = rope.positive("rope_theta", outer)
    kind = rope.word("rope_type", rope.values.get("type") or "default")
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling("linear", rope.positive("factor"))
    if kind != "llama3":
        raise UnsupportedModel(
            f"{rope.source}: rope type {kind!r} is not supported; quire has default, linear and "
            'llama3. hf_overrides={"rope_scaling": None} runs the model without it, within its '
            "original length."
        )
    low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
    if low >= high:
        raise CorruptModel(f"{rope.source}: low_freq_factor {low} is not below {high}")
    length = rope.count("original_max_position_embeddings")
    return theta, RopeScaling("llama3", rope.positive("factor"), low, high, length)


def _windows(fields: Fields, family: str, num_layers: int) -> tuple[int | None, ...]:
    if family == "llama":
        return (None,) * num_layers
    if family == "mistral":
        # Absent means Mistral's own window, null means none.
        off = "sliding_window" in fields.values and fields.values["sliding_window"] is None
        return (None if off else fields.count("sliding_window", 4096),) * num_layers
    if not fields.flag("use_sliding_window", False) or fields.values.get("sliding_window") is None:
        return (None,) * num_layers
    window = fields.count("sliding_window")
    kinds = fields.values.get("layer_types")
    if kinds is None:
        first = fields.values.get("max_window_layers", 28)
        if isinstance(first, bool) or not isinstance(first, int) or first < 0:
            raise fields.wrong("max_window_layers", "a whole number from 0")
        return tuple(window if layer >= first else None for layer in range(num_layers))
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise fields.wrong("layer_types", f"a list of {num_layers} names")
    meaning = {"full_attention": None, "sliding_attention": window}
    for kind in kinds:
        if not isinstance(kind, str) or kind not in meaning:
            raise UnsupportedModel(f"{fields.source}: layer type {str(kind)[:40]!r}")
    return tuple(meaning[kind] for kind in kinds)


def _dtype(fields: Fields) -> str:
    key = "dtype" if fields.values.get("dtype") is not None else "torch_dtype"
    name = fields.word(key, "float32").removeprefix("torch.")
    if name not in _DTYPES:
        raise UnsupportedModel(
            f"{fields.source}: weights in {name[:40]!r}; quire reads {', '.join(_DTYPES)}"
        )
    return name
