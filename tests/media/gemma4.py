"""Tiny models of Gemma 4 that see."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from PIL import Image

from tests.media.seeing import CLIP, Seeing, processed
from tests.media.tiny import FIRST_ADDED, TEXT

EMBEDDED = "hidden_size_per_layer_input"
SIZES: dict[str, Any] = {
    **TEXT,
    "num_hidden_layers": 4,
    "head_dim": 8,
    "global_head_dim": 16,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 90,
    EMBEDDED: 0,
    "pad_token_id": 0,
}
NAMES = ("image_token_id", "boi_token_id", "eoi_token_id", "audio_token_id", "video_token_id")
TOKENS = {name: FIRST_ADDED + i for i, name in enumerate(NAMES)}


def gemma4(**text: Any) -> Any:
    """With embeddings for single layers and keys of others, or with tokens that see each other."""
    from transformers import Gemma4Config
    from transformers import Gemma4ForConditionalGeneration as Made

    config = Gemma4Config(
        vision_config={
            **CLIP,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "patch_size": 4,
            "pooling_kernel_size": 2,
            "position_embedding_size": 64,
            "use_clipped_linears": True,
            "standardize": True,
        },
        text_config={**SIZES, **text},
        **TOKENS,
    )
    made = Made(config)
    with torch.no_grad():
        for name, number in made.named_buffers():
            if name.endswith(("_min", "_max")):  # which decide about some numbers
                number.fill_(-0.8 if name.endswith("_min") else 0.9)
    return made


def unified() -> Any:
    """Without an encoder."""
    from transformers import Gemma4UnifiedConfig
    from transformers import Gemma4UnifiedForConditionalGeneration as Made

    config = Gemma4UnifiedConfig(
        vision_config={
            "patch_size": 4,
            "pooling_kernel_size": 2,
            "mm_embed_dim": 32,
            "mm_posemb_size": 80,
            "output_proj_dims": 32,
        },
        text_config={key: value for key, value in SIZES.items() if key != EMBEDDED},
        **TOKENS,
    )
    made = Made(config)
    with torch.no_grad():
        for weight in made.model.embed_vision.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return made


GEMMA4_TOKENS = ["<|image|>", "<|image>", "<image|>"]
POOLED = {"patch_size": 4, "pooling_kernel_size": 2, "max_soft_tokens": 70, "resample": 3}


def unified_inputs(processor: dict[str, Any], images: list[Image.Image]) -> dict[str, Any]:
    """A patch is as large as a square: Transformers' own class cuts larger squares into patches and
    puts them together again, and takes a package that is not always there."""
    side = processor["patch_size"] * processor["pooling_kernel_size"]
    return gemma4_inputs({**processor, "patch_size": side, "pooling_kernel_size": 1}, images)


def gemma4_inputs(processor: dict[str, Any], images: list[Image.Image]) -> dict[str, Any]:
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    made = dict(processed(Gemma4ImageProcessorPil, processor, images))
    return {key: made[key] for key in ("pixel_values", "image_position_ids")}


GEMMA4: dict[str, Seeing] = {
    "gemma4": Seeing(
        partial(
            gemma4,
            hidden_size_per_layer_input=12,
            vocab_size_per_layer_input=TEXT["vocab_size"],
            num_kv_shared_layers=2,
        ),
        GEMMA4_TOKENS,
        POOLED,
        gemma4_inputs,
        "<|image|>",
        typed="mm_token_type_ids",
        blocks=48,
    ),
    "gemma4, both ways": Seeing(
        partial(gemma4, use_bidirectional_attention="vision"),
        GEMMA4_TOKENS,
        POOLED,
        gemma4_inputs,
        "<|image|>",
        typed="mm_token_type_ids",
        blocks=48,
        pass_tokens=80,
    ),
    "gemma4_unified": Seeing(
        unified,
        GEMMA4_TOKENS,
        POOLED,
        unified_inputs,
        "<|image|>",
        typed="mm_token_type_ids",
        blocks=48,
        pass_tokens=80,
    ),
}
