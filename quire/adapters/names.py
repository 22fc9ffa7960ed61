"""What PEFT calls the tensors of an adapter. No torch.

`base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight` is the matrix A of the module
`model.layers.0.self_attn.q_proj`. Adapters of bare models leave the inner `model.` out, those of
models that also see have `language_model.` in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from quire.weights.stored_names import own_name

Kind = Literal["A", "B", "magnitude", "embedding_A", "embedding_B", "copy"]
_NAME = re.compile(
    r"(?P<module>.+)\.(?P<kind>lora_A|lora_B|lora_embedding_A|lora_embedding_B"
    r"|lora_magnitude_vector)(\.weight|\.default|\.default\.weight)?"
)
_KINDS: dict[str, Kind] = {
    "lora_A": "A",
    "lora_B": "B",
    "lora_embedding_A": "embedding_A",
    "lora_embedding_B": "embedding_B",
    "lora_magnitude_vector": "magnitude",
}
# PEFT stores the base's own embeddings beside an adapter that changes them.
_COPY = re.compile(r"(?P<module>.+?)(\.base_layer)?\.weight")
_PREFIXES = ("base_model.model.", "base_model.")


@dataclass(frozen=True, slots=True)
class TensorName:
    """Which matrix of which module; `module` as PEFT knows it, `own` as the model's files do."""

    module: str
    own: str
    kind: Kind


def tensor_name(stored: str) -> TensorName | None:
    """What a stored tensor is; None for one that is no part of a LoRA adapter."""
    found = _NAME.fullmatch(stored) or _COPY.fullmatch(stored)
    if found is None:
        return None
    module = found["module"]
    for prefix in _PREFIXES:
        if module.startswith(prefix):
            module = module.removeprefix(prefix)
            break
    kind = _KINDS[found["kind"]] if "kind" in found.re.groupindex else "copy"
    return TensorName(module, own_name(module), kind)
