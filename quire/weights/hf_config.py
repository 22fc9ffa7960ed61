"""A Hugging Face config as a ModelSpec, and the small JSON files beside it. No torch.

The family's file reads it (quire/families); missing fields have Transformers' defaults. Every key
that Transformers knows for a family is read, or listed as one without effect (WITHOUT_EFFECT, and
the family's own), or refused unless it has a value that quire supports (ONLY).
"""

from __future__ import annotations

import difflib
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from quire.errors import ModelNotFound, UnsupportedModel
from quire.families.family import Family
from quire.families.fields import Fields
from quire.families.media.registry import FAMILIES, media_family
from quire.families.registry import BY_ARCHITECTURE, BY_MODEL_TYPE, UNSAID_TEXT, family_of
from quire.families.rope_config import overridden
from quire.spec import ModelSpec
from quire.weights.checkpoint import checked_file
from quire.weights.json_file import read_json

ARCHITECTURES = {name: family.name for name, family in BY_ARCHITECTURE.items()}
# The only supported values of these keys; null or absent is always accepted.
ONLY: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "is_causal": (True,),
    "is_encoder_decoder": (False,),
    "per_layer_config": ({},),
    "transformers_weights": ("model.safetensors", "model.safetensors.index.json"),
}
# Keys that do not change what a model computes here.
WITHOUT_EFFECT: Mapping[str, str] = {
    "attention_dropout": "training",
    "initializer_range": "training",
    "pretraining_tp": "how a model was trained; the sums are the same",
    "chunk_size_feed_forward": "these families have no chunks",
    "use_cache": "quire always does",
    "pad_token_id": "nothing is padded",
    "output_hidden_states": "what a call returns",
    "return_dict": "what a call returns",
    "id2label": "classifiers",
    "label2id": "classifiers",
    "problem_type": "classifiers",
    "transformers_version": "who wrote the file",
}
_DTYPES = ("dtype", "torch_dtype")
_PARTS = ("feature_extractor", "audio_processor", "image_processor")  # of processor_config.json


def read_config(directory: Path) -> dict[str, Any]:
    """config.json of a model directory. If dtype is an object, it has one for each part of a model
    that also sees or hears: the text's is taken, or the one for all."""
    if not (directory / "config.json").exists():
        raise ModelNotFound(f"{directory}: no config.json there; is it a model directory?")
    values = read_json(checked_file(directory, "config.json"))
    by_part = {key: values[key] for key in _DTYPES if isinstance(values.get(key), dict)}
    return values | {key: of.get("text_config", of.get("")) for key, of in by_part.items()}


def read_generation_config(directory: Path) -> dict[str, Any]:
    """generation_config.json of a model directory, empty if it has none."""
    if not (directory / "generation_config.json").exists():
        return {}
    return read_json(checked_file(directory, "generation_config.json"))


def read_processor_config(directory: Path) -> dict[str, Any]:
    """How media are prepared: the parts of processor_config.json of a model directory, or
    preprocessor_config.json and its like in older ones; empty without any. Settings for videos
    alone are under "video_processor"."""
    parts: dict[str, Any] = {}
    if (directory / "processor_config.json").exists():
        parts = read_json(checked_file(directory, "processor_config.json"))
    # A model that was trained further and saved anew may have both, and the older files are stale.
    for file, names in (("preprocessor", _PARTS), ("video_preprocessor", ("video_processor",))):
        if not parts.keys() & names and (directory / f"{file}_config.json").exists():
            parts[names[-1]] = read_json(checked_file(directory, f"{file}_config.json"))
    said = [parts.get(name) for name in _PARTS]
    found = {k: v for part in said if isinstance(part, dict) for k, v in part.items()}
    if not found and (directory / "tekken.json").exists():
        found = _of_tekken(read_json(checked_file(directory, "tekken.json")))
    videos = parts.get("video_processor")
    return {**found, **({"video_processor": videos} if isinstance(videos, dict) else {})}


def _of_tekken(tekken: Mapping[str, Any]) -> dict[str, Any]:
    """The size of images from tekken.json, in the format that comes without a processor's file."""
    image = tekken.get("image") or tekken.get("multimodal")
    longest = image.get("max_image_size") if isinstance(image, dict) else None
    return {} if longest is None else {"size": {"longest_edge": longest}}


