"""Models that see, of classes that no file here is about: Transformers has the processor and the
tower, and a family of quire's the text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.families.media.family import MediaConfig, MediaFamily
from quire.families.media.rules import MediaRules
from quire.families.registry import BY_MODEL_TYPE, UNSAID_TEXT, family_of

NAME = "transformers"
_ENDING = "ForConditionalGeneration"


def foreign_family(config: Mapping[str, Any]) -> MediaFamily | None:
    """None where the config is not of such a model, or no family has its text."""
    named, text = config.get("architectures"), config.get("text_config")
    name = named[0] if isinstance(named, list) and named else None
    if not isinstance(text, Mapping) or not isinstance(config.get("vision_config"), Mapping):
        return None
    if not isinstance(name, str) or not name.endswith(_ENDING) or family_of(name) is not None:
        return None
    if (text.get("model_type") or UNSAID_TEXT.model_types[0]) not in BY_MODEL_TYPE:
        return None
    module = name.removesuffix(_ENDING) + "Model"
    return MediaFamily(NAME, (name,), module, read=_unread, embedded=False, foreign=True)


def _unread(config: MediaConfig) -> MediaRules:
    raise RuntimeError("the rules of a foreign family are read with its files. This is a bug.")
