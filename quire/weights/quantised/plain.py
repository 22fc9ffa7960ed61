"""A quantised checkpoint as plain tensors, by the names in its files, for modules of Transformers.

Nothing else tells the shapes of weights here, so they follow from the stored tensors.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from safetensors import safe_open
from torch import Tensor

from quire.errors import CorruptModel, UnsupportedModel
from quire.weights.formats import READABLE, StoredTensor
from quire.weights.json_file import parse_object
from quire.weights.quantised.layout import Layout, Quantisation
from quire.weights.quantised.stored import LEADS, STATES, beside, stored_matrix
from quire.weights.quantised.unpack import read_raw, read_whole
from quire.weights.within import Within

# Formats of buffers that are not quantised.
_NUMBERS = ("BOOL", "I16", "I64")


def plain_tensors(
    stored: Mapping[str, StoredTensor], said: Quantisation, dtype: torch.dtype
) -> dict[str, Tensor]:
    """All tensors of a checkpoint: quantised weights dequantised into `dtype`, all others
    unchanged."""
    made: dict[str, Tensor] = {}
    used: set[str] = set()
    for name, tensor in stored.items():
        lead = next((one for one in LEADS if name.endswith(one)), None)
        if lead is None or tensor.format.name in READABLE:
            continue
        module = name.removesuffix(lead)
        shape = _shape(module, tensor, said, stored)
        matrix = shape and stored_matrix(f"{module}.weight", shape, Within(), stored, said)
        if matrix:
            made[f"{module}.weight"] = read_whole(matrix).dequantised(dtype)
            used.update(part.name for part in matrix.tensors.values())
    for name, tensor in stored.items():
        if name in used or beside(name):
            continue
        if tensor.format.name not in (*READABLE, *_NUMBERS):
            raise UnsupportedModel(
                f"{tensor.path.name}: {name!r} is stored as {tensor.format.name} and is no weight "
                f"of a linear part in {said.method}; of models that Transformers computes quire "
                "reads those. Take the original weights."
            )
        with safe_open(tensor.path, framework="pt") as file:
            made[name] = file.get_tensor(name)
    return made


def _shape(
    module: str, lead: StoredTensor, said: Quantisation, stored: Mapping[str, StoredTensor]
) -> tuple[int, ...] | None:
    """Rows and columns of a weight, from its leading tensor."""
    layout = said.layout_of(module) or Layout("int", 8)  # reading it will be refused
    if layout.kind == "nf4":
        return _shape_in_state(module, stored)
    if len(lead.shape) != 2:
        return None
    (first, second), bits = lead.shape, layout.bits
    shapes = {
        "awq": (second * 32 // bits, first),
        "gptq": (second, first * 32 // bits),
        "packed": (first, second * 32 // bits),
        **dict.fromkeys(("mxfp4", "nvfp4"), (first, second * 2)),
        "ternary": (first * 4, second),
    }
    return shapes.get(layout.kind, (first, second))


def _shape_in_state(module: str, stored: Mapping[str, StoredTensor]) -> tuple[int, ...]:
    """The shape of a weight of bitsandbytes, which stores a row of bytes, and the shape beside
    it."""
    state = next((found for one in STATES if (found := stored.get(f"{module}{one}"))), None)
    if state is None:
        raise CorruptModel(f"{module}{STATES[0]} is missing, which has the weight's shape")
    raw = bytes(read_raw(state).numpy())
    shape = parse_object(raw, f"{module}: quant_state").get("shape")
    if not isinstance(shape, list) or not all(type(n) is int and n > 0 for n in shape):
        raise CorruptModel(f"{module}: quant_state has shape {str(shape)[:100]}")
    return tuple(shape)
