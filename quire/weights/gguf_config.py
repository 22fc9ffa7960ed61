"""GGUF metadata as a ModelSpec: translated to a Hugging Face config, then read as one. No torch.

What the metadata do not contain follows from the tensors: biases, tied embeddings, factors of
rotary frequencies, and how experts are scored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from quire.errors import CorruptModel, UnsupportedModel
from quire.families.family import Family
from quire.families.fields import Fields
from quire.families.mixtures import SIGMOID
from quire.families.registry import families_of_gguf, family_named
from quire.layer_parts.rope import FactorRope
from quire.layer_parts.state import MambaPlan
from quire.layer_plan import LayerPlan, MlpPlan
from quire.spec import ModelSpec
from quire.weights.gguf_file import GgufFile
from quire.weights.gguf_metadata import plain_metadata, shortest
from quire.weights.gguf_ropes import freq_factors, rope_scaling, still_pairs
from quire.weights.gguf_windows import check_windows, layer_types, read_window
from quire.weights.hf_config import spec_from_hf
from quire.weights.names import stored_numbers

# Metadata that are read here, and those without effect. Any other key must be zero or false: it
# belongs to a feature that these models do not have.
_TOP = ("vocab_size", "context_length", "embedding_length", "block_count", "feed_forward_length")
_ATTENTION = (
    *("head_count", "head_count_kv", "key_length", "value_length"),
    *("layer_norm_rms_epsilon", "layer_norm_epsilon", "sliding_window", "sliding_window_pattern"),
)
_EXPERTS = ("expert_count", "expert_used_count", "expert_feed_forward_length")
_SCALING = (
    *("type", "factor", "original_context_length", "attn_factor", "yarn_attn_factor"),
    *("yarn_ext_factor", "yarn_log_multiplier", "yarn_beta_fast", "yarn_beta_slow"),
)
READ = frozenset(
    {
        *_TOP,
        *_EXPERTS,
        *(f"attention.{key}" for key in _ATTENTION),
        *("rope.dimension_count", "rope.freq_base", "rope.freq_base_swa", "rope.scale_linear"),
        *(f"rope.scaling.{key}" for key in _SCALING),
    }
)
WITHOUT_EFFECT: Mapping[str, str] = {
    "tensor_data_layout": "who made the file",
    "pooling_type": "embeddings",
    "classifier.output_labels": "what is scored, which is read with the head",
    "rope.scaling.finetuned": "how the model was trained",
}
# Sizes that only the rows of a tensor tell.
_ROWS_OF = {
    "laurel_rank": "blk.0.laurel_l.weight",
    "vocab_size_per_layer_input": "per_layer_token_embd.weight",
}
_LAYER = re.compile(r"blk\.(\d{1,9})\.")
_MAY_BE_BIASED = (
    *("attn_q", "attn_qkv", "attn_output"),
    *("ssm_in", "ssm_conv1d", "ssm_out"),
)
# Factors that change nothing if they are 1.
_FACTORS = frozenset({"logit_scale", "residual_scale", "embedding_scale"})


def spec_from_gguf(file: GgufFile, overrides: Mapping[str, Any] | None = None) -> ModelSpec:
    """The spec of a GGUF file; `overrides` are keys of a Hugging Face config, as for other
    models."""
    found = {**_gating(file), **still_pairs(file), **plain_metadata(file.metadata)}
    fields = Fields(found, file.path.name)
    config = _config(file, fields)
    spec = spec_from_hf(config, overrides, source=file.path.name)
    factors = freq_factors(file, spec)
    if factors is not None and not {"rope_scaling", "rope_parameters"} & (overrides or {}).keys():
        spec = _with_factors(spec, factors, fields.source)
    if not overrides:
        check_windows(fields, config, spec)
    numbered = zip(spec.layers, stored_numbers(spec), strict=True)
    behind = int(family_named(spec.family).branches_apart)  # 1: a feed-forward is the next layer
    layers = (_with_biases(layer, i, i + behind, file) for layer, i in numbered)
    return replace(spec, layers=tuple(layers))


def _with_factors(spec: ModelSpec, factors: tuple[float, ...], source: str) -> ModelSpec:
    rotating = [rope for rope, _ in spec.rotations if rope is not None]
    if spec.rope.scaling is not None or len(rotating) > 1:
        raise UnsupportedModel(f"{source}: rope_freqs.weight and a rope scaling at once")
    rope = replace(spec.rope, scaling=FactorRope(factors))
    return spec.with_attention(lambda one: replace(one, rope=one.rope and rope))


def _with_biases(layer: LayerPlan, index: int, behind: int, file: GgufFile) -> LayerPlan:
    """The layer, with the biases for which the file has tensors: metadata do not mention them. In
    the file it is layer `index`, its feed-forward in layer `behind`."""
    biased = {name: f"blk.{index}.{name}.bias" in file.tensors for name in _MAY_BE_BIASED}
    qkv = biased["attn_q"] or biased["attn_qkv"]
    attention = replace(layer.attention, qkv_bias=qkv, o_bias=biased["attn_output"])
    mlp, state = layer.mlp, layer.state
    if isinstance(mlp, MlpPlan):
        mlp = replace(mlp, bias=f"blk.{behind}.ffn_down.bias" in file.tensors)
    if isinstance(state, MambaPlan):
        state = replace(
            state,
            bias=biased["ssm_in"],
            o_bias=biased["ssm_out"],
            convolution_bias=biased["ssm_conv1d"],
        )
    return replace(layer, attention=attention, mlp=mlp, state=state)


def _gating(file: GgufFile) -> dict[str, int]:
    """Sigmoids, if experts are chosen with a bias: no model adds a bias to a softmax, and early
    files of some models do not name the function."""
    arch = file.metadata.get("general.architecture")
    has_bias = any(name.endswith(".exp_probs_b.bias") for name in file.tensors)
    return {f"{arch}.expert_gating_func": SIGMOID} if has_bias else {}


def _config(file: GgufFile, fields: Fields) -> dict[str, Any]:
    arch = fields.word("general.architecture")
    if (kind := fields.word("general.type", "model")) != "model":
        raise UnsupportedModel(
            f"{fields.source}: a GGUF file of the type {kind[:40]!r} is no model. Give the model's "
            "own file; adapters are read as PEFT stores them"
        )
    families = families_of_gguf(arch, fields.source)
    window = read_window(fields, arch)
    has_experts = bool(fields.values.get(f"{arch}.expert_count"))
    family = _family(families, fields, window, has_experts=has_experts)
    _refuse_what_changes_the_model(fields, arch, family)
    whole, fields = fields, _of_first_layer(fields, arch, family)
    config: dict[str, Any] = {
        "architectures": [family.architectures[0]],
        "model_type": family.model_types[0],
        "vocab_size": _vocab_size(file, fields, arch),
        "hidden_size": fields.count(f"{arch}.embedding_length"),
        "num_hidden_layers": _num_layers(file, fields, arch),
        "max_position_embeddings": fields.count(f"{arch}.context_length"),
        **_eps(fields, arch),
        "rope_theta": shortest(fields.positive(f"{arch}.rope.freq_base", 10_000.0)),
        "rope_scaling": rope_scaling(file, fields, arch, family),
        **_read_off_the_tensors(file),
        "bos_token_id": fields.values.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _stop_ids(fields),
        "dtype": stored_dtype(file),
        **_experts(fields, arch),
    }
    config |= _branches(fields, arch, family, config["hidden_size"])
    if family.gguf_words is not None:
        config |= family.gguf_words(whole, config)
    if window is not None:
        config["sliding_window"] = window
    # A family may have set the window, and its layers with one may have a theta of their own.
    return config if config.get("sliding_window") is None else config | layer_types(fields, config)


def _branches(fields: Fields, arch: str, family: Family, hidden: int) -> dict[str, Any]:
    """Config values of attention and feed-forwards; none if the family has neither."""
    if family.has_states_alone:
        for key in (f"{arch}.attention.head_count", f"{arch}.feed_forward_length"):
            if fields.whole(key, 0):
                raise fields.unsupported(key, "0, as its layers have nothing but states")
        return {}
    heads = fields.count(f"{arch}.attention.head_count")
    head_dim = fields.count(f"{arch}.attention.key_length", max(hidden // heads, 1))
    return {
        "intermediate_size": _width(fields, arch),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.count(f"{arch}.attention.head_count_kv", heads),
        "head_dim": head_dim,
        **_partial_rotary(fields, arch, head_dim, family),
    }


def _of_first_layer(fields: Fields, arch: str, family: Family) -> Fields:
    """The fields, with the first layer's numbers in place of arrays that the family reads. Layers
    without attention have 0 heads, which no layer's numbers are."""
    keys = (f"{arch}.{key}" for key in family.gguf_by_layer)
    arrays = {key: fields.values[key] for key in keys if isinstance(fields.values.get(key), list)}
    firsts = {key: next(filter(None, value), 0) for key, value in arrays.items()}
    return Fields({**fields.values, **firsts}, fields.source)


