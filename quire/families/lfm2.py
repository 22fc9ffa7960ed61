"""LFM2: some layers have attention, the others a short convolution between two gates. No torch."""

from __future__ import annotations

from dataclasses import replace

from quire.families.family import Family, LayerNames, ModelNames, Name, sizes
from quire.families.fields import Fields
from quire.families.hybrids import (
    ATTENDS,
    CONVOLVES,
    GGUF_KV,
    GGUF_REACH,
    MOST_REACH,
    convolving_words,
    layer_kinds,
)
from quire.families.reading import num_layers, read_heads, read_plain_decoder
from quire.families.rope_config import read_rope
from quire.layer_parts.state import ConvolutionPlan
from quire.layer_plan import MlpPlan, NormPlan
from quire.spec import ModelSpec


def read(fields: Fields) -> ModelSpec:
    count = num_layers(fields)
    attending = fields.values.get("full_attn_idxs")
    attending = list(range(count)) if attending is None else attending
    if not isinstance(attending, list):
        raise fields.wrong("full_attn_idxs", "a list of layers")
    usual = [ATTENDS if i in attending else CONVOLVES for i in range(count)]
    return read_convolving(fields, usual, MlpPlan(_width(fields)))


def read_convolving(fields: Fields, usual: list[str], mlp: MlpPlan) -> ModelSpec:
    """`usual`: the kinds of layers that a config does not name."""
    heads = read_heads(fields, kv_heads=8)
    spec = read_plain_decoder(
        fields,
        heads,
        rope=read_rope(fields, heads.head_dim, theta=1e6),
        norm=NormPlan(fields.positive("norm_eps", 1e-5)),
        qk_norm=True,
        mlp=mlp,
        facts={"tied_embeddings": fields.flag("tie_embedding", _tied(fields))},
    )
    state = ConvolutionPlan(
        fields.count("hidden_size"),
        fields.count("conv_L_cache", 3, most=MOST_REACH),
        bias=fields.flag("conv_bias", False),
    )
    kinds = zip(spec.layers, layer_kinds(fields, usual, (ATTENDS, CONVOLVES)), strict=True)
    layers = (one if kind == ATTENDS else replace(one, state=state) for one, kind in kinds)
    return replace(spec, layers=tuple(layers))


def _tied(fields: Fields) -> bool:
    return fields.flag("tie_word_embeddings", True)


def _width(fields: Fields) -> int:
    """The width of a feed-forward, under the name in either kind of config; adjusted, it is two
    thirds of the width, times a factor, and a multiple of a number."""
    width = fields.count("block_ff_dim", fields.count("intermediate_size"))
    if not fields.flag("block_auto_adjust_ff_dim", True):
        return width
    width = int(fields.positive("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
    multiple = fields.count("block_multiple_of", 256)
    return -(-width // multiple) * multiple


NAMES = LayerNames(
    attn_norm=Name("operator_norm", "attn_norm"),
    q_norm=Name("self_attn.q_layernorm", "attn_q_norm"),
    k_norm=Name("self_attn.k_layernorm", "attn_k_norm"),
    o=Name("self_attn.out_proj", "attn_output"),
    convolution=Name("conv.conv", "shortconv.conv"),
    state_out=Name("conv.out_proj", "shortconv.out_proj"),
    mlp_norm=Name("ffn_norm", "ffn_norm"),
    gate_up=(Name("feed_forward.w1", "ffn_gate"), Name("feed_forward.w3", "ffn_up")),
    down=Name("feed_forward.w2", "ffn_down"),
)
OUTER_NAMES = ModelNames(norm=Name("model.embedding_norm", "token_embd_norm"))
FAMILY = Family(
    name="lfm2",
    architectures=("Lfm2ForCausalLM",),
    read=read,
    unsaid=sizes(65_536, 2560, 12_288, 32, 32, 128_000),
    names=NAMES,
    outer_names=OUTER_NAMES,
    gguf="lfm2",
    gguf_words=convolving_words,
    gguf_reads=(GGUF_REACH,),
    gguf_by_layer=(GGUF_KV,),
)
