"""A Hugging Face config as a ModelSpec, and the small JSON files beside it. No torch.

Absent fields mean what they mean to Transformers, for the family in question. Every key that
Transformers knows for a family is read here, or listed as one that changes nothing
(WITHOUT_EFFECT), or refused unless it has a value that quire computes (ONLY).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quire.errors import CorruptModel, ModelNotFound, UnsupportedModel
from quire.spec import ModelSpec
from quire.weights.checkpoint import checked_file
from quire.weights.fields import Fields
from quire.weights.json_file import read_json
from quire.weights.rope_config import overridden, read_rope

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MinistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
# Mistral with windows for some layers has a name of its own in Transformers.
MODEL_TYPES = {
    "llama": "llama",
    "mistral": "mistral",
    "ministral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
}
# Key/value heads of a config that does not mention them (null means as many as heads).
KV_HEADS = {"mistral": 8, "qwen2": 32, "qwen3": 32}
# Values of keys that would make another model; null and absent are fine.
ONLY: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "is_causal": (True,),
    "is_encoder_decoder": (False,),
    "per_layer_config": ({},),
    "transformers_weights": ("model.safetensors", "model.safetensors.index.json"),
}
# Keys that change nothing of what a model computes here.
WITHOUT_EFFECT: Mapping[str, str] = {
    "attention_dropout": "training",
    "initializer_range": "training",
    "pretraining_tp": "how Llama 2 was trained; the sums are the same",
    "chunk_size_feed_forward": "these families have no chunks",
    "use_cache": "quire always does",
    "pad_token_id": "nothing is padded",
    "output_hidden_states": "what a call returns",
    "return_dict": "what a call returns",
    "id2label": "classifiers",
    "label2id": "classifiers",
    "problem_type": "classifiers",
    "transformers_version": "who wrote the file",
}
MAX_LAYERS = 10_000
_DTYPES = ("float32", "bfloat16", "float16")
_LAYER_KINDS = {"attention": "full_attention"}  # what older files call them


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
    rope = read_rope(fields, head_dim)
    # A length that was asked for holds, whatever a scaling would stretch to.
    asked = Fields(overrides or {}, source).count("max_position_embeddings", rope.max_len)
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
        max_model_len=min(rope.max_len, asked),
        norm_eps=fields.positive("rms_norm_eps", 1e-6),
        rope_theta=rope.theta,
        rope_scaling=rope.scaling,
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
    merged = overridden(config, overrides)
    if "architectures" in overrides and "model_type" not in overrides:
        merged["model_type"] = None  # an override of one of the two decides
    if "model_type" in overrides and "architectures" not in overrides:
        merged["architectures"] = None
    return merged


def _family(fields: Fields) -> str:
    named = fields.values.get("architectures") or []
    if not isinstance(named, list):
        raise fields.wrong("architectures", "a list of names")
    model_type = fields.word("model_type", "")
    known = [name for name in named if isinstance(name, str) and name in ARCHITECTURES]
    if known and model_type and ARCHITECTURES[known[0]] != MODEL_TYPES.get(model_type):
        raise UnsupportedModel(
            f"{fields.source}: architectures says {known[0]}, model_type says {model_type[:40]!r}; "
            "these are different models. hf_overrides={"
            f'"model_type": "{ARCHITECTURES[known[0]]}"}} runs it as the former.'
        )
    if known:
        return ARCHITECTURES[known[0]]
    if not named and model_type in MODEL_TYPES:
        return MODEL_TYPES[model_type]
    found = ", ".join(str(name) for name in named)[:200] or model_type or "no architecture"
    raise UnsupportedModel(
        f"{fields.source}: {found} is not supported; quire runs {', '.join(ARCHITECTURES)}"
    )


def _refuse_what_changes_the_model(fields: Fields) -> None:
    quantised = fields.values.get("quantization_config")
    if quantised:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else None
        raise UnsupportedModel(
            f"{fields.source}: the weights are quantised ({method or 'unknown method'}), which "
            "quire does not read from safetensors. Take the original weights, or a GGUF file."
        )
    for key, allowed in ONLY.items():
        value = fields.values.get(key)
        if value is not None and value not in allowed:
            raise UnsupportedModel(
                f"{fields.source}: {key} {str(value)[:100]!r}; quire has "
                f"{' or '.join(str(one) for one in allowed)}"
            )


def _heads(fields: Fields, family: str) -> tuple[int, int, int]:
    heads = fields.count("num_attention_heads")
    unsaid = heads if "num_key_value_heads" in fields.values else KV_HEADS.get(family, heads)
    kv_heads = fields.count("num_key_value_heads", unsaid)
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


def _windows(fields: Fields, family: str, num_layers: int) -> tuple[int | None, ...]:
    if family == "llama":
        return (None,) * num_layers
    window = _window(fields, family)
    kinds = fields.values.get("layer_types")
    if kinds is not None:
        return _windows_by_kind(fields, kinds, window, num_layers)
    if window is None or family == "mistral":
        return (window,) * num_layers
    first = fields.values.get("max_window_layers", 28)
    if isinstance(first, bool) or not isinstance(first, int) or first < 0:
        raise fields.wrong("max_window_layers", "a whole number from 0")
    return tuple(window if layer >= first else None for layer in range(num_layers))


def _window(fields: Fields, family: str) -> int | None:
    """How far back layers see that have a window. Absent means 4,096, null means none."""
    off = "sliding_window" in fields.values and fields.values["sliding_window"] is None
    if family != "mistral":
        off = off or not fields.flag("use_sliding_window", False)
    return None if off else fields.count("sliding_window", 4096)


def _windows_by_kind(
    fields: Fields, kinds: Any, window: int | None, num_layers: int
) -> tuple[int | None, ...]:
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise fields.wrong("layer_types", f"a list of {num_layers} names")
    meaning = {"full_attention": None, "sliding_attention": window}
    windows = []
    for kind in kinds:
        name = _LAYER_KINDS.get(kind, kind) if isinstance(kind, str) else None
        if name not in meaning:
            raise UnsupportedModel(f"{fields.source}: layer type {str(kind)[:40]!r}")
        if name == "sliding_attention" and window is None:
            raise CorruptModel(
                f"{fields.source}: layer_types has sliding_attention, but no sliding_window is set"
            )
        windows.append(meaning[name])
    return tuple(windows)


def _dtype(fields: Fields) -> str:
    key = "dtype" if fields.values.get("dtype") is not None else "torch_dtype"
    name = fields.word(key, "float32").removeprefix("torch.")
    if name not in _DTYPES:
        raise UnsupportedModel(
            f"{fields.source}: weights in {name[:40]!r}; quire reads {', '.join(_DTYPES)}"
        )
    return name