def _read_off_the_tensors(file: GgufFile) -> dict[str, Any]:
    """Config values that metadata do not have, under the keys that families read."""
    sizes = {
        key: file.tensors[name].shape[0]
        for key, name in _ROWS_OF.items()
        if name in file.tensors and file.tensors[name].shape
    }
    return {
        **sizes,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "lm_head_bias": "output.bias" in file.tensors,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in file.tensors,
        "attention_k_eq_v": any(
            name.endswith(".attn_k.weight") and name.replace("_k.", "_v.") not in file.tensors
            for name in file.tensors
        ),
        "num_ln_in_parallel_attn": 2 if "blk.0.attn_norm_2.weight" in file.tensors else 1,
    }


def _eps(fields: Fields, arch: str) -> dict[str, float]:
    """The epsilon of norms, under the keys that families read."""
    key = f"{arch}.attention.layer_norm_epsilon"
    if fields.values.get(key) is None:
        return {
            "rms_norm_eps": shortest(fields.positive(f"{arch}.attention.layer_norm_rms_epsilon"))
        }
    words = ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")
    return dict.fromkeys(words, shortest(fields.positive(key)))


def _experts(fields: Fields, arch: str) -> dict[str, int]:
    """Config values for experts, under the keys that families read; empty without experts."""
    if fields.values.get(f"{arch}.expert_count", 0) == 0:
        return {}
    count = fields.count(f"{arch}.expert_count")
    width = _width(fields, arch)
    return {
        **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), count),
        "num_experts_per_tok": fields.count(f"{arch}.expert_used_count"),
        "moe_intermediate_size": fields.count(f"{arch}.expert_feed_forward_length", width),
    }


