"""OPT: learned positions, LayerNorm, a relu feed-forward without gate, biases. No torch."""

from __future__ import annotations

from quire.families.family import Family, LayerNames, ModelNames, Name, sizes
from quire.families.fields import Fields
from quire.families.reading import read_decoder_with_table
from quire.layer_plan import MlpPlan
from quire.spec import ModelSpec

OFFSET = 2  # rows of the position table before the first token's
EPS = 1e-5


def read(fields: Fields) -> ModelSpec:
    biased = fields.flag("enable_bias", True)
    if fields.count("word_embed_proj_dim", hidden := fields.count("hidden_size")) != hidden:
        raise fields.unsupported(
            "word_embed_proj_dim", f"{hidden}, the hidden size: quire has no other"
        )
    return read_decoder_with_table(
        fields,
        max_len=fields.count("max_position_embeddings"),
        before=OFFSET,
        mlp=MlpPlan(fields.count("ffn_dim"), activation="relu", gated=False, bias=biased),
        norm_eps=EPS,
        qkv_bias=biased,
        o_bias=biased,
    )


FAMILY = Family(
    name="opt",
    architectures=("OPTForCausalLM",),
    read=read,
    unsaid=sizes(50_272, 768, 0, 12, 12, 2048) | {"ffn_dim": 3072},
    outer_names=ModelNames(
        layer=Name("model.decoder.layers.{}", "blk.{}"),
        embed=Name("model.decoder.embed_tokens", "token_embd"),
        positions=Name("model.decoder.embed_positions", "position_embd"),
        norm=Name("model.decoder.final_layer_norm", "output_norm"),
    ),
    names=LayerNames(
        attn_norm=Name("self_attn_layer_norm", "attn_norm"),
        o=Name("self_attn.out_proj", "attn_output"),
        mlp_norm=Name("final_layer_norm", "ffn_norm"),
        up=Name("fc1", "ffn_up"),
        down=Name("fc2", "ffn_down"),
    ),
    without_effect={"dropout": "training", "layerdrop": "training", "init_std": "training"},
    only={
        "activation_function": ("relu",),
        # OPT-350m has its norms after the branches, which quire does not compute.
        "do_layer_norm_before": (True,),
        "_remove_final_layer_norm": (False,),
        "layer_norm_elementwise_affine": (True,),
    },
)
