"""The text model of Gemma 3n: several streams, of which layers compute one; windows and ropes by
kind of layer; normed values, feed-forwards with a cutoff, keys and values of earlier layers in the
last ones, and embeddings for single layers. No torch."""

from __future__ import annotations

from quire.families import streams
from quire.families.by_kind import kv_source
from quire.families.family import Family, LayerNames, Name, sizes
from quire.families.fields import Fields
from quire.families.reading import (
    read_biases,
    read_decoder,
    read_heads,
    read_window,
    windows_in_turn,
)
from quire.families.rope_config import read_ropes_by_kind
from quire.families.sparse import read_sparse
from quire.layer_plan import (
    Activation,
    AttentionPlan,
    EmbeddingBranchPlan,
    LayerPlan,
    NormPlan,
)
from quire.spec import LayerEmbeddingsPlan, LogitsPlan, ModelSpec

ACTIVATION: Activation = "gelu_tanh"
FULL, SLIDING = "full_attention", "sliding_attention"
PERIOD = 5  # one layer in each period has no window: its last
THETAS = {FULL: 1e6, SLIDING: 1e4}  # defaults


def read(fields: Fields) -> ModelSpec:
    norm = NormPlan(fields.positive("rms_norm_eps", 1e-6), rounds_last=True)
    heads = read_heads(fields, kv_heads=2, head_dim=256)
    local = fields.positive("rope_local_base_freq", THETAS[SLIDING])
    thetas = THETAS | {SLIDING: local}
    ropes = read_ropes_by_kind(fields, heads.head_dim, thetas, scaled=FULL)
    windows = windows_in_turn(fields, read_window(fields, 512), PERIOD)
    kinds = [FULL if window is None else SLIDING for window in windows]
    width = fields.count("hidden_size_per_layer_input", 256)
    branch, layers = EmbeddingBranchPlan(width, ACTIVATION), []
    for index, mlp in enumerate(read_sparse(fields, ACTIVATION)):
        attention = AttentionPlan(
            *(heads.heads, heads.kv_heads, heads.head_dim, 1.0),
            ropes[kinds[index]].rope,
            windows[index],
            qk_norm=norm,
            kv_from=kv_source(fields, kinds, index),
            value_norm=norm.eps,
            **read_biases(fields),
        )
        layers.append(LayerPlan(attention, mlp, norm, "both", embedding=branch))
    rows = fields.count("vocab_size_per_layer_input", 262_144)
    return read_decoder(
        fields,
        layers,
        max_len=ropes[FULL].max_len,
        tied_embeddings=fields.flag("tie_word_embeddings", True),
        embedding_scale=fields.count("hidden_size") ** 0.5,
        layer_embeddings=LayerEmbeddingsPlan(rows, width, norm),
        streams=streams.read_streams(fields),
        logits=LogitsPlan(softcap=fields.optional("final_logit_softcapping")),
    )


FAMILY = Family(
    name="gemma3n",
    architectures=("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"),
    model_types=("gemma3n_text", "gemma3n"),
    read=read,
    unsaid={
        **sizes(262_400, 2048, 16_384, 35, 8, 32_768),
        "final_logit_softcapping": 30.0,
        "num_kv_shared_layers": 15,
    },
    gguf="gemma3n",
    **streams.IN_GGUF,
    names=LayerNames(mlp_norm=Name("pre_feedforward_layernorm", "ffn_norm")),
    without_effect={"altup_coef_clip": "training"},
    only={"hidden_activation": ("gelu_pytorch_tanh",), "altup_correct_scale": (True,)},
)
