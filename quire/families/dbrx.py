"""DBRX: LayerNorms without biases, limited q, k and v, and experts in piles. No torch."""

from __future__ import annotations

from typing import Any

from quire.families.family import Family, LayerNames, ModelNames, Name, sizes
from quire.families.fields import Fields
from quire.families.mixtures import MAX_EXPERTS, ROUTER_KEYS
from quire.families.reading import read_heads, read_plain_decoder
from quire.families.rope_config import DEFAULT_THETA, read_rope
from quire.layer_plan import ExpertsPlan, MlpPlan, NormPlan
from quire.spec import ModelSpec

WORDS = {
    "hidden_size": "d_model",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
    "max_position_embeddings": "max_seq_len",
    # Not read: Transformers sets it to what attn_config says.
    "num_key_value_heads": "attn_config.kv_n_heads",
}
EPS, CLIP = 1e-5, "attention.clamp_kqv"  # configs do not have the former


def read(fields: Fields) -> ModelSpec:
    inner = fields.inner("attn_config")
    said = fields.under(WORDS, num_key_value_heads=inner.count("kv_n_heads", 1))
    heads = read_heads(said)
    # Where the first files have it; what newer ones say beside it must be the same.
    rope = read_rope(said, heads.head_dim, theta=inner.positive("rope_theta", DEFAULT_THETA))
    if rope.theta != inner.positive("rope_theta", rope.theta):
        rule = f'{rope.theta:g}, as beside attn_config; hf_overrides={{"rope_theta": ...}} decides'
        raise inner.wrong("rope_theta", rule)
    return read_plain_decoder(
        said,
        heads,
        rope=rope,
        norm=NormPlan(EPS, kind="layer"),
        mlp=_read_experts(fields.inner("ffn_config")),
        clip=inner.optional("clip_qkv"),
    )


def _read_experts(fields: Fields) -> ExpertsPlan:
    fields.inner("ffn_act_fn").check_only({"name": ("silu", "swish")})
    # A null means that weights stay as they are; left out it is 1: they add up to 1.
    fields.check_only({"moe_normalize_expert_weights": (1,)})
    scaled = fields.values.get("moe_normalize_expert_weights", 1) is not None
    count = fields.count("moe_num_experts", 4, most=MAX_EXPERTS)
    expert = MlpPlan(fields.count("ffn_hidden_size", 3584))
    return ExpertsPlan(count, fields.count("moe_top_k", 1, most=count), expert, renormalise=scaled)


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    if config["layer_norm_eps"] != EPS:
        raise fields.unsupported("dbrx.attention.layer_norm_epsilon", f"{EPS}")
    clip = fields.values.get(f"dbrx.{CLIP}")
    return {
        **{own: config[word] for word, own in WORDS.items()},
        "attn_config": {"kv_n_heads": config["num_key_value_heads"], "clip_qkv": clip},
        "ffn_config": {
            "ffn_hidden_size": config["intermediate_size"],
            "moe_num_experts": config["num_experts"],
            "moe_top_k": config["num_experts_per_tok"],
        },
    }


FAMILY = Family(
    name="dbrx",
    architectures=("DbrxForCausalLM",),
    read=read,
    unsaid={WORDS.get(k, k): v for k, v in sizes(32_000, 2048, 0, 24, 16, 2048).items()},
    gguf="dbrx",
    gguf_experts=True,
    gguf_words=_gguf_words,
    gguf_reads=(CLIP,),
    outer_names=ModelNames(
        layer=Name("transformer.blocks.{}", "blk.{}"),
        embed=Name("transformer.wte", "token_embd"),
        norm=Name("transformer.norm_f", "output_norm"),
    ),
    names=LayerNames(
        attn_norm=Name("norm_attn_norm.norm_1", "attn_norm"),
        qkv=(Name("norm_attn_norm.attn.Wqkv", "attn_qkv"),),
        o=Name("norm_attn_norm.attn.out_proj", "attn_output"),
        mlp_norm=Name("norm_attn_norm.norm_2", "attn_output_norm"),
        router=Name("ffn.router.layer", "ffn_gate_inp"),
        expert_gate_up=(
            Name("ffn.experts.mlp.w1", "ffn_gate_exps", bare=True, piled=True),
            Name("ffn.experts.mlp.v1", "ffn_up_exps", bare=True, piled=True),
        ),
        expert_down=Name(
            "ffn.experts.mlp.w2", "ffn_down_exps", bare=True, piled=True, transposed=True
        ),
    ),
    without_effect={**ROUTER_KEYS, "resid_pdrop": "training", "emb_pdrop": "training"},
    only={"tie_word_embeddings": (False,)},
)