def _num_layers(file: GgufFile, fields: Fields, arch: str) -> int:
    count = fields.count(key := f"{arch}.block_count")
    last = max((int(found[1]) for name in file.tensors if (found := _LAYER.match(name))), default=0)
    if last >= count:
        raise CorruptModel(f"{fields.source}: {key} is {count}; there are tensors of blk.{last}")
    return count


def _width(fields: Fields, arch: str) -> int:
    """The width of feed-forwards; some files of models with experts only have that of an expert."""
    key = f"{arch}.feed_forward_length"
    if fields.values.get(key) is None and fields.values.get(f"{arch}.expert_count"):
        key = f"{arch}.expert_feed_forward_length"
    return fields.count(key)


def _family(
    families: Sequence[Family], fields: Fields, window: int | None, *, has_experts: bool
) -> Family:
    fitting = [family for family in families if family.gguf_experts in (None, has_experts)]
    if not fitting:
        raise UnsupportedModel(f"{fields.source}: a mixture of experts, which quire does not know")
    for family in fitting:
        if family.gguf_windows or window is None:
            return family
    raise UnsupportedModel(
        f"{fields.source}: a sliding window of {window} that GGUF does not give layers for; "
        "take the safetensors of this model"
    )


def _refuse_what_changes_the_model(fields: Fields, arch: str, family: Family) -> None:
    for key, value in fields.values.items():
        name = key.removeprefix(f"{arch}.")
        if name == key or name in READ or name in WITHOUT_EFFECT or name in family.gguf_reads:
            continue
        neutral = (0, 1) if name in _FACTORS else (True,) if name == "attention.causal" else (0,)
        if value not in neutral:
            raise UnsupportedModel(
                f"{fields.source}: {key} {str(value)[:40]} is a part of a model that quire does "
                "not know"
            )


def _partial_rotary(fields: Fields, arch: str, head_dim: int, family: Family) -> dict[str, float]:
    keys = ("rope.dimension_count", "attention.value_length")
    dims, values = (fields.count(f"{arch}.{key}", head_dim) for key in keys)
    for key, size in zip(keys, (dims, values), strict=True):
        if key in family.gguf_reads:
            continue  # the family reads it
        if size != head_dim and not (key == keys[0] and family.partial_rotary):
            raise UnsupportedModel(
                f"{fields.source}: {arch}.{key} {size} differs from the head size {head_dim}"
            )
    return {"partial_rotary_factor": dims / head_dim} if family.partial_rotary else {}


def _vocab_size(file: GgufFile, fields: Fields, arch: str) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CorruptModel(f"{fields.source}: no tensor token_embd.weight of two dimensions")
    return fields.count(f"{arch}.vocab_size", embedding.shape[0])


def _stop_ids(fields: Fields) -> list[int]:
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    found = [token for key in keys for token in fields.ids(f"tokenizer.ggml.{key}")]
    return list(dict.fromkeys(found))


def stored_dtype(file: GgufFile) -> str:
    stored = {
        tensor.format.name for tensor in file.tensors.values() if tensor.name.startswith("blk.")
    } - {"F32"}  # norms are F32 in every file
    return {"F16": "float16", "BF16": "bfloat16"}.get("".join(stored), "float32")
