"""Granite 4: the factors of Granite, layers of Mamba-2 and some with attention, rope in these or in
none, and a shared expert beside the others or alone. No torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.families import granite, granitemoe
from quire.families.family import Family, Name, sizes
from quire.families.fields import Fields
from quire.families.hybrids import GGUF_KV, KEEPS_STATE, gguf_kinds
from quire.families.mamba import (
    GGUF_SSM,
    ONLY,
    WITHOUT_EFFECT,
    gguf_state,
    names_of,
    read_kinds,
    with_states,
)
from quire.families.mixtures import ROUTER_KEYS, read_experts
from quire.layer_plan import ExpertsPlan, MlpPlan
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    spec = granite.read(fields)
    if fields.values.get("position_embedding_type") != "rope":
        spec = spec.with_attention(lambda one: replace(one, rope=None))
    mlp = _feed_forward(fields)
    layers = tuple(replace(one, mlp=mlp) for one in spec.layers)
    return with_states(replace(spec, layers=layers), fields, read_kinds(fields))


def _feed_forward(fields: Fields) -> MlpPlan | ExpertsPlan:
    shared = MlpPlan(fields.count("shared_intermediate_size", 1024))
    if fields.whole("num_local_experts", 8) == 0:
        return shared
    experts = read_experts(
        fields,
        fields.count("intermediate_size"),
        count=8,
        per_token=2,
        renormalise=True,
        shared=shared,
        shared_gate=False,
    )
    if experts.per_token > experts.count:
        raise fields.wrong("num_experts_per_tok", f"at most {experts.count}, which there are")
    return experts


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    """The key that says how ropes were trained says here whether heads are rotated."""
    arch, hidden = fields.word("general.architecture"), config["hidden_size"]
    width, factors = fields.count(f"{arch}.ssm.inner_size"), granite.gguf_factors(fields, config)
    if width % hidden:
        raise fields.unsupported(f"{arch}.ssm.inner_size", f"a multiple of {hidden}")
    if fields.values.get(f"{arch}.attention.scale") is None:
        factors["attention_multiplier"] = config["head_dim"] ** -0.5
    turns = fields.flag(f"{arch}.rope.scaling.finetuned", True)
    return {
        **factors,
        **gguf_state(fields, WORDS),
        "mamba_expand": width // hidden,
        "layer_types": gguf_kinds(fields, config["num_hidden_layers"], KEEPS_STATE),
        "position_embedding_type": "rope" if turns else "nope",
        "num_local_experts": config.get("num_experts", 0),
        "shared_intermediate_size": fields.count(
            f"{arch}.{granitemoe.SHARED_WIDTH}", config["intermediate_size"]
        ),
    }


WORDS = {"reach": "mamba_d_conv", "key": "mamba_d_state", "keys": "mamba_n_groups"}
WORDS |= {"heads": "mamba_n_heads", "size": "mamba_d_head"}
INPUT = "shared_mlp.input_linear"
FAMILY = Family(
    name="granitemoehybrid",
    architectures=("GraniteMoeHybridForCausalLM",),
    read=read,
    unsaid=sizes(32_000, 4096, 11_008, 32, 32, 2048),
    names=replace(
        granitemoe.FAMILY.names,
        **names_of("mamba"),
        gate_up=(Name(INPUT, "ffn_gate"), Name(INPUT, "ffn_up")),
        down=Name("shared_mlp.output_linear", "ffn_down"),
    ),
    gguf="granitehybrid",
    gguf_experts=None,
    gguf_interleaved=True,
    gguf_words=_gguf_words,
    gguf_reads=(*granite.GGUF_FACTORS, *GGUF_SSM, granitemoe.SHARED_WIDTH),
    gguf_by_layer=(GGUF_KV,),
    without_effect={**ROUTER_KEYS, **WITHOUT_EFFECT},
    only={**ONLY, "position_embedding_type": ("rope", "nope")},
)
