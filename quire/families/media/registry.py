"""The families that see or hear: a line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.families.media import clips, idefics3, llava, llava_next, qwen_vl, whisper
from quire.families.media.family import MediaFamily

FAMILIES: tuple[MediaFamily, ...] = (
    llava.FAMILY,
    llava_next.FAMILY,
    idefics3.FAMILY,
    idefics3.SMOLVLM,
    *qwen_vl.FAMILIES,
    clips.QWEN2_AUDIO,
    clips.VOXTRAL,
    whisper.FAMILY,
)
BY_ARCHITECTURE = {name: family for family in FAMILIES for name in family.architectures}


def media_family(config: Mapping[str, Any]) -> MediaFamily | None:
    """The family of a config that sees or hears, None for one that does neither."""
    named = config.get("architectures")
    names = named if isinstance(named, list) else []
    return next((BY_ARCHITECTURE[n] for n in names if n in BY_ARCHITECTURE), None)
