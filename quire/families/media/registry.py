"""The families that see or hear: a line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.families.media import (
    clips,
    gemma3,
    idefics3,
    internvl,
    llava,
    llava_next,
    pixtral,
    qwen_videos,
    whisper,
)
from quire.families.media.family import MediaFamily
from quire.families.media.foreign import foreign_family

FAMILIES: tuple[MediaFamily, ...] = (
    pixtral.LLAVA,
    llava.FAMILY,
    llava_next.FAMILY,
    llava_next.ONEVISION,
    idefics3.FAMILY,
    idefics3.SMOLVLM,
    *qwen_videos.FAMILIES,
    clips.QWEN2_AUDIO,
    clips.VOXTRAL,
    whisper.FAMILY,
    gemma3.FAMILY,
    pixtral.MISTRAL3,
    internvl.FAMILY,
)


def media_family(config: Mapping[str, Any]) -> MediaFamily | None:
    """The family of a config that sees or hears, None for one that does neither. One that no file
    here is about may be read by Transformers."""
    named, vision = config.get("architectures"), config.get("vision_config")
    names = named if isinstance(named, list) else []
    tower = vision.get("model_type") if isinstance(vision, Mapping) else None
    found = (
        family
        for name in names
        for family in FAMILIES
        if name in family.architectures and family.tower in ("", tower)
    )
    return next(found, None) or foreign_family(config)
