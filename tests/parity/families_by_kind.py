"""Tiny configs of families whose layers have other heads, or more parts, than their neighbours."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig
from transformers.models.gemma3n import Gemma3nTextConfig
from transformers.models.gemma4 import Gemma4TextConfig
from transformers.models.gemma4_unified import Gemma4UnifiedTextConfig

from tests.parity.families import SIZES

_WINDOWED, _FULL = "sliding_attention", "full_attention"
# Two periods of a window in two of three layers.
GEMMA4: dict[str, Any] = {
    **SIZES,
    "initializer_range": 0.1,
    "num_hidden_layers": 6,
    "layer_types": [_WINDOWED, _WINDOWED, _FULL] * 2,
    "sliding_window": 9,
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 0,
    "pad_token_id": 0,
}
EMBEDDED: dict[str, Any] = {"hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": 96}
PARTLY = {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 900.0}
GEMMA3N: dict[str, Any] = {
    **{key: value for key, value in GEMMA4.items() if key != "global_head_dim"},
    "hidden_size_per_layer_input": 12,
    "vocab_size_per_layer_input": 96,
    "laurel_rank": 10,
    "num_kv_shared_layers": 3,
    "activation_sparsity_pattern": [0.8, 0.0, 0.3, 0.0, 0.95, 0.0],
}
BY_KIND: dict[str, PretrainedConfig] = {
    "gemma3n": Gemma3nTextConfig(**GEMMA3N),
    "gemma3n, embeddings of fewer tokens": Gemma3nTextConfig(
        **{**GEMMA3N, "vocab_size_per_layer_input": 90}
    ),
    "gemma3n, widths by layer, three streams, every bias, untied, other ropes": Gemma3nTextConfig(
        **{
            **GEMMA3N,
            "tie_word_embeddings": False,
            "num_kv_shared_layers": 0,
            "hidden_size_per_layer_input": 8,
            "intermediate_size": [48, 80, 64, 96, 32, 80],
        },
        altup_num_inputs=3,
        altup_active_idx=1,
        attention_bias=True,
        final_logit_softcapping=2.0,
        rope_parameters={
            _WINDOWED: {"rope_type": "linear", "factor": 3.0, "rope_theta": 300.0},
            _FULL: {"rope_type": "linear", "factor": 2.0, "rope_theta": 900.0},
        },
    ),
    # Keys of three layers without a window fit where one with a window has its own.
    "gemma4, values are keys": Gemma4TextConfig(
        **{**GEMMA4, "num_key_value_heads": 6},
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        use_bidirectional_attention="vision",
    ),
    # And the other way round.
    "gemma4, embeddings of layers, keys of others, wider": Gemma4TextConfig(
        **{**GEMMA4, **EMBEDDED, "num_key_value_heads": 1},
        num_kv_shared_layers=3,
        use_double_wide_mlp=True,
        final_logit_softcapping=5.0,
    ),
    "gemma4, experts, every bias, untied, other ropes": Gemma4TextConfig(
        **{**GEMMA4, "tie_word_embeddings": False},
        enable_moe_block=True,
        num_experts=8,
        top_k_experts=3,
        moe_intermediate_size=32,
        attention_bias=True,
        rope_parameters={
            _WINDOWED: {"rope_type": "linear", "factor": 3.0, "rope_theta": 300.0},
            _FULL: {**PARTLY, "factor": 2.0},
        },
    ),
    "gemma4, everything": Gemma4TextConfig(
        **{**GEMMA4, **EMBEDDED, "num_key_value_heads": 2},
        num_kv_shared_layers=2,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        enable_moe_block=True,
        num_experts=6,
        top_k_experts=2,
        moe_intermediate_size=24,
        attention_bias=True,
    ),
    "gemma4 unified": Gemma4UnifiedTextConfig(
        **{k: v for k, v in GEMMA4.items() if k != "hidden_size_per_layer_input"},
        num_global_key_value_heads=2,
        attention_k_eq_v=True,
    ),
}
# For devices: scores of such heads are so large that float32 itself is off by 1e-4 in logits.
LARGE_HEADS: dict[str, PretrainedConfig] = {
    "gemma4, heads as large as theirs are": Gemma4TextConfig(
        **{**GEMMA4, **EMBEDDED, "head_dim": 256, "global_head_dim": 512, "num_hidden_layers": 4}
        | {"layer_types": [_WINDOWED, _FULL] * 2},
        num_kv_shared_layers=2,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
    ),
}
