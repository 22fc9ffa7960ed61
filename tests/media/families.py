"""Tiny models of each family that sees, and how Transformers prepares images for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PIL import Image

from tests.media.gemma4 import GEMMA4
from tests.media.grids import GRIDS, SHAPED
from tests.media.seeing import CLIP, Seeing, processed
from tests.media.tiny import FIRST_ADDED, TEXT

ROWS = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]


def text_config(**more: Any) -> dict[str, Any]:
    from transformers import LlamaConfig

    return {**LlamaConfig(**{**TEXT, **more}).to_dict()}


def llava_next() -> Any:
    from transformers import LlavaNextConfig
    from transformers import LlavaNextForConditionalGeneration as Made

    config = LlavaNextConfig(
        vision_config={"model_type": "clip_vision_model", **CLIP},
        text_config=text_config(),
        image_token_index=FIRST_ADDED,
        image_grid_pinpoints=NEXT["image_grid_pinpoints"],
    )
    return Made(config)


NEXT = {
    "size": {"shortest_edge": 56},
    "crop_size": {"height": 56, "width": 56},
    "image_grid_pinpoints": [[56, 112], [112, 56], [112, 112], [168, 56], [56, 168]],
    "resample": 3,
}


def llava_next_inputs(processor: dict[str, Any], images: list[Image.Image]) -> dict[str, Any]:
    from transformers.models.llava_next.image_processing_pil_llava_next import (
        LlavaNextImageProcessorPil,
    )

    return dict(processed(LlavaNextImageProcessorPil, processor, images))


def llava_next_on_siglip() -> Any:
    """As Granite Vision is made: rows of several layers of a tower without a class token."""
    from transformers import LlavaNextConfig
    from transformers import LlavaNextForConditionalGeneration as Made

    config = LlavaNextConfig(
        vision_config=SIGLIP,
        text_config={**TEXT, "model_type": "granite"},
        image_token_index=FIRST_ADDED,
        image_grid_pinpoints=NEXT["image_grid_pinpoints"],
        vision_feature_layer=[-3, -1],
        vision_feature_select_strategy="full",
    )
    return Made(config)


def llava_on_siglip() -> Any:
    """As LLaVA-Interleave is made: images are stretched to squares, and every row is kept."""
    from transformers import LlavaConfig
    from transformers import LlavaForConditionalGeneration as Made

    config = LlavaConfig(
        vision_config=SIGLIP,
        text_config={**TEXT, "model_type": "qwen2"},
        image_token_index=FIRST_ADDED,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    return Made(config)


def siglip_inputs(processor: dict[str, Any], images: list[Image.Image]) -> dict[str, Any]:
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    return dict(processed(SiglipImageProcessorPil, processor, images))


def idefics3(model: str) -> Any:
    import transformers

    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 7,
    }
    config = getattr(transformers, f"{model}Config")(
        vision_config=vision,
        text_config=text_config(pad_token_id=0),
        image_token_id=FIRST_ADDED,
        scale_factor=2,
        pad_token_id=0,
    )
    return getattr(transformers, f"{model}ForConditionalGeneration")(config)


TILES = {"size": {"longest_edge": 84}, "max_image_size": {"longest_edge": 28}, "resample": 1}


def idefics3_inputs(processor: dict[str, Any], images: list[Image.Image]) -> dict[str, Any]:
    from transformers.models.idefics3.image_processing_pil_idefics3 import (
        Idefics3ImageProcessorPil,
    )

    return dict(processed(Idefics3ImageProcessorPil, processor, [images]))  # type: ignore[list-item]


VISION = ["<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>"]


def qwen(model: str, vision: dict[str, Any], rope: dict[str, Any], **text: Any) -> Any:
    import transformers

    config = getattr(transformers, f"{model}Config")(
        vision_config={
            "patch_size": 4,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            **vision,
        },
        text_config={
            **TEXT,
            "rope_parameters": {"rope_theta": 1e4, "rope_type": "default", **rope},
            **text,
        },
        image_token_id=FIRST_ADDED,
        vision_start_token_id=FIRST_ADDED + 1,
        vision_end_token_id=FIRST_ADDED + 2,
        video_token_id=FIRST_ADDED + 3,
    )
    return getattr(transformers, f"{model}ForConditionalGeneration")(config)


def qwen2_5_vl() -> Any:
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 32,
        "window_size": 16,
        "fullatt_block_indexes": [1],
    }
    return qwen("Qwen2_5_VL", vision, {"mrope_section": [2, 1, 1]})


def qwen2_vl() -> Any:
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2}
    return qwen("Qwen2VL", vision, {"mrope_section": [2, 1, 1]})


def qwen3_vl(kind: str = "", **experts: Any) -> Any:
    vision = {
        "depth": 3,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 32,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0, 1],
    }
    rope = {"mrope_section": [2, 1, 1], "mrope_interleaved": True}
    return qwen(f"Qwen3VL{kind}", vision, rope, head_dim=8, **experts)


def qwen3_vl_moe() -> Any:
    return qwen3_vl("Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24)


def qwen3_5(kind: str = "", **experts: Any) -> Any:
    """Layers that keep a state among those that attend, of whose heads a half is turned."""
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 32,
        "num_position_embeddings": 16,
    }
    rope = {"mrope_section": [2, 1, 1], "mrope_interleaved": True, "partial_rotary_factor": 0.5}
    state = {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    }
    layers = ["linear_attention", "full_attention"] * 2
    more = {"head_dim": 16, "num_hidden_layers": 4, "layer_types": layers, **state, **experts}
    return qwen(f"Qwen3_5{kind}", vision, rope, **more)


def qwen3_5_moe() -> Any:
    size = {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
    return qwen3_5("Moe", num_experts=4, num_experts_per_tok=2, **size)


def qwen_inputs(processor: dict[str, Any], images: list[Image.Image]) -> dict[str, Any]:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
        Qwen2VLImageProcessorPil,
    )

    return dict(processed(Qwen2VLImageProcessorPil, processor, images))


def shaped(make: Callable[[], Any]) -> Seeing:
    here = "<|vision_start|><|image_pad|><|vision_end|>"
    return Seeing(make, VISION, SHAPED, qwen_inputs, here, typed="mm_token_type_ids")


SIGLIP = {**CLIP, "model_type": "siglip_vision_model", "vision_use_head": False}


def gemma3() -> Any:
    from transformers import Gemma3Config
    from transformers import Gemma3ForConditionalGeneration as Made

    config = Gemma3Config(
        vision_config={**SIGLIP, "patch_size": 7},
        text_config={
            **TEXT,
            "num_hidden_layers": 4,
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": 10,
        },
        image_token_index=FIRST_ADDED,
        boi_token_index=FIRST_ADDED + 1,
        eoi_token_index=FIRST_ADDED + 2,
        mm_tokens_per_image=16,
    )
    return Made(config)


SQUARES = {"size": {"height": 56, "width": 56}, "resample": 2}


def gemma3_inputs(processor: dict[str, Any], images: list[Image.Image]) -> dict[str, Any]:
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    made = dict(processed(Gemma3ImageProcessorPil, processor, images))
    return {"pixel_values": made["pixel_values"]}


PIXTRAL = {
    "model_type": "pixtral",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "head_dim": 16,
    "image_size": 56,
    "patch_size": 7,
}
LINED = {"size": {"longest_edge": 56}, "patch_size": {"height": 7, "width": 7}, "resample": 3}
MERGED = {**LINED, "patch_size": {"height": 14, "width": 14}}
LINES = ["[IMG]", "[IMG_BREAK]", "[IMG_END]"]


def pixtral() -> Any:
    from transformers import LlavaConfig
    from transformers import LlavaForConditionalGeneration as Made

    text = {**text_config(), "model_type": "mistral"}
    config = LlavaConfig(
        vision_config=PIXTRAL,
        text_config=text,
        image_token_index=FIRST_ADDED,
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
    )
    return Made(config)


def mistral3() -> Any:
    from transformers import Mistral3Config
    from transformers import Mistral3ForConditionalGeneration as Made

    text = {**TEXT, "model_type": "mistral", "head_dim": 8, "tie_word_embeddings": False}
    config = Mistral3Config(
        vision_config=PIXTRAL,
        text_config=text,
        image_token_index=FIRST_ADDED,
        tie_word_embeddings=False,
    )
    return Made(config)


def pixtral_inputs(processor: dict[str, Any], images: list[Image.Image]) -> dict[str, Any]:
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    return dict(processed(PixtralImageProcessorPil, processor, images))


def internvl() -> Any:
    from transformers import InternVLConfig
    from transformers import InternVLForConditionalGeneration as Made

    config = InternVLConfig(
        vision_config={
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": [28, 28],
            "patch_size": [7, 7],
        },
        text_config={**TEXT, "model_type": "qwen2", "tie_word_embeddings": False},
        image_token_id=FIRST_ADDED,
        image_seq_length=4,
        tie_word_embeddings=False,
    )
    return Made(config)


STRETCHED = {"size": {"height": 28, "width": 28}, "max_patches": 6, "resample": 3}


def internvl_inputs(processor: dict[str, Any], images: list[Image.Image]) -> dict[str, Any]:
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    processor = {**processor, "crop_to_patches": True}
    return {"pixel_values": processed(GotOcr2ImageProcessorPil, processor, images)["pixel_values"]}


def onevision() -> Any:
    from transformers import LlavaOnevisionConfig
    from transformers import LlavaOnevisionForConditionalGeneration as Made

    config = LlavaOnevisionConfig(
        vision_config=SIGLIP,
        text_config={**TEXT, "model_type": "qwen2", "tie_word_embeddings": False},
        image_token_index=FIRST_ADDED,
        video_token_index=FIRST_ADDED + 1,
        image_grid_pinpoints=ONE["image_grid_pinpoints"],
        vision_aspect_ratio="anyres_max_2",
    )
    return Made(config)


ONE = {
    "size": {"height": 56, "width": 56},
    "image_grid_pinpoints": [[high, wide] for high in (56, 112, 168) for wide in (56, 112, 168)],
    "resample": 3,
}


def onevision_inputs(processor: dict[str, Any], images: list[Image.Image]) -> dict[str, Any]:
    from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
        LlavaOnevisionImageProcessorPil,
    )

    nested: Any = [images]
    return dict(processed(LlavaOnevisionImageProcessorPil, processor, nested))


SEEING: dict[str, Seeing] = {
    "gemma3": Seeing(
        gemma3,
        ["<image_soft_token>", "<start_of_image>", "<end_of_image>"],
        SQUARES,
        gemma3_inputs,
        "<start_of_image>",
        typed="token_type_ids",
    ),
    **GEMMA4,
    "pixtral": Seeing(pixtral, LINES, LINED, pixtral_inputs, "[IMG]"),
    "mistral3": Seeing(mistral3, LINES, MERGED, pixtral_inputs, "[IMG]"),
    "internvl": Seeing(
        internvl,
        ["<IMG_CONTEXT>", "<img>", "</img>"],
        STRETCHED,
        internvl_inputs,
        "<IMG_CONTEXT>",
    ),
    "llava_onevision": Seeing(onevision, ["<image>", "<video>"], ONE, onevision_inputs),
    "qwen2_vl": shaped(qwen2_vl),
    "qwen2_5_vl": shaped(qwen2_5_vl),
    "qwen3_vl": shaped(qwen3_vl),
    "qwen3_vl_moe": shaped(qwen3_vl_moe),
    "qwen3_5": shaped(qwen3_5),
    "qwen3_5_moe": shaped(qwen3_5_moe),
    **GRIDS,
    "llava_next": Seeing(llava_next, ["<image>"], NEXT, llava_next_inputs),
    "llava_next_on_siglip": Seeing(
        llava_next_on_siglip,
        ["<image>"],
        {**NEXT, "size": {"height": 56, "width": 56}},
        llava_next_inputs,
    ),
    "llava_on_siglip": Seeing(
        llava_on_siglip,
        ["<image>"],
        {**SQUARES, "image_processor_type": "SiglipImageProcessor"},
        siglip_inputs,
    ),
    "idefics3": Seeing(
        lambda: idefics3("Idefics3"),
        ["<image>", "<fake_token_around_image>", "<global-img>", *ROWS],
        TILES,
        idefics3_inputs,
    ),
    "smolvlm": Seeing(
        lambda: idefics3("SmolVLM"),
        ["<image>", "<fake_token_around_image>", "<global-img>", *ROWS],
        TILES,
        idefics3_inputs,
    ),
}
