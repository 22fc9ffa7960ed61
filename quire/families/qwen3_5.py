"""The text model of Qwen3.5: three layers of Gated DeltaNet to one of attention with an output
gate, norms of 1 + w, rope on a quarter of each head. No torch."""

from __future__ import annotations

from functools import partial

from quire.families.axes import read_with_axes
from quire.families.family import Family, LayerNames, sizes
from quire.families.fields import Fields
from quire.families.hybrids import GGUF_READS, MLP_NORM, SECTIONS, hybrid_words, read_hybrid
from quire.layer_plan import MlpPlan
from quire.spec import ModelSpec


def read_text(fields: Fields) -> ModelSpec:
    mlp = MlpPlan(fields.count("intermediate_size", 12288))
    return read_hybrid(fields, kv_heads=4, mlp=mlp)


FAMILY = Family(
    name="qwen3_5",
    architectures=("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
    model_types=("qwen3_5_text", "qwen3_5"),
    read=partial(read_with_axes, read=read_text, unsaid=SECTIONS, interleaved=True),
    unsaid=sizes(248_320, 4096, 12_288, 32, 16, 32_768),
    gguf="qwen35",
    gguf_words=partial(hybrid_words, in_turn=True),
    gguf_reads=GGUF_READS,
    partial_rotary=True,
    names=LayerNames(mlp_norm=MLP_NORM),
)
