"""The families of models that see or hear."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.families.media import (
    clips,
    gemma3,
    gemma4,
    glm4v,
    idefics3,
    internvl,
    llava,
    llava_next,
    paddleocr_vl,
    pixtral,
    qwen_vl,
    whisper,
)
from quire.families.media.family import MediaConfig, MediaFamily
from quire.families.media.rules import MediaRules
from quire.families.registry import BY_MODEL_TYPE, UNSAID_TEXT, family_of

_ENDING = "ForConditionalGeneration"
FAMILIES: tuple[MediaFamily, ...] = (
    pixtral.LLAVA,
    llava.FAMILY,
    llava_next.FAMILY,
    llava_next.ONEVISION,
    idefics3.FAMILY,
    idefics3.SMOLVLM,
    *qwen_vl.FAMILIES,
    *glm4v.FAMILIES,
    paddleocr_vl.FAMILY,
    clips.QWEN2_AUDIO,
    clips.VOXTRAL,
    whisper.FAMILY,
    gemma3.FAMILY,
    gemma4.FAMILY,
    gemma4.UNIFIED,
    pixtral.MISTRAL3,
    internvl.FAMILY,
)


def media_family(config: Mapping[str, Any]) -> MediaFamily | None:
    """The family of a model that sees or hears, None for other models. For a class that has no file
    here Transformers may read the media."""
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


def foreign_family(config: Mapping[str, Any]) -> MediaFamily | None:
    """A family for an image model without a file here: Transformers has the processor and the
    tower, and a family of quire computes the text. None if the config is not of such a model, or
    its text is of no family."""
    named, text = config.get("architectures"), config.get("text_config")
    name = named[0] if isinstance(named, list) and named else None
    if not isinstance(text, Mapping) or not isinstance(config.get("vision_config"), Mapping):
        return None
    if not isinstance(name, str) or not name.endswith(_ENDING) or family_of(name) is not None:
        return None
    if str(text.get("model_type") or UNSAID_TEXT.model_types[0]) not in BY_MODEL_TYPE:
        return None
    module = name.removesuffix(_ENDING) + "Model"
    return MediaFamily("transformers", (name,), module, read=_unread, embedded=False, foreign=True)


def _unread(config: MediaConfig) -> MediaRules:
    raise RuntimeError("the rules of a foreign family are read with its files. This is a bug.")
