"""The text model of Gemma 4 where no encoder is beside it: without experts and without embeddings
for single layers. No torch."""

from __future__ import annotations

from functools import partial

from quire.families.family import Family, sizes
from quire.families.gemma4 import NAMES, ONLY, READS, read

FAMILY = Family(
    name="gemma4_unified",
    architectures=("Gemma4UnifiedForCausalLM", "Gemma4UnifiedForConditionalGeneration"),
    model_types=("gemma4_unified_text", "gemma4_unified"),
    read=partial(read, window=1024, embedding_width=0, two_way="all"),
    unsaid=sizes(262_144, 2304, 9216, 30, 8, 262_144),
    names=NAMES,
    reads=READS,
    only={**ONLY, "hidden_size_per_layer_input": (0,), "enable_moe_block": (False,)},
)
