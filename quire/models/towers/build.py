"""Builds a tower of Transformers with a checkpoint's weights: the model without its text part."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from quire.base.boundary import refusing
from quire.errors import CorruptModel, UnsupportedModel
from quire.families.media.family import MediaFamily
from quire.families.media.rules import MediaRules
from quire.models.towers.calls import CALLS
from quire.models.towers.tower import ModuleTower

# The parts that compute text: quire computes it itself.
_TEXT = ("language_model", "text_model", "lm_head")
# Of text configs: what they say of single layers.
_BY_LAYER = ("layer_types", "per_layer_config", "num_kv_shared_layers")
_FULL = "full_attention"
# Reads a weight by its name in the module and its shape; None if the checkpoint has none.
ReadWeight = Callable[[str, tuple[int, ...]], Tensor | None]


def build_tower(
    family: MediaFamily,
    rules: Mapping[str, MediaRules],
    config: Mapping[str, Any],
    read: ReadWeight,
    *,
    dtype: torch.dtype,
    device: torch.device,
    alone: bool,
) -> ModuleTower:
    """`alone`: encode each item by itself, so that its rows have the same bits in any plan."""
    refused = f"{family.module}: Transformers cannot make the tower"
    with refusing(lambda why: UnsupportedModel(f"{refused}: {why}")), unfilled():
        module = made_module(family, config)
    for part in _TEXT:
        if hasattr(module, part):
            delattr(module, part)
    for name, weight in list(module.named_parameters()):
        stored = read(name, tuple(weight.shape))
        if stored is None:
            raise CorruptModel(
                f"the weight {name!r} of the model's tower is missing. language_model_only=True "
                "runs its text."
            )
        if stored.shape != weight.shape:
            raise CorruptModel(
                f"the weight {name!r} of the model's tower has shape {list(stored.shape)}, not "
                f"{list(weight.shape)}. language_model_only=True runs its text."
            )
        holder, _, last = name.rpartition(".")
        parameter = nn.Parameter(stored.to(device, dtype), requires_grad=False)
        setattr(module.get_submodule(holder), last, parameter)
    for (
        name,
        number,
    ) in module.named_buffers():  # bounds of numbers between products, and their like
        if (stored := read(name, tuple(number.shape))) is not None:
            number.copy_(stored)
    module.to(device).eval()
    about: Any = module.config
    hidden = about.get_text_config().hidden_size
    return ModuleTower(module, CALLS[family.name], rules, hidden, dtype, device, alone=alone)


def canonical_name(name: str) -> str:
    """A weight's name, the same for files of all versions and for modules: without "model." at the
    start, without the level "vision_model" that towers had before Transformers 5, and without those
    that models without an encoder have in modules or in files alone."""
    name = re.sub(r"^vision_embedder\.", "embed_vision.", name.removeprefix("model."))
    name = re.sub(r"^mlp_AR\.", "projector.", name)
    name = name.replace("embed_vision.multimodal_embedder.", "embed_vision.")
    return re.sub(r"^(vision_tower|image_tower)\.vision_model\.", r"\1.", name)


def made_module(family: MediaFamily, config: Mapping[str, Any]) -> nn.Module:
    """The module, with a single text layer, which is thrown away."""
    values = {k: v for k, v in config.items() if k not in ("architectures", "quantization_config")}
    values |= {key: None for key in family.unused if key in values}
    text = {k: v for k, v in dict(values.get("text_config") or {}).items() if k not in _BY_LAYER}
    if text:
        kinds = values["text_config"].get("layer_types") or ()
        kind = {"layer_types": [_FULL]} if _FULL in kinds else {}  # which any last layer may be
        values["text_config"] = {**text, **kind, "num_hidden_layers": 1}
    else:  # older files have the fields of the text at the top level
        values = {**{k: v for k, v in values.items() if k != "layer_types"}, "num_hidden_layers": 1}
    made_by: Any = getattr(transformers, family.module, None)
    if made_by is None:
        lacks = f"Transformers {transformers.__version__} has no {family.module}"
        raise UnsupportedModel(f"{lacks}; install a later one: pip install -U transformers")
    made: nn.Module = made_by(transformers.AutoConfig.for_model(**values))
    return made


@contextmanager
def unfilled() -> Iterator[None]:
    """Make weights without filling them: they are read next."""
    # Older versions do not have this; there they are filled for nothing.
    found: Any = getattr(transformers, "initialization", None)
    with nullcontext() if found is None else found.no_init_weights():
        yield
