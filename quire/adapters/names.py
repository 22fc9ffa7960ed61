"""PEFT's names of an adapter's tensors. No torch.

`base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight` is the matrix A of the module
`model.layers.0.self_attn.q_proj`. Adapters of bare models leave the inner `model.` out; those of
models that also see have `language_model.` in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from quire.weights.stored_names import own_name

_LowRank = Literal["A", "B", "E", "magnitude", "embedding_A", "embedding_B"]
_Own = Literal["added_bias", "tokens", "weight", "bias"]
_Hadamard = Literal["hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"]
_Kronecker = Literal["lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b"]
_Scale = Literal["ia3_l"]
Kind = _LowRank | _Own | _Hadamard | _Kronecker | _Scale
_NAME = re.compile(
    r"(?P<module>.+)\.(?P<kind>lora_A|lora_B|lora_E|lora_embedding_A|lora_embedding_B"
    r"|lora_magnitude_vector|token_adapter\.trainable_tokens_delta"
    r"|hada_w[12]_[ab]|lokr_w[12](_[ab])?|ia3_l)"
    r"(\.weight|\.default|\.default\.weight)?"
)
_BIAS = re.compile(r"(?P<module>.+)\.(?P<kind>lora_B)(\.default)?\.bias")
_KINDS: dict[str, Kind] = {
    "lora_A": "A",
    "lora_B": "B",
    "lora_E": "E",
    "lora_embedding_A": "embedding_A",
    "lora_embedding_B": "embedding_B",
    "lora_magnitude_vector": "magnitude",
    "token_adapter.trainable_tokens_delta": "tokens",
    "weight": "weight",
    "bias": "bias",
    **{one: one for one in get_args(_Hadamard) + get_args(_Kronecker) + get_args(_Scale)},
}
# For modules of which an adapter has the whole weight, and for embeddings of the base that PEFT
# stores beside an adapter that changes them.
_WHOLE = re.compile(r"(?P<module>.+?)(\.base_layer)?\.(?P<kind>weight|bias)")
_PREFIXES = ("base_model.model.", "base_model.")


@dataclass(frozen=True, slots=True)
class TensorName:
    """A matrix and its module; `module` is PEFT's name, `own` that of the model's files."""

    module: str
    own: str
    kind: Kind


def tensor_name(stored: str) -> TensorName | None:
    """The matrix that a stored tensor is; None if it is no part of an adapter."""
    bias = _BIAS.fullmatch(stored)
    found = bias or _NAME.fullmatch(stored) or _WHOLE.fullmatch(stored)
    if found is None:
        return None
    module = found["module"]
    for prefix in _PREFIXES:
        if module.startswith(prefix):
            module = module.removeprefix(prefix)
            break
    kind: Kind = "added_bias" if bias is not None else _KINDS[found["kind"]]
    return TensorName(module, own_name(module), kind)
