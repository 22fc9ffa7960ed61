"""Reads configs of models with latent attention (layers/latent.py). No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.errors import UnsupportedModel
from quire.families.fields import Fields
from quire.families.mixtures import GGUF_ROUTING, ROUTER_KEYS
from quire.families.reading import Heads, read_biases, read_plain_decoder, with_pairs_side_by_side
from quire.families.rope_config import read_rope, rope_fields, yarn_scale
from quire.layer_plan import LatentPlan, NormPlan
from quire.spec import ModelSpec

EPS = 1e-6  # configs do not have it
# Defaults.
SIZES: Mapping[str, int] = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
HEAD_KEYS: Mapping[str, str] = {
    "num_key_value_heads": "every head has keys and values of its own",
    "head_dim": "the parts of a head have sizes of their own",
}
WITHOUT_EFFECT: Mapping[str, str] = {
    **ROUTER_KEYS,
    **HEAD_KEYS,
    "num_mtp_layers": "layers that guess ahead, which are not read",
}


def read_latent_decoder(
    fields: Fields, *, sizes: Mapping[str, int] = SIZES, interleaved: bool, **given: Any
) -> ModelSpec:
    """A decoder with latent attention and without experts. `sizes` are defaults. `interleaved`: the
    files have the pairs that rope rotates as numbers 2 i and 2 i + 1. `given`: more arguments of
    read_plain_decoder."""
    heads, latent = fields.count("num_attention_heads"), _latent(fields, sizes)
    spec = read_plain_decoder(
        fields,
        Heads(heads, 1, latent.kv_rank + latent.rope_dims),
        rope=read_rope(fields, latent.rope_dims),
        scale=_scale(fields, latent),
        latent=latent,
        **read_biases(fields),
        **given,
    )
    return with_pairs_side_by_side(spec) if interleaved else spec


def _latent(fields: Fields, sizes: Mapping[str, int]) -> LatentPlan:
    def size(key: str) -> int:
        return fields.count(key, sizes[key])

    if size("qk_rope_head_dim") % 2:
        raise fields.wrong("qk_rope_head_dim", "an even number: rotary needs pairs")
    is_direct = "q_lora_rank" in fields.values and fields.values["q_lora_rank"] is None
    return LatentPlan(
        size("kv_lora_rank"),
        size("qk_nope_head_dim"),
        size("qk_rope_head_dim"),
        size("v_head_dim"),
        NormPlan(EPS),
        q_rank=None if is_direct else size("q_lora_rank"),
    )


def _scale(fields: Fields, latent: LatentPlan) -> float:
    """The scale of scores; scaled ropes with `mscale_all_dim` make it larger."""
    rope, plain = rope_fields(fields), float(latent.query_dims**-0.5)
    weight = rope.not_negative("mscale_all_dim", 0.0)
    if not weight or rope.word("rope_type", rope.values.get("type") or "default") == "default":
        return plain
    return plain * yarn_scale(rope.positive("factor"), weight) ** 2


_GGUF_HEADS = ("q_lora_rank", "kv_lora_rank", "key_length_mla", "value_length_mla", "value_length")
_GGUF_MSCALE = "rope.scaling.yarn_log_multiplier"
GGUF_READS = (
    *GGUF_ROUTING,
    *(f"attention.{key}" for key in _GGUF_HEADS),
    *("rope.dimension_count", _GGUF_MSCALE),
)


def gguf_latent(fields: Fields, arch: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Config values for latent attention from a GGUF file's metadata."""
    rank, key, value = (
        f"{arch}.attention.{one}" for one in ("kv_lora_rank", "key_length_mla", "value_length_mla")
    )
    if fields.values.get(key) is None:
        raise UnsupportedModel(
            f"{fields.source}: {key} is missing: the file was made before keys and values were "
            "kept as latents. Convert the model again, or take its safetensors."
        )
    turned, scaling = fields.count(f"{arch}.rope.dimension_count"), config["rope_scaling"]
    # The file has a tenth of mscale_all_dim, and mscale is the same number.
    weight = round(10 * fields.not_negative(f"{arch}.{_GGUF_MSCALE}", 0.0), 6)
    if scaling is not None and weight:
        both = {"mscale": weight, "mscale_all_dim": weight}
        scaling = {**scaling, **both, "attention_factor": None}
    return {
        "q_lora_rank": fields.values.get(f"{arch}.attention.q_lora_rank"),
        "kv_lora_rank": fields.count(rank),
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": fields.count(key) - turned,
        "v_head_dim": fields.count(value),
        "rope_scaling": scaling,
    }
