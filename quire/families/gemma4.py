"""The text model of Gemma 4: layers with a window, and between them layers without one, which have
larger heads, fewer KV heads and a rope on a quarter of their pairs. Values are normed, and may be
the keys; the last layers may read keys and values of earlier ones; experts may stand beside the
feed-forward; each layer may have embeddings of its own. No torch."""

from __future__ import annotations

from functools import partial
from typing import Any

from quire.families import by_kind
from quire.families.by_kind import FULL, SLIDING
from quire.families.family import Family, LayerNames, Name, sizes
from quire.families.fields import Fields
from quire.families.mixtures import read_beside
from quire.families.reading import read_biases, read_decoder, read_window
from quire.layer_plan import (
    Activation,
    AttentionPlan,
    EmbeddingBranchPlan,
    LayerPlan,
    MlpPlan,
    NormPlan,
)
from quire.spec import LayerEmbeddingsPlan, Layers, LogitsPlan, ModelSpec

ACTIVATION: Activation = "gelu_tanh"
NAMES = LayerNames(
    mlp_norm=Name("pre_feedforward_layernorm", "ffn_norm"),
    router=Name("router.proj", "ffn_gate_inp"),
    expert_stacks=("experts.gate_up_proj", "experts.down_proj"),
)
READS = ("per_layer_config",)
ONLY: dict[str, tuple[Any, ...]] = {
    "hidden_activation": ("gelu_pytorch_tanh",),
    "use_bidirectional_attention": (None, "vision"),
}


def read(
    fields: Fields, *, window: int, embedding_width: int, two_way: Layers = "windowed"
) -> ModelSpec:
    """`window` and `embedding_width` are defaults."""
    norm = NormPlan(fields.positive("rms_norm_eps", 1e-6), rounds_last=True)
    kinds, has_experts = by_kind.kinds_of(fields), fields.flag("enable_moe_block", False)
    heads = by_kind.read_kind_heads(fields, kinds, kv_heads=4, head_dim=256, full_head_dim=512)
    windows = {SLIDING: read_window(fields, window), FULL: None}
    width = fields.whole("hidden_size_per_layer_input", embedding_width)
    ropes = by_kind.read_kind_ropes(fields, heads)
    wide, inner = fields.flag("use_double_wide_mlp", False), fields.count("intermediate_size")
    layers = []
    for index, kind in enumerate(kinds):
        source = by_kind.kv_source(fields, kinds, index)
        attention = AttentionPlan(
            *(heads[kind].heads, heads[kind].kv_heads, heads[kind].head_dim, 1.0),
            ropes[kind].rope,
            windows[kind],
            qk_norm=norm,
            kv_from=source,
            values_are_keys=kind == FULL and fields.flag("attention_k_eq_v", False),
            value_norm=norm.eps,
            **read_biases(fields),
        )
        mlp = MlpPlan(2 * inner if wide and source is not None else inner, ACTIVATION)
        beside = read_beside(fields, norm, ACTIVATION) if has_experts else None
        branch = EmbeddingBranchPlan(width, ACTIVATION) if width else None
        more: dict[str, Any] = {"beside": beside, "embedding": branch, "is_scaled": True}
        layers.append(LayerPlan(attention, mlp, norm, "both", **more))
    rows, blank = (
        fields.count("vocab_size_per_layer_input", 262_144),
        fields.whole("pad_token_id", 0),
    )
    return read_decoder(
        fields,
        layers,
        max_len=ropes[FULL].max_len,
        tied_embeddings=fields.flag("tie_word_embeddings", True),
        two_way=two_way,
        embedding_scale=fields.count("hidden_size") ** 0.5,
        layer_embeddings=LayerEmbeddingsPlan(rows, width, norm, blank) if width else None,
        logits=LogitsPlan(softcap=fields.optional("final_logit_softcapping")),
    )


FAMILY = Family(
    name="gemma4",
    architectures=("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
    model_types=("gemma4_text", "gemma4"),
    read=partial(read, window=512, embedding_width=256),
    unsaid=sizes(262_144, 2304, 9216, 30, 8, 131_072),
    gguf="gemma4",
    gguf_merged="gemma4",
    **by_kind.IN_GGUF,
    names=NAMES,
    reads=READS,
    only=ONLY,
)
