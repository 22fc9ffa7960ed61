"""Tiny configs of families that differ by names and parts, and random models of them.

Every parameter and buffer is random, so that no zero bias, unit norm or factor of 1 hides a part
left out.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.models.cohere import CohereConfig
from transformers.models.cohere2 import Cohere2Config
from transformers.models.deepseek_v2 import DeepseekV2Config
from transformers.models.deepseek_v3 import DeepseekV3Config
from transformers.models.falcon import FalconConfig
from transformers.models.gemma import GemmaConfig
from transformers.models.gemma2 import Gemma2Config
from transformers.models.glm import GlmConfig
from transformers.models.glm4 import Glm4Config
from transformers.models.glm4_moe import Glm4MoeConfig
from transformers.models.glm4_moe_lite import Glm4MoeLiteConfig
from transformers.models.gpt2 import GPT2Config
from transformers.models.gpt_neox import GPTNeoXConfig
from transformers.models.gpt_oss import GptOssConfig
from transformers.models.granite import GraniteConfig
from transformers.models.granitemoe import GraniteMoeConfig
from transformers.models.ministral3 import Ministral3Config
from transformers.models.mixtral import MixtralConfig
from transformers.models.olmo2 import Olmo2Config
from transformers.models.olmo3 import Olmo3Config
from transformers.models.olmoe import OlmoeConfig
from transformers.models.opt import OPTConfig
from transformers.models.qwen2_moe import Qwen2MoeConfig
from transformers.models.qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5_moe import Qwen3_5MoeTextConfig
from transformers.models.qwen3_moe import Qwen3MoeConfig
from transformers.models.qwen3_next import Qwen3NextConfig
from transformers.models.smollm3 import SmolLM3Config
from transformers.models.stablelm import StableLmConfig
from transformers.models.starcoder2 import Starcoder2Config

from tests.parity.families import LINEAR, SIZES, YARN

BY_HIDDEN = {key: value for key, value in SIZES.items() if key != "head_dim"} | {"hidden_size": 96}
EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
# Two periods of a window in every second layer.
GEMMA2: dict[str, Any] = {
    **SIZES,
    "num_hidden_layers": 4,
    "sliding_window": 9,
    "query_pre_attn_scalar": 20,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 5.0,
}
GPT_OSS: dict[str, Any] = {
    **SIZES,
    "num_hidden_layers": 4,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "sliding_window": 9,
    "rope_parameters": {**YARN, "truncate": False},
}
# Two periods; a state of 360 numbers in a layer, and room for 512 in a block of 4 tokens.
HYBRID: dict[str, Any] = {
    **SIZES,
    "head_dim": 32,
    "initializer_range": 0.05,
    "num_hidden_layers": 6,
    "full_attention_interval": 3,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 6,
}
HYBRID_EXPERTS = {**EXPERTS, "shared_expert_intermediate_size": 40}
GPT2: dict[str, Any] = {"vocab_size": 96, "n_embd": 96, "n_layer": 3, "n_head": 6}
GPT2 |= {"n_positions": 256}
NEOX = {key: value for key, value in BY_HIDDEN.items() if not key.startswith(("num_key", "rms"))}
FALCON = {key: value for key, value in NEOX.items() if key != "intermediate_size"}
GROWING: dict[str, Any] = {**YARN, "llama_4_scaling_beta": 0.3, "mscale": 1.0}
ROUTED: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.7,
    "first_k_dense_replace": 1,
}
MORE: dict[str, PretrainedConfig] = {
    "gemma": GemmaConfig(**SIZES),
    "gemma, every bias, untied, linear rope": GemmaConfig(
        **SIZES, attention_bias=True, tie_word_embeddings=False, rope_parameters=LINEAR
    ),
    "gemma2": Gemma2Config(**GEMMA2, layer_types=None),
    "gemma2, no softcaps, every bias, untied, linear rope": Gemma2Config(
        **{**GEMMA2, "attn_logit_softcapping": None, "final_logit_softcapping": None},
        attention_bias=True,
        tie_word_embeddings=False,
        rope_parameters=LINEAR,
    ),
    "olmo3": Olmo3Config(
        **{**BY_HIDDEN, "num_hidden_layers": 5},
        sliding_window=9,
        rope_parameters={
            "full_attention": YARN,
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        },
    ),
    "olmo3, every bias, one kind of layer": Olmo3Config(
        **BY_HIDDEN, attention_bias=True, layer_types=["full_attention"] * 3
    ),
    "gpt2": GPT2Config(**GPT2),
    "gpt2, wide, unscaled, untied, relu": GPT2Config(
        **GPT2,
        n_inner=70,
        scale_attn_weights=False,
        tie_word_embeddings=False,
        activation_function="relu",
    ),
    "gpt neox": GPTNeoXConfig(**NEOX),
    "gpt neox, branches in turn, no attention bias, all turned": GPTNeoXConfig(
        **NEOX,
        use_parallel_residual=False,
        attention_bias=False,
        hidden_act="gelu_fast",
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 99.0, "partial_rotary_factor": 1.0},
    ),
    "falcon, one kv head": FalconConfig(**FALCON),
    "falcon, newer": FalconConfig(
        **FALCON, new_decoder_architecture=True, num_kv_heads=2, bias=True, ffn_hidden_size=70
    ),
    "falcon, newer, one norm, untied": FalconConfig(
        **FALCON,
        new_decoder_architecture=True,
        num_kv_heads=3,
        num_ln_in_parallel_attn=1,
        tie_word_embeddings=False,
    ),
    "falcon, older": FalconConfig(**FALCON, multi_query=False, parallel_attn=False, bias=True),
    "ministral3": Ministral3Config(**SIZES, rope_parameters=GROWING),
    "ministral3, window, tied": Ministral3Config(
        **SIZES, sliding_window=9, tie_word_embeddings=True, rope_parameters=GROWING
    ),
    "glm4 moe": Glm4MoeConfig(**SIZES, **ROUTED),
    "glm4 moe, groups, norms, every bias": Glm4MoeConfig(
        **{**SIZES, **ROUTED, "n_routed_experts": 12, "first_k_dense_replace": 0},
        n_group=4,
        topk_group=2,
        norm_topk_prob=False,
        use_qk_norm=True,
        attention_bias=True,
    ),
    "granite moe, every factor and bias": GraniteMoeConfig(
        **BY_HIDDEN,
        num_local_experts=8,
        num_experts_per_tok=3,
        attention_multiplier=0.3,
        residual_multiplier=0.7,
        embedding_multiplier=3.0,
        logits_scaling=2.5,
        attention_bias=True,
    ),
    "gpt oss": GptOssConfig(**GPT_OSS),
    "gpt oss, no attention bias, tied, default rope": GptOssConfig(
        **{**GPT_OSS, "rope_parameters": {"rope_type": "default", "rope_theta": 300.0}},
        attention_bias=False,
        tie_word_embeddings=True,
    ),
    "qwen3 moe": Qwen3MoeConfig(**SIZES, **EXPERTS),
    "qwen3 moe, renormalised, some layers dense, window": Qwen3MoeConfig(
        **{**SIZES, "num_hidden_layers": 4},
        **EXPERTS,
        norm_topk_prob=True,
        mlp_only_layers=[1],
        use_sliding_window=True,
        sliding_window=9,
        attention_bias=True,
    ),
    "qwen2 moe": Qwen2MoeConfig(**BY_HIDDEN, **EXPERTS, shared_expert_intermediate_size=48),
    "qwen2 moe, every second layer, windows": Qwen2MoeConfig(
        **{**BY_HIDDEN, "num_hidden_layers": 4},
        **EXPERTS,
        shared_expert_intermediate_size=40,
        decoder_sparse_step=2,
        use_sliding_window=True,
        sliding_window=7,
        max_window_layers=3,
        norm_topk_prob=True,
        qkv_bias=False,
    ),
    "mixtral": MixtralConfig(**SIZES, num_local_experts=6, num_experts_per_tok=2),
    "mixtral, window": MixtralConfig(**SIZES, num_local_experts=4, sliding_window=9),
    "olmoe": OlmoeConfig(**BY_HIDDEN, num_experts=8, num_experts_per_tok=3),
    "olmoe, renormalised, every bias": OlmoeConfig(
        **BY_HIDDEN, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True, attention_bias=True
    ),
    "qwen3_next": Qwen3NextConfig(**HYBRID, **HYBRID_EXPERTS),
    "qwen3_next, dense layers, every bias, reach of 3": Qwen3NextConfig(
        **{**HYBRID, "full_attention_interval": 2, "num_hidden_layers": 5},
        **HYBRID_EXPERTS,
        norm_topk_prob=False,
        mlp_only_layers=[1],
        decoder_sparse_step=2,
        attention_bias=True,
        linear_conv_kernel_dim=3,
        rope_parameters={**YARN, "partial_rotary_factor": 0.5},
        tie_word_embeddings=True,
    ),
    "qwen3_5": Qwen3_5TextConfig(**HYBRID),
    "qwen3_5, as many keys as values, attending twice": Qwen3_5TextConfig(
        **{**HYBRID, "linear_num_key_heads": 4, "linear_key_head_dim": 6},
        layer_types=[
            *("full_attention", "linear_attention", "linear_attention"),
            *("linear_attention", "linear_attention", "full_attention"),
        ],
        attention_bias=True,
        tie_word_embeddings=True,
    ),
    "qwen3_5_moe": Qwen3_5MoeTextConfig(
        **{key: value for key, value in HYBRID.items() if key != "intermediate_size"},
        **HYBRID_EXPERTS,
    ),
    "granite, every factor and bias": GraniteConfig(
        **BY_HIDDEN,
        attention_multiplier=0.3,
        residual_multiplier=0.7,
        embedding_multiplier=3.0,
        logits_scaling=2.5,
        attention_bias=True,
        mlp_bias=True,
    ),
    "granite, tied, linear rope": GraniteConfig(
        **BY_HIDDEN, attention_multiplier=0.25, tie_word_embeddings=True, rope_parameters=LINEAR
    ),
    "olmo2": Olmo2Config(**BY_HIDDEN),
    "olmo2, every bias": Olmo2Config(**BY_HIDDEN, attention_bias=True, rope_parameters=YARN),
    "smollm3": SmolLM3Config(
        **{**BY_HIDDEN, "num_hidden_layers": 5, "pad_token_id": 0}, no_rope_layer_interval=2
    ),
    "smollm3, windows, untied": SmolLM3Config(
        **{**BY_HIDDEN, "num_hidden_layers": 4, "pad_token_id": 0},
        no_rope_layers=[1, 0, 0, 1],
        use_sliding_window=True,
        sliding_window=7,
        tie_word_embeddings=False,
    ),
    "glm": GlmConfig(**SIZES, pad_token_id=0),
    "glm4": Glm4Config(**SIZES, pad_token_id=0),
    "glm4, no bias, all turned": Glm4Config(
        **SIZES,
        pad_token_id=0,
        attention_bias=False,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0},
    ),
    "cohere": CohereConfig(**BY_HIDDEN, logit_scale=0.4, layer_norm_eps=1e-3),
    "cohere, every bias, untied": CohereConfig(
        **BY_HIDDEN, attention_bias=True, tie_word_embeddings=False
    ),
    "cohere2": Cohere2Config(
        **{**BY_HIDDEN, "num_hidden_layers": 5}, sliding_window=9, logit_scale=0.5
    ),
    "stablelm": StableLmConfig(**BY_HIDDEN, use_qkv_bias=True),
    "stablelm, side by side": StableLmConfig(
        **BY_HIDDEN, use_parallel_residual=True, tie_word_embeddings=True
    ),
    "opt": OPTConfig(
        vocab_size=96,
        hidden_size=96,
        word_embed_proj_dim=96,
        ffn_dim=80,
        num_hidden_layers=3,
        num_attention_heads=6,
        max_position_embeddings=256,
    ),
    "starcoder2": Starcoder2Config(**BY_HIDDEN),
    "starcoder2, window, no bias, untied": Starcoder2Config(
        **BY_HIDDEN, sliding_window=9, use_bias=False, tie_word_embeddings=False
    ),
}
LATENT: dict[str, Any] = {
    **{key: value for key, value in SIZES.items() if key != "head_dim"},
    "num_key_value_heads": 6,
    "q_lora_rank": 20,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    **(ROUTED | {"n_routed_experts": 12}),
}
STRETCHED: dict[str, Any] = {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7}
# Keys and values as one row a token.
LATENTS: dict[str, PretrainedConfig] = {
    "deepseek v2, groups, yarn": DeepseekV2Config(
        **LATENT,
        topk_method="group_limited_greedy",
        n_group=4,
        topk_group=2,
        rope_parameters=STRETCHED,
    ),
    "deepseek v2 lite": DeepseekV2Config(**{**LATENT, "q_lora_rank": None}),
    "deepseek v3, groups, yarn": DeepseekV3Config(
        **LATENT, n_group=4, topk_group=2, rope_parameters=STRETCHED
    ),
    "deepseek v3, every bias, halves, no rank, not renormalised": DeepseekV3Config(
        **{**LATENT, "q_lora_rank": None, "first_k_dense_replace": 0},
        n_group=1,
        topk_group=1,
        attention_bias=True,
        rope_interleave=False,
        norm_topk_prob=False,
        tie_word_embeddings=True,
    ),
    "glm4 moe lite, dense in the middle": Glm4MoeLiteConfig(
        **{key: value for key, value in LATENT.items() if key != "first_k_dense_replace"},
        mlp_layer_types=["sparse", "dense", "sparse"],
    ),
}


def random_model(config: PretrainedConfig) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(deepcopy(config), attn_implementation="eager").eval()
    with torch.no_grad():
        for stored in model.state_dict().values():  # buffers, too
            spread = 0.05 if stored.dim() == 2 else 0.2
            stored.add_(torch.randn_like(stored) * spread)
    return model
