"""DeepSeek V2: latent attention, and experts chosen by a softmax within the best groups. Its GGUF
files look like those of the next version, and the file of that family reads them. No torch."""

from __future__ import annotations

from typing import Any

from quire.families.family import Family, LayerNames, sizes
from quire.families.fields import Fields
from quire.families.latents import WITHOUT_EFFECT, read_latent_decoder
from quire.families.mixtures import SHARED_NAMES, read_routed_experts, with_experts
from quire.spec import ModelSpec

GREEDY = "greedy"


def read(fields: Fields) -> ModelSpec:
    fields = fields.under({}, n_shared_experts=2)
    how: dict[str, Any] = {"score": "softmax", "group_score": "best"}
    how |= {"choice_bias": False, "renormalise": False}
    if fields.word("topk_method", GREEDY) == GREEDY:
        how |= {"groups": 1, "groups_taken": 1}
    spec = read_latent_decoder(fields, interleaved=True)
    experts = read_routed_experts(fields, count=64, width=1407, per_token=0, **how)
    return with_experts(spec, fields, experts)


FAMILY = Family(
    name="deepseek_v2",
    architectures=("DeepseekV2ForCausalLM",),
    read=read,
    unsaid=sizes(102_400, 4096, 11_008, 32, 32, 2048),
    names=LayerNames(**SHARED_NAMES),
    without_effect=WITHOUT_EFFECT,
    only={
        "topk_method": (GREEDY, "group_limited_greedy"),
        "scoring_func": ("softmax",),
        "norm_topk_prob": (False,),
        "moe_layer_freq": (1,),
        "mlp_bias": (False,),
    },
)
