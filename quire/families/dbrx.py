"""DBRX: LayerNorms without biases, numbers of q, k and v that are limited, and experts in matrices
in which each lies under the one before. No torch."""

from __future__ import annotations

from typing import Any

from quire.families.family import Family, LayerNames, ModelNames, Name
from quire.families.fields import Fields
from quire.families.mixtures import MAX_EXPERTS, ROUTER_KEYS, with_experts
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
EPS = 1e-5  # configs do not have it
CLIP = "attention.clamp_kqv"


def read(fields: Fields) -> ModelSpec:
    inner = fields.inner("attn_config")
    said = fields.under(WORDS, num_key_value_heads=inner.count("kv_n_heads", 1))
    heads = read_heads(said)
    # Where the first files have it; what newer ones say beside it must be the same.
    theta = inner.positive("rope_theta", DEFAULT_THETA)
    rope = read_rope(said, heads.head_dim, theta=theta)
    if rope.theta != theta and inner.values.get("rope_theta") is not None:
        rule = f'{rope.theta:g}, as beside attn_config; hf_overrides={{"rope_theta": ...}} decides'
        raise inner.wrong("rope_theta", rule)
    spec = read_plain_decoder(
        said,
        heads,
        rope=rope,
        norm=NormPlan(EPS, kind="layer"),
        mlp=MlpPlan(1),  # with_experts exchanges it in every layer
        clip=inner.optional("clip_qkv"),
    )
    return with_experts(spec, said, _read_experts(fields.inner("ffn_config")))


def _read_experts(fields: Fields) -> ExpertsPlan:
    activation = fields.inner("ffn_act_fn")
    activation.check_only({"name": ("silu", "swish")})
    # A null means that weights stay as they are; left out it is 1: they add up to 1.
    key = "moe_normalize_expert_weights"
    renormalise = key not in fields.values or fields.values[key] is not None
    fields.check_only({key: (1,)})
    count = fields.count("moe_num_experts", 4, most=MAX_EXPERTS)
    return ExpertsPlan(
        count,
        fields.count("moe_top_k", 1, most=count),
        MlpPlan(fields.count("ffn_hidden_size", 3584)),
        renormalise=renormalise,
    )


def _gguf_words(fields: Fields, config: dict[str, Any]) -> dict[str, Any]:
    if config["layer_norm_eps"] != EPS:
        raise fields.unsupported("dbrx.attention.layer_norm_epsilon", f"{EPS}")
    return {
        **{own: config[word] for word, own in WORDS.items()},
        "attn_config": {
            "kv_n_heads": config["num_key_value_heads"],
            "clip_qkv": fields.values.get(f"dbrx.{CLIP}"),
        },
        "ffn_config": {
            "ffn_hidden_size": config["intermediate_size"],
            "moe_num_experts": config["num_experts"],
            "moe_top_k": config["num_experts_per_tok"],
        },
    }


EXPERTS = "ffn.experts.mlp"
FAMILY = Family(
    name="dbrx",
    architectures=("DbrxForCausalLM",),
    read=read,
    unsaid={
        "vocab_size": 32_000,
        "d_model": 2048,
        "n_layers": 24,
        "n_heads": 16,
        "max_seq_len": 2048,
    },
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
            Name(f"{EXPERTS}.w1", "ffn_gate_exps", bare=True, piled=True),
            Name(f"{EXPERTS}.v1", "ffn_up_exps", bare=True, piled=True),
        ),
        expert_down=Name(f"{EXPERTS}.w2", "ffn_down_exps", bare=True, piled=True, transposed=True),
    ),
    without_effect={
        **ROUTER_KEYS,
        **dict.fromkeys(("resid_pdrop", "emb_pdrop"), "training"),
    },
    only={"tie_word_embeddings": (False,)},
)
