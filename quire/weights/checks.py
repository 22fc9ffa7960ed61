"""Checks of a model's files before the first weight is read: each weight is there, has its shape
and a format that quire reads, and there is memory for all of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

import torch

from quire.base.notes import note
from quire.base.system import free_memory
from quire.errors import CorruptModel, NotEnoughMemory, UnsupportedModel
from quire.families.registry import family_named
from quire.families.unread import COMPUTED, parts_left_out
from quire.spec import ModelSpec
from quire.weights.dequantise import PLAIN
from quire.weights.formats import READABLE, StoredTensor
from quire.weights.names import unread_keys
from quire.weights.parts import Part, Weight
from quire.weights.quantised.layout import WAY_OUT
from quire.weights.quantised.stored import Source, StoredMatrix, beside, stored_matrix
from quire.weights.read_rows import read_tensor
from quire.weights.source import ModelFiles
from quire.weights.stored_names import is_of_a_tower, stored_name
from quire.weights.tied import head_name
from quire.weights.within import Within

_LAYER = re.compile(r".*?layers\.(\d+)\.(.+)")
TIE = '; hf_overrides={"tie_word_embeddings": True} takes the embedding for it'
# Tools whose files do not say in any config that weights are quantised, by the ends of tensor
# names.
_OTHER_TOOLS = {".W_q": "HQQ", ".weight._data": "quanto"}
_OF_PEFT = re.compile(r"\.(base_layer|lora_[AB]|lora_embedding_[AB])\b")


def check_merged(stored: Iterable[str], files: ModelFiles) -> None:
    """Refuse a model that was saved with an adapter of PEFT inside."""
    inside = next((one for one in stored if files.kind == "hf" and _OF_PEFT.search(one)), None)
    if inside is not None:
        raise UnsupportedModel(
            f"{files.path}: it was saved with an adapter beside its weights ({inside!r}). Save "
            "what peft's merge_and_unload() gives, or the base and the adapter apart."
        )


def sources_of(
    weight: Weight, stored: Mapping[str, StoredTensor], files: ModelFiles
) -> list[Source]:
    found: list[Source] = []
    for part in weight.parts:
        if files.kind == "hf":
            shape = (part.rows, *weight.shape[1:])
            matrix = stored_matrix(part.hf, shape, part.hf_within, stored, files.quantisation)
            if matrix is not None:
                found.append(matrix)
                continue
        name, within = _stored_place(part, stored, files)
        if name not in stored:
            raise _missing(name, stored, files)
        source = within.of_stored(stored[name], (part.rows, *weight.shape[1:]), str(files.path))
        if source.format.name not in (READABLE if len(source.shape) > 1 else PLAIN):
            raise UnsupportedModel(
                f"{files.path}: tensor {name!r} is stored as {source.format.name}; "
                f"quire reads {', '.join(PLAIN)} from safetensors, and vectors in these alone"
            )
        found.append(source)
    return found


def _missing(
    name: str, stored: Mapping[str, StoredTensor], files: ModelFiles
) -> CorruptModel | UnsupportedModel:
    """The error for a tensor that is missing, or that has a name which quire does not know."""
    wrapped = next((one for one in stored if one.endswith(f".{name}")), None)
    if wrapped is not None and files.kind != "gguf":
        before = wrapped.removesuffix(name)
        return UnsupportedModel(
            f"{files.path}: its tensors have {before!r} before their names ({wrapped!r}), as in a "
            "model that is saved while torch.compile, DDP or the like wraps it. Save the one "
            f"inside (`_orig_mod`, `module`), or write the file again without {before!r}."
        )
    module = name.removesuffix(".weight")
    tool = next((tool for end, tool in _OTHER_TOOLS.items() if f"{module}{end}" in stored), None)
    if tool is not None:
        return UnsupportedModel(f"{files.path}: {name!r} is stored as {tool} packs it. {WAY_OUT}")
    found = _LAYER.match(name)
    number, kind = found.groups() if found is not None else ("", "")
    same = next((one for one in stored if kind and one.endswith(f".{number}.{kind}")), None)
    elsewhere = any(one.endswith(f".{kind}") for one in stored)
    if kind and same is None and not elsewhere and "text_config" in files.config:
        part = f".{kind.split('.')[0]}."
        same = next((one for one in stored if _LAYER.match(one) and part in one), None)
    if same is None or files.kind == "gguf":
        way_out = TIE if name == "lm_head.weight" else ""
        return CorruptModel(f"{files.path}: tensor {name!r} is missing{way_out}")
    return UnsupportedModel(
        f"{files.path}: its tensors have other names than quire knows: {same!r} where "
        f"{name!r} is looked for. model_impl='transformers' reads them as Transformers does."
    )


def _stored_place(
    part: Part, stored: Mapping[str, StoredTensor], files: ModelFiles
) -> tuple[str, Within]:
    """The tensor that contains a part, and which part of the tensor it is."""
    if files.kind == "gguf":
        places = ((part.gguf, part.gguf_within), *part.gguf_else)
        return next((one for one in places if one[0] in stored), places[0])
    name = stored_name(part.hf, stored)
    if part.hf_else is not None and name not in stored:
        other = stored_name(part.hf_else[0], stored)
        if other in stored:
            return other, part.hf_else[1]
    return name, part.hf_within


def check_unused(
    plan: list[tuple[Weight, list[Source]]],
    stored: Mapping[str, StoredTensor],
    spec: ModelSpec,
    files: ModelFiles,
) -> None:
    """Note which tensors are not used; refuse the model if one of them is in its layers."""
    used = {name for _, sources in plan for source in sources for name in _names(source)}
    head = (head_name(spec),) if spec.tied_embeddings else ()
    # Pooling reads the head of a classifier.
    labels = ("score.weight",) if "SequenceClass" in str(files.config.get("architectures")) else ()
    of_others = {stored_name(name, stored) for name in unread_keys(spec)}
    ignored = (*COMPUTED, *family_named(spec.family).buffers, *head, *labels)
    unused = [
        name
        for name in stored
        if name not in used
        and name not in of_others
        and not name.endswith(ignored)
        and not is_of_a_tower(name)
        and not (files.quantisation and beside(name))
        and not _is_empty_bias(stored[name])
    ]
    if left_out := parts_left_out(unused, (*used, *head)):
        raise UnsupportedModel(
            f"{files.path}: quire has no part for {left_out[0]!r} ({len(left_out)} such tensors). "
            "It is another model than its config says."
        )
    if unused:
        names = ", ".join(sorted(unused)[:3]) + (", ..." if len(unused) > 3 else "")
        note(f"{len(unused)} tensors of the model's files are not used: {names}")


def _names(source: Source) -> list[str]:
    if isinstance(source, StoredMatrix):
        return [tensor.name for tensor in source.tensors.values()]
    return [source.name]


def _is_empty_bias(tensor: StoredTensor) -> bool:
    """Whether a tensor is a bias of zeros, which some tools write beside every weight."""
    is_bias = tensor.name.endswith(".bias") and tensor.format.name in PLAIN
    return is_bias and not bool(read_tensor(tensor).any())


def check_memory(
    weights: list[Weight], dtype: torch.dtype, device: torch.device, *, beside: int = 0
) -> None:
    """Refuse weights that do not fit into memory together with `beside` more bytes."""
    needed = beside + sum(
        math.prod(weight.shape) * (4 if weight.is_wide else dtype.itemsize) for weight in weights
    )
    available = _available(device)
    if available is not None and needed > available:
        raise NotEnoughMemory(
            f"the weights take {needed / 1e9:.1f} GB in {str(dtype).removeprefix('torch.')}, "
            f"{available / 1e9:.1f} GB are free on {device}. "
            "A 16-bit dtype or a smaller model takes less; on a GPU weights that are quantised in "
            "their files can stay so (quantization= with their method)."
        )


def _available(device: torch.device) -> int | None:
    """Free bytes of a device, None if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return free_memory() if device.type == "cpu" else None
