"""nanochat: norms without weights, of embeddings and behind rotated heads, too, heads that rotate
backwards, and a feed-forward of squared relu without gate. No torch."""

from __future__ import annotations

from dataclasses import replace

from quire.families.family import Family, LayerNames, Name, sizes
from quire.families.fields import Fields
from quire.families.reading import read_biases, read_heads, read_plain_decoder
from quire.families.rope_config import RopeSettings, read_rope
from quire.layer_parts.rope import LinearRope
from quire.layer_plan import MlpPlan, NormPlan
from quire.spec import LogitsPlan, ModelSpec

CAP = "final_logit_softcapping"


def read(fields: Fields) -> ModelSpec:
    heads, width = read_heads(fields), fields.count("intermediate_size")
    norm = NormPlan(fields.positive("rms_norm_eps", 1e-6), learned=False)
    cap = fields.optional(CAP) if CAP in fields.values else 15.0  # null means none
    return read_plain_decoder(
        fields,
        heads,
        rope=_backwards(read_rope(fields, heads.head_dim, kinds={})),
        norm=norm,
        qk_norm=True,
        qk_norm_behind=True,
        mlp=MlpPlan(width, "relu2", gated=False),
        **read_biases(fields),
        facts={"embed_norm": norm, "logits": LogitsPlan(softcap=cap)},
    )


def _backwards(rope: RopeSettings) -> RopeSettings:
    """The rope with every angle negative."""
    factor = rope.scaling.factor if isinstance(rope.scaling, LinearRope) else 1.0
    return replace(rope, scaling=LinearRope(-factor))


FAMILY = Family(
    name="nanochat",
    architectures=("NanoChatForCausalLM",),
    read=read,
    unsaid=sizes(50_304, 768, 8192, 12, 6, 2048),
    names=LayerNames(up=Name("mlp.fc1", "ffn_up"), down=Name("mlp.fc2", "ffn_down")),
    only={"hidden_act": ("relu2",)},
)
