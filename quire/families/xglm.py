"""XGLM: OPT with scaled embeddings, waves in place of a table of positions, and gelu. No torch."""

from __future__ import annotations

from quire.families import gpt2, opt
from quire.families.family import Family, ModelNames, Name
from quire.families.fields import Fields
from quire.families.reading import read_decoder_with_table
from quire.layer_parts.embeddings import Waves
from quire.layer_plan import MlpPlan
from quire.spec import ModelSpec

WORDS = {
    "hidden_size": "d_model",
    "num_attention_heads": "attention_heads",
    "num_hidden_layers": "num_layers",
}


def read(fields: Fields) -> ModelSpec:
    said = fields.under(WORDS)
    activation = gpt2.ACTIVATIONS[fields.word("activation_function", "gelu")]
    scale = said.count("hidden_size") ** 0.5 if fields.flag("scale_embedding", True) else 1.0
    return read_decoder_with_table(
        said,
        max_len=fields.count("max_position_embeddings"),
        mlp=MlpPlan(fields.count("ffn_dim"), activation, gated=False, bias=True),
        norm_eps=opt.EPS,
        qkv_bias=True,
        o_bias=True,
        facts={"embedding_scale": scale, "learned_positions": None, "waves": Waves(opt.OFFSET)},
    )


FAMILY = Family(
    name="xglm",
    architectures=("XGLMForCausalLM",),
    read=read,
    unsaid={
        "vocab_size": 256_008,
        "d_model": 1024,
        "ffn_dim": 4096,
        "num_layers": 24,
        "attention_heads": 16,
        "max_position_embeddings": 2048,
    },
    outer_names=ModelNames(norm=Name("model.layer_norm", "output_norm")),
    names=opt.FAMILY.names,
    buffers=("embed_positions.weights",),
    without_effect={
        **dict.fromkeys(("dropout", "layerdrop", "activation_dropout", "init_std"), "training"),
        "decoder_start_token_id": "nothing is begun with it",
    },
    only={
        "activation_function": tuple(gpt2.ACTIVATIONS),
        "add_cross_attention": (False,),
        # The row of another number would be zeros, and that of a position.
        "pad_token_id": (0, 1),
    },
)
