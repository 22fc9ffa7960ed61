"""BioGPT: OPT with scaled embeddings and a gelu feed-forward, under names of its own. No torch."""

from __future__ import annotations

from quire.families import gpt2, opt
from quire.families.family import Family, ModelNames, Name, sizes
from quire.families.fields import Fields
from quire.families.reading import read_decoder_with_table
from quire.layer_plan import MlpPlan
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    width, hidden = fields.count("intermediate_size"), fields.count("hidden_size")
    activation = gpt2.ACTIVATIONS[fields.word("hidden_act", "gelu")]
    return read_decoder_with_table(
        fields,
        max_len=fields.count("max_position_embeddings"),
        before=opt.OFFSET,
        mlp=MlpPlan(width, activation, gated=False, bias=True),
        norm_eps=opt.EPS,
        qkv_bias=True,
        o_bias=True,
        facts={"embedding_scale": hidden**0.5 if fields.flag("scale_embedding", True) else 1.0},
    )


FAMILY = Family(
    name="biogpt",
    architectures=("BioGptForCausalLM",),
    read=read,
    unsaid=sizes(42_384, 1024, 4096, 24, 16, 1024),
    outer_names=ModelNames(
        layer=Name("biogpt.layers.{}", "blk.{}"),
        embed=Name("biogpt.embed_tokens", "token_embd"),
        positions=Name("biogpt.embed_positions", "position_embd"),
        norm=Name("biogpt.layer_norm", "output_norm"),
        head=Name("output_projection", "output"),
    ),
    names=opt.FAMILY.names,
    without_effect={
        **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), "training"),
        **dict.fromkeys(("layerdrop", "activation_dropout"), "training"),
        "layer_norm_eps": "Transformers' norms have 1e-5 whatever it says",
    },
    only={"hidden_act": tuple(gpt2.ACTIVATIONS)},
)
