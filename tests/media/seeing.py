"""How tiny models that see are described, and their images prepared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

CLIP = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
}


@dataclass(frozen=True)
class Seeing:
    """How a family is made small, and asked the way Transformers does."""

    make: Callable[[], Any]
    added: Sequence[str]
    processor: dict[str, Any]
    inputs: Callable[[dict[str, Any], list[Image.Image]], dict[str, Any]]  # of `generate`
    placeholder: str = "<image>"
    typed: str = ""  # under which name `generate` is told which tokens are of media
    sizes: tuple[tuple[int, int], ...] = ((90, 70), (60, 120), (56, 56), (31, 200))
    blocks: int = 24  # few, and enough for any of the prompts
    pass_tokens: int = 40  # fewer than an image has, unless these must be computed at once


def processed(made_by: Any, processor: dict[str, Any], images: list[Image.Image]) -> Any:
    kwargs = {k: v for k, v in processor.items() if k != "image_processor_type"}
    return made_by(**kwargs)(images, return_tensors="pt")
