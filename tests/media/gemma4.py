"""Tiny models of Gemma 4 that see."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from PIL import Image

from tests.media.seeing import CLIP, Seeing, processed
from tests.media.tiny import FIRST_ADDED, TEXT


def gemma4(**text: Any) -> Any:
    """With embeddings for single layers and keys of others, or with tokens that see each other."""
    from transformers import Gemma4Config
    from transformers import Gemma4ForConditionalGeneration as Made

    kinds = ["sliding_attention", "full_attention"] * 2
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
        text_config={
            **TEXT,
            "num_hidden_layers": 4,
            "head_dim": 8,
            "global_head_dim": 16,
            "layer_types": kinds,
            "sliding_window": 90,
            "hidden_size_per_layer_input": 0,
            "pad_token_id": 0,
            **text,
        },
        image_token_id=FIRST_ADDED,
        boi_token_id=FIRST_ADDED + 1,
        eoi_token_id=FIRST_ADDED + 2,
        audio_token_id=FIRST_ADDED + 3,
        video_token_id=FIRST_ADDED + 4,
    )
    made = Made(config)
    with torch.no_grad():
        for name, number in made.named_buffers():
            if name.endswith(("_min", "_max")):  # which decide about some numbers
                number.fill_(-0.8 if name.endswith("_min") else 0.9)
    return made


GEMMA4_TOKENS = ["<|image|>", "<|image>", "<image|>"]
POOLED = {"patch_size": 4, "pooling_kernel_size": 2, "max_soft_tokens": 70, "resample": 3}


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
    ),
}
