"""Tiny models of each family that sees, and how Transformers prepares images for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from tests.media.tiny import FIRST_ADDED, TEXT

CLIP = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
}
ROWS = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]


@dataclass(frozen=True)
class Seeing:
    """How a family is made small, and asked the way Transformers does."""

    make: Callable[[], Any]
    added: Sequence[str]
    processor: dict[str, Any]
    inputs: Callable[[dict[str, Any], list[Image.Image]], dict[str, Any]]  # of `generate`
    placeholder: str = "<image>"
    typed: bool = False  # `generate` is told which tokens are of media
    sizes: tuple[tuple[int, int], ...] = ((90, 70), (60, 120), (56, 56), (31, 200))


def text_config(**more: Any) -> dict[str, Any]:
    from transformers import LlamaConfig

    return {**LlamaConfig(**{**TEXT, **more}).to_dict()}


def processed(made_by: Any, processor: dict[str, Any], images: list[Image.Image]) -> Any:
    kwargs = {k: v for k, v in processor.items() if k != "image_processor_type"}
    return made_by(**kwargs)(images, return_tensors="pt")


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
SHAPED = {"patch_size": 4, "merge_size": 2, "min_pixels": 64, "max_pixels": 2304, "resample": 3}


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


def qwen3_vl() -> Any:
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
    return qwen("Qwen3VL", vision, rope, head_dim=8)


def qwen_inputs(processor: dict[str, Any], images: list[Image.Image]) -> dict[str, Any]:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
        Qwen2VLImageProcessorPil,
    )

    return dict(processed(Qwen2VLImageProcessorPil, processor, images))


def shaped(make: Callable[[], Any]) -> Seeing:
    here = "<|vision_start|><|image_pad|><|vision_end|>"
    return Seeing(make, VISION, SHAPED, qwen_inputs, here, typed=True)


SEEING: dict[str, Seeing] = {
    "qwen2_vl": shaped(qwen2_vl),
    "qwen2_5_vl": shaped(qwen2_5_vl),
    "qwen3_vl": shaped(qwen3_vl),
    "llava_next": Seeing(llava_next, ["<image>"], NEXT, llava_next_inputs),
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
