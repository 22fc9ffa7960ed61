"""An adapter's tensors matched with the model's products, and checked before any is read. No torch.

The header of its file says which modules it changes and at which rank; the config only scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from quire.adapters.config import MERGE, AdapterConfig, read_adapter_config
from quire.adapters.files import Stamp, stamps_of, tensor_file
from quire.adapters.names import Kind, TensorName, tensor_name
from quire.adapters.sites import EMBEDDING, HEAD, SitePart, Sites
from quire.errors import InvalidAdapter
from quire.weights.checkpoint import read_header
from quire.weights.formats import StoredTensor

_FLOATS = ("F32", "F16", "BF16", "F64")
_OF_LINEAR: frozenset[Kind] = frozenset({"A", "B"})
_OF_EMBEDDING: frozenset[Kind] = frozenset({"embedding_A", "embedding_B"})


@dataclass(frozen=True, slots=True)
class Change:
    """What an adapter adds to one module: scale * B A, and with a magnitude each output row of the
    sum gets that length (DoRA)."""

    part: SitePart
    rank: int
    scale: float
    a: StoredTensor  # [rank, columns]; of an embedding [rank, vocabulary]
    b: StoredTensor  # [rows, rank]; of an embedding [hidden, rank]
    magnitude: StoredTensor | None = None


@dataclass(frozen=True, slots=True)
class Copy:
    """A base's own embedding or head as it stands beside an adapter. The base has it under one of
    these names: a head that is the embedding has no weight of its own."""

    stored: StoredTensor
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    """A checked adapter: everything but its numbers."""

    directory: Path
    changes: tuple[Change, ...]
    stamps: tuple[Stamp, Stamp]  # of its files, when they were checked
    copies: tuple[Copy, ...] = ()

    @property
    def uses_dora(self) -> bool:
        return any(change.magnitude is not None for change in self.changes)


def plan_adapter(directory: Path, sites: Sites, max_rank: int) -> AdapterPlan:
    """The adapter in a directory, for a model with these sites; InvalidAdapter if it is another's,
    or asks for what is not built."""
    config = read_adapter_config(directory)
    path = tensor_file(directory)
    stamps = stamps_of(directory)
    by_module: dict[str, dict[Kind, StoredTensor]] = {}
    names: dict[str, TensorName] = {}
    for stored, tensor in read_header(path).items():
        name = tensor_name(stored)
        if name is None:
            raise _wrong(path, stored, "is no matrix of a LoRA adapter", MERGE)
        if name.kind in by_module.setdefault(name.own, {}):
            raise _wrong(path, stored, "is there twice, by two names")
        if tensor.format.name not in _FLOATS:
            raise _wrong(path, stored, f"is stored as {tensor.format.name}, not in floats")
        by_module[name.own][name.kind] = tensor
        names[name.own] = name
    if not by_module:
        raise InvalidAdapter(f"{path} holds no tensors", parameter="lora_path", value=str(path))
    matcher = _Matcher(path, config, sites, max_rank)
    copied = {own: found.pop("copy") for own, found in by_module.items() if "copy" in found}
    copies = tuple(matcher.copy(names[own], stored) for own, stored in copied.items())
    changes = [matcher.changes(names[own], found) for own, found in by_module.items() if found]
    return AdapterPlan(directory, tuple(one for some in changes for one in some), stamps, copies)


@dataclass(frozen=True, slots=True)
class _Matcher:
    path: Path
    config: AdapterConfig
    sites: Sites
    max_rank: int

    def changes(self, name: TensorName, found: Mapping[Kind, StoredTensor]) -> list[Change]:
        parts = self._parts(name)
        part = parts[0]
        kinds = _OF_EMBEDDING if part.site == EMBEDDING else _OF_LINEAR
        self._check_kinds(name, found, kinds, part)
        a, b = (found[kind] for kind in sorted(kinds))
        rank = a.shape[0] if len(a.shape) == 2 else 0
        rows, columns = part.within.of or part.rows, part.columns
        if part.site == EMBEDDING:
            rows, columns = columns, rows
        self._check_shape(a, (rank, columns))
        self._check_shape(b, (rows, rank))
        self._check_rank(a, rank)
        magnitude = found.get("magnitude")
        if magnitude is not None and magnitude.shape not in ((rows,), (1, rows), (rows, 1)):
            raise self._other_shape(magnitude, (rows,))
        scale = self.config.scale(name.module, rank)
        return [Change(one, rank, scale, a, b, magnitude) for one in parts]

    def copy(self, name: TensorName, stored: StoredTensor) -> Copy:
        """What PEFT stores of the base beside an adapter: embeddings and heads alone."""
        known = (self.sites.parts.get(module) for module in (name.own, f"model.{name.own}"))
        part = next((parts[0] for parts in known if parts), None)
        if part is None or part.site not in (EMBEDDING, HEAD):
            raise _wrong(self.path, stored.name, "is no matrix of a LoRA adapter", MERGE)
        self._check_shape(stored, (part.rows, part.columns))
        modules = self.sites.parts.items()
        embedding = (module for module, parts in modules if parts[0].site == EMBEDDING)
        return Copy(stored, tuple(f"{module}.weight" for module in (part.module, *embedding)))

    def _parts(self, name: TensorName) -> tuple[SitePart, ...]:
        """The module of the model; a bare model's adapter leaves `model.` out."""
        for module in (name.own, f"model.{name.own}"):
            if module in self.sites.parts:
                return self.sites.parts[module]
            if module in self.sites.not_built:
                raise _wrong(self.path, name.module, "is a part that adapters do not change", MERGE)
        near = get_close_matches(name.own, self.sites.parts, 1, 0.0)
        hint = f"The nearest is {near[0]!r}. " if near else ""
        raise _wrong(
            self.path,
            name.module,
            "is no module of this model",
            f"{hint}Was the adapter made for another base?",
        )

    def _check_kinds(
        self,
        name: TensorName,
        found: Mapping[Kind, StoredTensor],
        kinds: frozenset[Kind],
        part: SitePart,
    ) -> None:
        if missing := kinds - found.keys():
            lacking = ", ".join(f"lora_{kind}" for kind in sorted(missing))
            raise _wrong(self.path, name.module, f"lacks {lacking}")
        if unknown := found.keys() - kinds - {"magnitude"}:
            what = ", ".join(f"lora_{kind}" for kind in sorted(unknown))
            raise _wrong(self.path, name.module, f"has {what}, which does not belong there")
        if self.config.use_dora and part.site == EMBEDDING:
            raise _wrong(self.path, name.module, "is an embedding with DoRA: not built", MERGE)
        if ("magnitude" in found) != self.config.use_dora:
            has = "has" if "magnitude" in found else "has no"
            said = "true" if self.config.use_dora else "false"
            raise _wrong(
                self.path, name.module, f"{has} lora_magnitude_vector, and use_dora is {said}"
            )

    def _check_shape(self, tensor: StoredTensor, shape: tuple[int, ...]) -> None:
        if tensor.shape != shape or 0 in shape:
            raise self._other_shape(tensor, shape)

    def _other_shape(self, tensor: StoredTensor, shape: tuple[int, ...]) -> InvalidAdapter:
        return InvalidAdapter(
            f"{self.path}: {tensor.name} has the shape {list(tensor.shape)}, and this model asks "
            f"for {list(shape)}. The adapter was made for another base.",
            parameter=tensor.name,
            value=list(tensor.shape),
        )

    def _check_rank(self, tensor: StoredTensor, rank: int) -> None:
        if rank > self.max_rank:
            raise InvalidAdapter(
                f"{self.path}: {tensor.name} has the rank {rank}, and max_lora_rank is "
                f"{self.max_rank}. Set max_lora_rank={rank} or more.",
                parameter="max_lora_rank",
                value=rank,
            )


def _wrong(path: Path, what: str, why: str, way_out: str = "") -> InvalidAdapter:
    return InvalidAdapter(
        f"{path}: {what[:200]} {why}. {way_out}".rstrip(), parameter="lora_path", value=what[:200]
    )
