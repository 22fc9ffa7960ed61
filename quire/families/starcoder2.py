"""StarCoder2: LayerNorm, a feed-forward without gate, biases everywhere. No torch."""

from __future__ import annotations

from quire.families.family import Family, LayerNames, Name, sizes
from quire.families.fields import Fields
from quire.families.reading import read_heads, read_plain_decoder, read_window
from quire.layer_plan import MlpPlan, NormPlan
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    biased = fields.flag("use_bias", True)
    return read_plain_decoder(
        fields,
        read_heads(fields, kv_heads=2),
        window=read_window(fields, unsaid=None),
        norm=NormPlan(fields.positive("norm_epsilon", 1e-5), kind="layer", bias=True),
        mlp=MlpPlan(
            fields.count("intermediate_size"), activation="gelu_tanh", gated=False, bias=biased
        ),
        qkv_bias=biased,
        o_bias=biased,
        facts={"tied_embeddings": fields.flag("tie_word_embeddings", True)},
    )


FAMILY = Family(
    name="starcoder2",
    architectures=("Starcoder2ForCausalLM",),
    read=read,
    unsaid=sizes(49_152, 3072, 12_288, 30, 24, 4096),
    gguf="starcoder2",
    names=LayerNames(up=Name("mlp.c_fc", "ffn_up"), down=Name("mlp.c_proj", "ffn_down")),
    without_effect={"residual_dropout": "training", "embedding_dropout": "training"},
    only={"hidden_act": ("gelu_pytorch_tanh",)},
)
