"""The rank that an adapter needs, by its files alone. No torch."""

from __future__ import annotations

from pathlib import Path

from quire.adapters.config import read_adapter_config
from quire.adapters.files import tensor_file
from quire.adapters.forms import FORM_KINDS, formed
from quire.adapters.names import Kind, tensor_name
from quire.weights.checkpoint import read_header
from quire.weights.formats import StoredTensor

_ALL_EXPERTS = (".experts", ".experts.base_layer")


def highest_rank(directory: Path) -> int:
    """The highest rank of what an adapter adds to a module."""
    config, ranks = read_adapter_config(directory), [1]
    modules: dict[str, dict[Kind, StoredTensor]] = {}
    for stored, tensor in read_header(tensor_file(directory)).items():
        if (name := tensor_name(stored)) is not None:
            modules.setdefault(name.own, {})[name.kind] = tensor
    for module, found in modules.items():
        a = found.get("A") or found.get("embedding_A")
        if config.form != "lora":
            made = formed(config.form, {kind: found[kind] for kind in FORM_KINDS & found.keys()})
            ranks.append(0 if made is None else made.rank)
        elif a is not None:
            # A for all experts has the sum of their ranks.
            of_all = module.endswith(_ALL_EXPERTS)
            of_one = max(a.shape[:1], default=0) * (2 if config.less_columns else 1)
            ranks.append(config.rank if of_all else of_one)
    return max(ranks)
