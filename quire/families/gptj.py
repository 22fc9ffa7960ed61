"""GPT-J: one LayerNorm before both branches, rope on interleaved pairs of the first numbers of each
head, a gelu feed-forward without gate, and biases everywhere but in attention, also of logits. No
torch."""

from __future__ import annotations

from typing import Any

from quire.families import gpt2
from quire.families.family import Family, LayerNames, ModelNames, Name
from quire.families.fields import Fields
from quire.families.reading import read_heads, read_plain_decoder, with_pairs_side_by_side
from quire.families.rope_config import DEFAULT_THETA, RopeSettings
from quire.layer_plan import MlpPlan, NormPlan
from quire.spec import LogitsPlan, ModelSpec


def read(fields: Fields) -> ModelSpec:
    said = fields.under(gpt2.WORDS, max_position_embeddings=2048)
    heads = read_heads(said)
    fields.refuse_null("rotary_dim")
    turned = fields.count("rotary_dim", 64, most=heads.head_dim)
    if turned % 2:
        raise fields.wrong("rotary_dim", "even, as rotary needs pairs")
    length = said.count("max_position_embeddings")
    activation = gpt2.ACTIVATIONS[fields.word("activation_function", "gelu_new")]
    width = fields.count("n_inner", 4 * said.count("hidden_size"))
    spec = read_plain_decoder(
        said,
        heads,
        rope=RopeSettings(DEFAULT_THETA, None, length, turned),
        norm=NormPlan(fields.positive("layer_norm_epsilon", 1e-5), kind="layer", bias=True),
        mlp=MlpPlan(width, activation, gated=False, bias=True),
        layer={"norms": "parallel"},
        facts={"logits": LogitsPlan(bias=True)},
    )
    return with_pairs_side_by_side(spec)


# Transformers' class reads none of these, so a value would be without effect.
NO_ROPE_KEYS: dict[str, tuple[Any, ...]] = {
    "rope_scaling": ({},),
    "rope_parameters": ({},),
    "rope_theta": (DEFAULT_THETA,),
}
FAMILY = Family(
    name="gptj",
    architectures=("GPTJForCausalLM",),
    read=read,
    unsaid={"vocab_size": 50_400, "n_embd": 4096, "n_layer": 28, "n_head": 16},
    partial_rotary=True,
    outer_names=ModelNames(
        layer=Name("transformer.h.{}", "blk.{}"),
        embed=Name("transformer.wte", "token_embd"),
        norm=Name("transformer.ln_f", "output_norm"),
    ),
    names=LayerNames(
        attn_norm=Name("ln_1", "attn_norm"),
        qkv=tuple(Name(f"attn.{one}_proj", f"attn_{one}") for one in "qkv"),
        o=Name("attn.out_proj", "attn_output"),
        up=Name("mlp.fc_in", "ffn_up"),
        down=Name("mlp.fc_out", "ffn_down"),
    ),
    buffers=("attn.bias", "attn.masked_bias"),
    without_effect=dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), "training"),
    only={"activation_function": tuple(gpt2.ACTIVATIONS), **NO_ROPE_KEYS},
)