def spec_from_hf(
    config: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    source: str = "config.json",
) -> ModelSpec:
    """The spec of a config with `overrides` (hf_overrides)."""
    said = _overridden(_text_part(config), _text_part(overrides or {}))
    fields = Fields(said, source, false_nulls=True)
    family = _family(fields)
    only = {key: values for key, values in ONLY.items() if key not in family.reads}
    fields.check_only({**only, **family.only})
    known = ChainMap(said, dict(family.unsaid))  # a null is not missing, and is refused
    spec = family.spec(Fields(known, source, false_nulls=True))
    # A length in the overrides holds, even if a scaling would allow more.
    asked = Fields(overrides or {}, source).count("max_position_embeddings", spec.max_model_len)
    return replace(spec, max_model_len=min(spec.max_model_len, asked))


def _text_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the model's text. Models that also see or hear have it in an object of its own,
    with a few keys for the whole model beside it."""
    text = config.get("text_config")
    if not isinstance(text, dict):
        return dict(config)
    around = ("architectures", "model_type", "quantization_config", "eos_token_id")
    said = {key: config[key] for key in around if config.get(key) is not None}
    said["text_model_type"] = text.get("model_type")
    if config.get("tie_word_embeddings") is True:
        said["tie_word_embeddings"] = True  # for the whole; a stored head wins
    if media_family(config) is not None and not any(map(family_of, config["architectures"])):
        # The text of another model, read like that model's own config.
        kind = text.get("model_type") or UNSAID_TEXT.model_types[0]
        said = {**said, "architectures": None, "model_type": kind}
        family = BY_MODEL_TYPE.get(kind) if isinstance(kind, str) else None
        text = {**({} if family is None else family.unsaid), **text}
    return {**{key: value for key, value in config.items() if key != "text_config"}, **text, **said}


def _overridden(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    merged = overridden(config, overrides)
    if "architectures" in overrides and "model_type" not in overrides:
        merged["model_type"] = None  # the overridden one of the two decides
    if "model_type" in overrides and "architectures" not in overrides:
        merged["architectures"] = None
    return merged


def _family(fields: Fields) -> Family:
    named = fields.values.get("architectures") or []
    if not isinstance(named, list):
        raise fields.wrong("architectures", "a list of names")
    model_type = fields.word("model_type", "")
    known = [
        (name, found) for name in named if isinstance(name, str) and (found := family_of(name))
    ]
    said = BY_MODEL_TYPE.get(model_type)
    if not known:
        if not named and said is not None:
            return said
        raise _unknown(fields, named, model_type)
    architecture, family = known[0]
    if model_type and family is not said:
        raise UnsupportedModel(
            f"{fields.source}: architectures says {architecture}, model_type says "
            f"{model_type[:40]!r}; these are different models. hf_overrides={{"
            f'"model_type": "{family.model_types[0]}"}} runs it as the former.'
        )
    # For a model that also sees or hears, the family is that of its text.
    return BY_MODEL_TYPE.get(fields.word("text_model_type", ""), family)


def _unknown(fields: Fields, named: list[Any], model_type: str) -> UnsupportedModel:
    found = ", ".join(str(name) for name in named)[:200] or model_type or "no architecture"
    towers = [name for name in ("vision_config", "audio_config") if fields.values.get(name)]
    near = difflib.get_close_matches(found, ARCHITECTURES)
    hint = f"the nearest are {', '.join(near)}" if near else "docs/models.md lists what they have"
    why = f": no family of quire's has it; {hint}"
    if fields.values.get("is_encoder_decoder") is True:
        why = ": an encoder reads, a decoder writes; quire has such as hear. Use a causal one"
    elif towers:
        known = dict.fromkeys(name for family in FAMILIES for name in family.architectures)
        why = (
            f": no family of quire's has its tower ({towers[0]}) or its text "
            f"({str(fields.values.get('text_model_type'))[:40]!r}). Models that see or hear: "
            f"{', '.join(known)}"
        )
    return UnsupportedModel(f"{fields.source}: {found} is not supported{why}.")
