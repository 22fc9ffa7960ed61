"""Matches an adapter's tensors with the model's products, and checks them before any is read. No
torch.

The header of its file says which modules it changes and at which rank; the config only scales.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quire.adapters.changes import Change, Copy, Own, Scale
from quire.adapters.config import MERGE, read_adapter_config
from quire.adapters.files import Stamp, stamps_of, tensor_file
from quire.adapters.forms import FORM_KINDS
from quire.adapters.matching import Matcher, wrong
from quire.adapters.names import Kind, TensorName, tensor_name
from quire.adapters.scales import scales_of
from quire.adapters.sites import Sites
from quire.adapters.stacks import module_of, stack_of, stacked_changes
from quire.errors import InvalidAdapter
from quire.weights.checkpoint import read_header
from quire.weights.formats import StoredTensor

_FLOATS = ("F32", "F16", "BF16", "F64")
_LOW_RANK: frozenset[Kind] = FORM_KINDS | {"A", "B", "magnitude", "embedding_A", "embedding_B"}
Found = list[tuple[TensorName, dict[Kind, StoredTensor]]]


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    """A checked adapter, without its numbers."""

    directory: Path
    changes: tuple[Change, ...]
    stamps: tuple[Stamp, Stamp]  # of its files, when checked
    copies: tuple[Copy, ...] = ()
    own: tuple[Own, ...] = ()
    scales: tuple[Scale, ...] = ()

    @property
    def needs_base(self) -> bool:
        """Whether the base's numbers are needed to compute what it adds."""
        of_base = bool(self.copies) or any(one.kind == "bias" for one in self.own)
        of_base = of_base or any(one.has_bias for one in self.scales)
        return of_base or any(
            change.magnitude is not None or change.less_columns for change in self.changes
        )


def plan_adapter(directory: Path, sites: Sites, max_rank: int) -> AdapterPlan:
    """The adapter in a directory, for a model with these sites. InvalidAdapter if it is for another
    model, or needs what is not built."""
    config = read_adapter_config(directory)
    path = tensor_file(directory)
    stamps = stamps_of(directory)
    matcher = Matcher(path, config, sites, max_rank)
    changes: list[Change] = []
    copies: list[Copy] = []
    own: list[Own] = []
    scales: list[Scale] = []
    stacked: dict[str, Found] = {}
    for name, found in _by_module(path):
        low_rank = {kind: one for kind, one in found.items() if kind in _LOW_RANK}
        if low_rank and stack_of(matcher, name) is not None and config.form == "lora":
            stacked.setdefault(module_of(name), []).append((name, low_rank))
        elif low_rank and config.form == "ia3":
            scales += scales_of(matcher, name, low_rank)
        elif low_rank and config.form != "lora":
            changes += matcher.formed(name, low_rank, config.form)
        elif low_rank:
            changes += matcher.changes(name, low_rank, has_base="weight" in found)
        if "weight" in found and not matcher.has_whole(name):
            copies.append(matcher.copy(name, found["weight"]))
        own += matcher.own(name, found)
    changes += [one for given in stacked.values() for one in stacked_changes(matcher, given)]
    matcher.check_saved(own)
    matcher.check_tied((*changes, *own, *scales))
    return AdapterPlan(directory, tuple(changes), stamps, tuple(copies), tuple(own), tuple(scales))


def _by_module(path: Path) -> Found:
    """The tensors of a file, by module."""
    modules: dict[str, tuple[TensorName, dict[Kind, StoredTensor]]] = {}
    for stored, tensor in read_header(path).items():
        name = tensor_name(stored)
        if name is None:
            raise wrong(path, stored, "is no matrix of a LoRA adapter", MERGE)
        _, found = modules.setdefault(name.own, (name, {}))
        if name.kind in found:
            raise wrong(path, stored, "is there twice, by two names")
        if tensor.format.name not in _FLOATS:
            raise wrong(path, stored, f"is stored as {tensor.format.name}, not in floats")
        found[name.kind] = tensor
    if not modules:
        raise InvalidAdapter(f"{path} holds no tensors", parameter="lora_path", value=str(path))
    return list(modules.values())
