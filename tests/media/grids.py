"""Tiny models whose images keep their shapes, as Qwen's do, but whose texts and processors are
their own: GLM's and PaddleOCR-VL."""

from __future__ import annotations

from typing import Any

from PIL import Image

from tests.media.seeing import Seeing, processed
from tests.media.tiny import FIRST_ADDED, TEXT

SHAPED = {"patch_size": 4, "merge_size": 2, "min_pixels": 64, "max_pixels": 2304, "resample": 3}
GLM = [
    *("<|image|>", "<|begin_of_image|>", "<|end_of_image|>"),
    *("<|video|>", "<|begin_of_video|>", "<|end_of_video|>"),
]
GROUPED = {
    "patch_size": 4,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "size": {"shortest_edge": 512, "longest_edge": 4608},
    "resample": 3,
}


def glm(model: str, text: dict[str, Any]) -> Any:
    """Half of each head is turned. `text`: what its text has beside the usual sizes."""
    import transformers

    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 64,
        "image_size": 16,
        "patch_size": 4,
    }
    rope = {"mrope_section": [2, 1, 1], "rope_type": "default", "rope_theta": 1e4}
    turned = {"rope_parameters": {**rope, "partial_rotary_factor": 0.5}}
    sizes = {**TEXT, "hidden_size": 64, "pad_token_id": 0, **turned}
    config = getattr(transformers, f"{model}Config")(
        vision_config=vision,
        text_config={**sizes, **text},
        image_token_id=FIRST_ADDED,
        image_start_token_id=FIRST_ADDED + 1,
        image_end_token_id=FIRST_ADDED + 2,
        video_token_id=FIRST_ADDED + 3,
    )
    return getattr(transformers, f"{model}ForConditionalGeneration")(config)


# Wider than the hidden size would make them.
WIDE_HEADS = {
    "head_dim": 32,
    "rope_parameters": {
        "mrope_section": [2, 3, 3],
        "rope_type": "default",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.5,
    },
}
GLM_EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


def glm_inputs(processor: dict[str, Any], images: list[Image.Image]) -> dict[str, Any]:
    from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil

    return dict(processed(Glm4vImageProcessorPil, processor, images))


def grouped(model: str, **text: Any) -> Seeing:
    return Seeing(
        lambda: glm(model, text),
        GLM,
        GROUPED,
        glm_inputs,
        "<|begin_of_image|><|image|><|end_of_image|>",
        typed="mm_token_type_ids",
        sizes=((90, 70), (60, 120), (5, 40), (31, 200)),  # one is smaller than a token
    )


PADDLE = ["<|IMAGE_PLACEHOLDER|>", "<|IMAGE_START|>", "<|IMAGE_END|>", "<|VIDEO|>"]


def paddleocr_vl() -> Any:
    from transformers import PaddleOCRVLConfig
    from transformers import PaddleOCRVLForConditionalGeneration as Made

    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 4,
    }
    rope = {"mrope_section": [2, 1, 1], "rope_type": "default", "rope_theta": 1e4}
    config = PaddleOCRVLConfig(
        vision_config=vision,
        text_config={**TEXT, "head_dim": 8, "use_bias": True, "rope_parameters": rope},
        image_token_id=FIRST_ADDED,
        vision_start_token_id=FIRST_ADDED + 1,
        vision_end_token_id=FIRST_ADDED + 2,
        video_token_id=FIRST_ADDED + 3,
        tie_word_embeddings=False,
    )
    return Made(config)


def paddle_inputs(processor: dict[str, Any], images: list[Image.Image]) -> dict[str, Any]:
    from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import (
        PaddleOCRVLImageProcessorPil,
    )

    return dict(processed(PaddleOCRVLImageProcessorPil, processor, images))


GRIDS: dict[str, Seeing] = {
    "glm4v": grouped("Glm4v"),
    "glm4v_moe": grouped("Glm4vMoe", **GLM_EXPERTS),
    "glm46v": grouped("Glm46V", model_type="glm4v_moe_text", **GLM_EXPERTS),
    "glm_ocr": grouped("GlmOcr", **WIDE_HEADS),
    "paddleocr_vl": Seeing(
        paddleocr_vl,
        PADDLE,
        SHAPED,
        paddle_inputs,
        "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>",
        typed="mm_token_type_ids",
        sizes=((90, 70), (60, 120), (5, 40), (31, 200)),  # one is smaller than a token
    ),
}
