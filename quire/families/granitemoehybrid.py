"""Granite 4: the factors of Granite, layers of Mamba-2 and some with attention, rope in these or in
none, and a shared expert beside the others or alone. No torch."""

from __future__ import annotations

from dataclasses import replace

from quire.families import granite, granitemoe
from quire.families.family import Family, Name, sizes
from quire.families.fields import Fields
from quire.families.mamba import ONLY, WITHOUT_EFFECT, names_of, read_kinds, with_states
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


UP, DOWN = Name("shared_mlp.input_linear", "ffn_up"), Name("shared_mlp.output_linear", "ffn_down")
FAMILY = Family(
    name="granitemoehybrid",
    architectures=("GraniteMoeHybridForCausalLM",),
    read=read,
    unsaid=sizes(32_000, 4096, 11_008, 32, 32, 2048),
    names=replace(
        granitemoe.FAMILY.names,
        **names_of("mamba"),
        gate_up=(UP,),
        down=DOWN,
    ),
    without_effect={**ROUTER_KEYS, **WITHOUT_EFFECT},
    only={**ONLY, "position_embedding_type": ("rope", "nope")},
)
