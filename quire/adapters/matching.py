"""Matches tensors of an adapter with the parts of a model, by names and shapes. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from quire.adapters.changes import Change, Copy, Own, Scale
from quire.adapters.config import MERGE, AdapterConfig
from quire.adapters.forms import Form, formed
from quire.adapters.names import Kind, TensorName
from quire.adapters.sites import EMBEDDING, HEAD, SitePart, Sites, is_of_expert, is_of_pairs
from quire.errors import InvalidAdapter
from quire.weights.formats import StoredTensor

_OF_LINEAR: frozenset[Kind] = frozenset({"A", "B"})
_OF_EMBEDDING: frozenset[Kind] = frozenset({"embedding_A", "embedding_B"})
_CLASSIFIERS = ("score", "classifier")
_PAIRS = "makes keys and values of latents, which would change"
_NOT_THERE = "Set device='cpu', or merge it into its base with peft's merge_and_unload()."


@dataclass(frozen=True, slots=True)
class Matcher:
    """One adapter's file and config, and the sites of its model."""

    path: Path
    config: AdapterConfig
    sites: Sites
    max_rank: int

    def changes(
        self, name: TensorName, found: Mapping[Kind, StoredTensor], *, has_base: bool = False
    ) -> list[Change]:
        """The changes by A and B of a module, and DoRA's magnitude. `has_base`: the file also has
        the weight to which they are added."""
        parts = self.parts_of(name)
        part = parts[0]
        kinds = _OF_EMBEDDING if part.site == EMBEDDING else _OF_LINEAR
        self.check_kinds(name, found, kinds)
        if self.config.use_dora and part.site == EMBEDDING:
            raise self.wrong(name.module, "is an embedding with DoRA: not built", MERGE)
        if self.config.use_dora and is_of_pairs(part.site):
            raise self.wrong(name.module, f"{_PAIRS} with DoRA: not built", MERGE)
        a, b = (found[kind] for kind in sorted(kinds))
        rank = a.shape[0] if len(a.shape) == 2 else 0
        rows, columns = part.within.of or part.rows, part.columns
        if part.site == EMBEDDING:
            rows, columns = columns, rows
        self._check_shape(a, (rank, columns))
        self._check_shape(b, (rows, rank))
        less = self._is_less(part) and not has_base
        added = 2 * rank if less else rank
        self.check_rank(a, added)
        magnitude = found.get("magnitude")
        if magnitude is not None and magnitude.shape not in ((rows,), (1, rows), (rows, 1)):
            raise self.other_shape(magnitude, (rows,))
        scale = self.config.scale(name.module, rank)
        return [Change(one, added, scale, a, b, magnitude, less_columns=less) for one in parts]

    def _is_less(self, part: SitePart) -> bool:
        """Whether PEFT subtracts columns of the weight when it loads the base (OLoRA). Refused with
        DoRA, which divides by what is left, for weights stored [in, out], and for a head tied to
        the embedding."""
        if not self.config.less_columns or part.site == EMBEDDING:
            return False
        tied = part.site == HEAD and self.sites.is_tied
        if tied or part.transposed or self.config.use_dora:
            why = "use_dora" if self.config.use_dora else "a tied head or a weight [in, out]"
            what = f"has init_lora_weights='olora' with {why}: not built"
            raise self.wrong(part.module, what, MERGE)
        return True

    def formed(
        self, name: TensorName, found: Mapping[Kind, StoredTensor], form: Form
    ) -> list[Change]:
        """The changes of a module whose A and B are made of other matrices."""
        parts = self.parts_of(name)
        made = formed(form, found)
        if made is None or parts[0].site == EMBEDDING:
            has = ", ".join(f"{kind} {list(one.shape)}" for kind, one in sorted(found.items()))
            raise self.wrong(name.module, f"has {has}: not built for {form}", MERGE)
        first = made.matrices[0]
        shape = (parts[0].within.of or parts[0].rows, parts[0].columns)
        if made.shape != shape:
            raise self.wrong(
                name.module,
                f"is changed as a weight of {list(made.shape)}, and this model's is {list(shape)}",
                "The adapter was made for another base.",
            )
        if not made.rank:  # AdaLoRA may have pruned all ranks
            return []
        self.check_rank(first, made.rank)
        scale = self.config.scale(name.module, made.inner)
        ends = made.matrices[0], made.matrices[-1]
        return [Change(one, made.rank, scale, *ends, formed=made) for one in parts]

    def own(self, name: TensorName, found: Mapping[Kind, StoredTensor]) -> list[Own]:
        """A module's own numbers beside A and B."""
        made = []
        for kind, stored in found.items():
            if kind == "tokens":
                made += self._tokens(name, stored)
            elif kind == "bias":
                made += self._bias(name, stored)
            elif kind == "added_bias":
                made += self._added_bias(name, stored, found)
            elif kind == "weight" and self.has_whole(name):
                made += self._weight(name, stored)
        if self.sites.experts_add_only and any(is_of_expert(one.part.site) for one in made):
            raise self.wrong(
                name.module,
                "has more for an expert than A and B, which is not built for a GPU",
                _NOT_THERE,
            )
        if any(is_of_pairs(one.part.site) for one in made):
            raise self.wrong(name.module, f"{_PAIRS} by more than A and B: not built", MERGE)
        return made

    def has_whole(self, name: TensorName) -> bool:
        """Whether the adapter has the whole weight of a module: modules_to_save names it, or the
        other half of a tied pair, of which PEFT then stores both."""
        if self.config.has_whole(name.module):
            return True
        if not (self.config.is_tied and self.sites.is_tied):
            return False
        modules = self.sites.parts.items()
        pair = [one for one, parts in modules if parts[0].site in (EMBEDDING, HEAD)]
        is_half = any(module in pair for module in self._modules(name))
        return is_half and any(map(self.config.has_whole, pair))

    def copy(self, name: TensorName, stored: StoredTensor) -> Copy:
        """A copy of a weight of the base that PEFT stored beside an adapter: only embeddings and
        heads."""
        part = self._any_part(name)
        if part is None or part.site not in (EMBEDDING, HEAD):
            raise self.wrong(
                stored.name,
                "is no matrix of a LoRA adapter, and modules_to_save has no such",
                MERGE,
            )
        self._check_vocabulary(stored, part)
        modules = self.sites.parts.items()
        embedding = (module for module, parts in modules if parts[0].site == EMBEDDING)
        names = tuple(f"{module}.weight" for module in (part.module, *embedding))
        return Copy(stored, names, self._tied(part))

    def _weight(self, name: TensorName, stored: StoredTensor) -> list[Own]:
        part = self._any_part(name)
        if part is not None and part.site in (EMBEDDING, HEAD):
            self._check_vocabulary(stored, part)
            return [Own(part, "weight", stored)]
        parts = self._norm_or_parts(name)
        first = parts[0]
        rows = first.within.of or first.rows
        shape = (rows,) if self._is_norm(first) else (rows, first.columns)
        self._check_shape(stored, shape[::-1] if first.transposed else shape)
        return [Own(one, "weight", stored) for one in parts]

    def _bias(self, name: TensorName, stored: StoredTensor) -> list[Own]:
        if not self.config.has_biases and not self.config.has_whole(name.module):
            raise self.wrong(stored.name, "is there, and bias is 'none' in the config", MERGE)
        parts = self._norm_or_parts(name)
        if f"{parts[0].module}.bias" not in self.sites.biases:
            raise self.wrong(stored.name, "is a bias that this model has not")
        self._check_shape(stored, (parts[0].within.of or parts[0].rows,))
        return [Own(one, "bias", stored) for one in parts]

    def _added_bias(
        self, name: TensorName, stored: StoredTensor, found: Mapping[Kind, StoredTensor]
    ) -> list[Own]:
        parts = self.parts_of(name)
        if "A" not in found or parts[0].site == EMBEDDING:
            raise self.wrong(stored.name, "stands beside no lora_A of a product")
        self._check_shape(stored, (parts[0].within.of or parts[0].rows,))
        scale = self.config.scale(name.module, found["A"].shape[0])
        return [Own(one, "added_bias", stored, scale=scale) for one in parts]

    def _tokens(self, name: TensorName, stored: StoredTensor) -> list[Own]:
        (part,) = self.parts_of(name)
        tokens = self.config.tokens_of(name.module)
        if part.site not in (EMBEDDING, HEAD):
            raise self.wrong(stored.name, "is for rows of an embedding or of a head")
        self._check_shape(stored, (len(tokens), part.columns))
        if max(tokens) >= part.rows:
            raise self.wrong(
                stored.name,
                f"has a row for token {max(tokens)}, and the model's vocabulary is {part.rows}",
                "The adapter was trained with a resized vocabulary: resize the base likewise.",
            )
        # A head tied to the embedding takes the same rows, unless it has its own.
        same = ((), tokens)
        tied = (one for one in self._tied(part) if self.config.tokens_of(one.module) in same)
        return [Own(one, "weight", stored, tokens) for one in tied]

    def _tied(self, part: SitePart) -> tuple[SitePart, ...]:
        """The embedding and the tied head change together."""
        if part.site != EMBEDDING or not self.sites.is_tied:
            return (part,)
        heads = (parts[0] for parts in self.sites.parts.values() if parts[0].site == HEAD)
        return (part, *heads)

    def _is_norm(self, part: SitePart) -> bool:
        return part.module in self.sites.norms

    def _any_part(self, name: TensorName) -> SitePart | None:
        known = (self.sites.parts.get(module) for module in self._modules(name))
        return next((parts[0] for parts in known if parts), None)

    def _modules(self, name: TensorName) -> tuple[str, ...]:
        """The names that a module may have in the model's files: adapters of bare models leave
        `model.` out, and Transformers may say that where files have another word."""
        inner = name.own.removeprefix("model.")
        return name.own, f"model.{name.own}", f"{self.sites.base}.{inner}"

    def _norm_or_parts(self, name: TensorName) -> tuple[SitePart, ...]:
        for module in self._modules(name):
            if module in self.sites.norms:
                return (self.sites.norms[module],)
        return self.parts_of(name)

    def parts_of(self, name: TensorName) -> tuple[SitePart, ...]:
        """The parts of the model that a module of the adapter means. Adapters of bare models have
        no `model.`."""
        for module in self._modules(name):
            if module in self.sites.parts:
                return self.sites.parts[module]
            if module in self.sites.not_built:
                raise self.wrong(name.module, "is a part that adapters do not change", MERGE)
        if name.own in _CLASSIFIERS:
            raise self.wrong(
                name.module, "is a classifier's head, which adapters do not bring", MERGE
            )
        near = get_close_matches(name.own, self.sites.parts, 1, 0.0)
        hint = f"The nearest is {near[0]!r}. " if near else ""
        raise self.wrong(
            name.module,
            "is no module of this model",
            f"{hint}Was the adapter made for another base?",
        )

    def check_saved(self, own: Iterable[Own]) -> None:
        """Refuse if a module that the config names as whole is missing: the base's would be
        wrong."""
        there = {one.part.module for one in own}
        parts = (part for parts in self.sites.parts.values() for part in parts)
        known = {part.module for part in (*parts, *self.sites.norms.values())}
        ends = tuple(f".{one}" for one in self.config.saved)
        for module in sorted(known - there):
            if f".{module}".endswith(ends):
                raise self.wrong(module, "is in modules_to_save, and the file has nothing of it")

    def check_tied(self, changed: Iterable[Change | Own | Scale]) -> None:
        """Refuse half of a tied pair, which PEFT stores twice: the other half would stay the
        base's."""
        there = {one.part.site for one in changed} & {EMBEDDING, HEAD}
        if self.config.is_tied and self.sites.is_tied and len(there) == 1:
            [site] = there
            raise self.wrong(
                "ensure_weight_tying", f"is true, and there is something for the {site} alone"
            )

    def check_kinds(
        self, name: TensorName, found: Mapping[Kind, StoredTensor], kinds: frozenset[Kind]
    ) -> None:
        if missing := kinds - found.keys():
            lacking = ", ".join(f"lora_{kind}" for kind in sorted(missing))
            raise self.wrong(name.module, f"lacks {lacking}")
        if unknown := found.keys() - kinds - {"magnitude"}:
            what = ", ".join(f"lora_{kind}" for kind in sorted(unknown))
            raise self.wrong(name.module, f"has {what}, which does not belong there")
        if ("magnitude" in found) != self.config.use_dora:
            has = "has" if "magnitude" in found else "has no"
            said = "true" if self.config.use_dora else "false"
            raise self.wrong(name.module, f"{has} lora_magnitude_vector, and use_dora is {said}")

    def _check_vocabulary(self, stored: StoredTensor, part: SitePart) -> None:
        if len(stored.shape) == 2 and stored.shape[0] != part.rows:
            raise InvalidAdapter(
                f"{self.path}: {stored.name} has {stored.shape[0]} rows, and the model's "
                f"vocabulary is {part.rows}: the adapter was trained with a resized one. {MERGE}",
                parameter=stored.name,
                value=list(stored.shape),
            )
        self._check_shape(stored, (part.rows, part.columns))

    def _check_shape(self, tensor: StoredTensor, shape: tuple[int, ...]) -> None:
        if tensor.shape != shape or 0 in shape:
            raise self.other_shape(tensor, shape)

    def other_shape(self, tensor: StoredTensor, shape: tuple[int, ...]) -> InvalidAdapter:
        return InvalidAdapter(
            f"{self.path}: {tensor.name} has the shape {list(tensor.shape)}, and this model asks "
            f"for {list(shape)}. The adapter was made for another base.",
            parameter=tensor.name,
            value=list(tensor.shape),
        )

    def check_rank(self, tensor: StoredTensor, rank: int) -> None:
        if rank > self.max_rank:
            raise InvalidAdapter(
                f"{self.path}: {tensor.name} has the rank {rank}, and max_lora_rank is "
                f"{self.max_rank}. Set max_lora_rank={rank} or more.",
                parameter="max_lora_rank",
                value=rank,
            )

    def wrong(self, what: str, why: str, way_out: str = "") -> InvalidAdapter:
        return wrong(self.path, what, why, way_out)


def wrong(path: Path, what: str, why: str, way_out: str = "") -> InvalidAdapter:
    return InvalidAdapter(
        f"{path}: {what[:200]} {why}. {way_out}".rstrip(), parameter="lora_path", value=what[:200]
    )
