"""BitNet, as a model of plain numbers: norms inside attention and the feed-forward, each before the
last product, and gates of squared relu. No torch."""

from __future__ import annotations

from quire.families.family import Family, sizes
from quire.families.fields import Fields
from quire.families.reading import read_biases, read_heads, read_plain_decoder
from quire.families.rope_config import read_rope
from quire.layer_plan import Activation, MlpPlan, NormPlan
from quire.spec import ModelSpec

ACTIVATIONS: dict[str, Activation] = {"relu2": "relu2", "silu": "silu", "swish": "silu"}
THETA = 500_000.0


def read(fields: Fields) -> ModelSpec:
    heads, width = read_heads(fields, kv_heads=5), fields.count("intermediate_size")
    norm = NormPlan(fields.positive("rms_norm_eps", 1e-5))
    activation = ACTIVATIONS[fields.word("hidden_act", "relu2")]
    return read_plain_decoder(
        fields,
        heads,
        rope=read_rope(fields, heads.head_dim, theta=THETA),
        norm=norm,
        inner_norm=norm,
        mlp=MlpPlan(width, activation, inner_norm=norm),
        **read_biases(fields),
    )


FAMILY = Family(
    name="bitnet",
    architectures=("BitNetForCausalLM",),
    read=read,
    unsaid=sizes(128_256, 2560, 6912, 30, 20, 2048),
    only={"hidden_act": tuple(ACTIVATIONS)},
)
