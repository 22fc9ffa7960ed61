"""What checkpoints put before the names of a model's tensors, and what else they hold. No torch.

A bare model, without its head, leaves `model.` out. One that also sees or hears has its text in a
part of its own, which two generations of files call by two names.
"""

from __future__ import annotations

from collections.abc import Container

from quire.families.registry import FAMILIES

# What families put before the names of a model that has a head.
BASES = tuple(dict.fromkeys(f"{family.outer_names.layer.hf.split('.')[0]}." for family in FAMILIES))
# What may stand where one of these stands, and where nothing does.
_TEXTS = (
    "language_model.model.model.",  # models that hear, as Transformers 5.22 saves them
    *("language_model.model.", "model.language_model.", "model.text_model."),
)
_INNER = ("", *_TEXTS)
_OUTER = ("", "language_model.")
# Towers and what joins them to the text: not read.
_TOWERS = (
    *("vision_tower.", "multi_modal_projector.", "audio_tower.", "embed_vision.", "visual."),
    *("vision_model.", "connector.", "image_newline", "encoder."),
)


def stored_name(name: str, stored: Container[str]) -> str:
    """The name that a tensor has among those stored; its own where it has none."""
    base = next((one for one in BASES if name.startswith(one)), "")
    starts, rest = ((base, *_INNER) if base else _OUTER), name.removeprefix(base)
    return next((one for start in starts if (one := start + rest) in stored), name)


def own_name(stored: str) -> str:
    """The name of a stored tensor without what stands before it; the other way round."""
    for start in _TEXTS:
        if stored.startswith(start):
            return "model." + stored.removeprefix(start)
    return stored.removeprefix("language_model.")


def is_of_a_tower(stored: str) -> bool:
    return stored.removeprefix("model.").startswith(_TOWERS)
