"""Prefixes of tensor names in checkpoints, and tensors that are not of the text. No torch.

A bare model, without its head, has no `model.` prefix. A model that also sees or hears has its text
in a part of its own, which has two names in two generations of files.
"""

from __future__ import annotations

from collections.abc import Container

from quire.families.registry import FAMILIES

# The prefixes of families' names in models with a head.
BASES = tuple(dict.fromkeys(f"{family.outer_names.layer.hf.split('.')[0]}." for family in FAMILIES))
# Prefixes in place of these, and in place of none.
_TEXTS = (
    "language_model.model.model.",  # models that hear, as Transformers 5.22 saves them
    *("language_model.model.", "model.language_model.", "model.text_model."),
)
_INNER = ("", *_TEXTS)
_OUTER = ("", "language_model.")
# Towers and projectors, which are not read here.
_TOWERS = (
    *("vision_tower.", "multi_modal_projector.", "audio_tower.", "visual."),
    *("embed_vision.", "embed_audio.", "vision_embedder."),
    *("vision_model.", "connector.", "image_newline", "encoder."),
    *("projector.", "mlp_AR."),
)


def stored_name(name: str, stored: Container[str]) -> str:
    """The stored name of a tensor; its own name if it is not stored."""
    base = next((one for one in BASES if name.startswith(one)), "")
    # Modules of Transformers, and files with their names, may have `model.` for another base.
    starts, rest = ((base, "model.", *_INNER) if base else _OUTER), name.removeprefix(base)
    return next((one for start in starts if (one := start + rest) in stored), name)


def own_name(stored: str) -> str:
    """The name of a stored tensor without prefixes; the reverse of stored_name."""
    for start in _TEXTS:
        if stored.startswith(start):
            return "model." + stored.removeprefix(start)
    return stored.removeprefix("language_model.")


def is_of_a_tower(stored: str) -> bool:
    return stored.removeprefix("model.").startswith(_TOWERS)
