"""Replaces weights of a built model, by their names in Hugging Face checkpoints.

Each tensor is checked and written in place, so that captured CUDA graphs stay valid. A weight that
the kernels have packed is packed again. What can be read twice (a list, the items of a dict) is
checked whole before anything is written. An iterator is read once, a pair at a time: trainers
gather each tensor when it is asked for, since all together would not fit into memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor

from quire.backends.linear import KEPT, WeightRows, is_kept
from quire.errors import InvalidRequest, NotSupported
from quire.models.decoder import Decoder
from quire.params.rules import show
from quire.spec import ModelSpec
from quire.weights.names import weights_of
from quire.weights.parts import Part
from quire.weights.read_rows import in_order
from quire.weights.row_order import RowOrder
from quire.weights.stored_names import BASES, is_of_a_tower, own_name
from quire.weights.tied import head_names
from quire.weights.within import Within, without_ones

# Tensors in checkpoints that are no weights: they are computed from the config.
_NOT_WEIGHTS = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")


@dataclass(frozen=True, slots=True)
class _Target:
    """The rows of a weight that a stored tensor, or a part of it, fills."""

    weight: str  # quire's name
    places: tuple[WeightRows, ...]
    first: int
    count: int
    within: Within
    order: RowOrder | None
    less: float


class NewWeights:
    """Writes named tensors into a model, and reads back those that it wrote."""

    def __init__(self, model: Decoder, spec: ModelSpec) -> None:
        places = model.places
        self._targets: dict[str, list[_Target]] = {}
        self._shapes: dict[str, tuple[tuple[int, ...], ...]] = {}
        self._written: set[tuple[str, int]] = set()  # the first rows of targets, by weight
        self._tied_heads = head_names(spec) if spec.tied_embeddings else ()
        weights = tuple(weights_of(spec))
        own = frozenset(part.hf for weight in weights for part in weight.parts)
        for weight in weights:
            place, first = places[weight.name], 0
            for part in weight.parts:
                shape = part.rows, *weight.shape[1:]
                first += part.zeros
                for name, within in self._stored(part, own):
                    self._shapes[name] = within.wholes(shape, (within.expert or 0) + 1)
                    self._targets.setdefault(name, []).append(
                        _Target(
                            weight.name,
                            place,
                            first,
                            part.rows,
                            within,
                            part.order,
                            part.hf_added,
                        )
                    )
                first += part.rows

    def _stored(self, part: Part, own: Collection[str]) -> Iterator[tuple[str, Within]]:
        """The tensors that may have a part, and where in them: its own in files, and what
        Transformers calls the module or the tensor of all experts, if files have no other weight of
        that name. A head that is tied brings nothing of its own."""
        yield part.hf, part.hf_within
        other = part.hf_else
        if other is not None and other[0] not in own and other[0] not in self._tied_heads:
            yield other

    @torch.no_grad()
    def load(self, named: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Write the tensors and return the names of those written. A name or shape that the model
        does not have is an error; then nothing is written, but of an iterator the tensors before
        it."""
        if isinstance(named, Mapping):
            named = named.items()
        if isinstance(named, Collection):
            for pair in named:
                self._checked(pair)
        loaded: set[str] = set()
        for pair in named:
            try:
                name = self._checked(pair)
            except InvalidRequest as error:
                raise _half_way(error, len(loaded)) if loaded else error from None
            if name is None:
                continue
            tensor = _without_other_ones(pair[1].detach(), self._shapes[name])
            for target in self._targets[name]:
                self._written.add((target.weight, target.first))
                _write(target, tensor)
            loaded.add(pair[0])
        return loaded

    @torch.no_grad()
    def written(self, names: Collection[str]) -> Iterator[tuple[str, Tensor]]:
        """Those of these tensors of which anything was written, by this name or another, as files
        of Hugging Face would have them now, in float32, one at a time: rounded as the model has
        them."""
        for name in names:
            targets = self._targets.get(name, ())
            if not any((target.weight, target.first) in self._written for target in targets):
                continue
            whole = torch.empty(self._shapes[name][0])
            for target in targets:
                target.within.of_tensor(whole, target.count).copy_(_read(target))
            yield name, whole

    def _checked(self, pair: Any) -> str | None:
        """The name as in `_targets`; None for a tensor that is no weight of its own."""
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            shown = show(pair[0] if isinstance(pair, tuple | list) and pair else pair)
            raise _wrong(f"weights are pairs of a name and a tensor, not {shown}", pair)
        if (name := self._name(pair[0])) is not None:
            _check(pair[0], pair[1], self._shapes[name])
            if any(is_kept(place) for target in self._targets[name] for place in target.places):
                raise NotSupported(f"{pair[0]}: {KEPT}")
        return name

    def _name(self, given: str) -> str | None:
        own = own_name(given)
        base = next((one for one in BASES if own.startswith(one)), "")
        # Models without a head have no prefix, and modules of Transformers may have another.
        for name in (own, *(f"{one}{own.removeprefix(base)}" for one in BASES)):
            if name in self._targets:
                return name
        if given.endswith(_NOT_WEIGHTS) or own in self._tied_heads:
            return None
        if is_of_a_tower(given):
            return None
        near = get_close_matches(given, self._targets, 1, 0.0)
        hint = f" The nearest name is {near[0]!r}." if near else ""
        raise _wrong(f"the model has no weight {given!r}.{hint}", given)


def _without_other_ones(tensor: Tensor, shapes: tuple[tuple[int, ...], ...]) -> Tensor:
    """The tensor in the model's shape, of which some files leave out or add dimensions of 1."""
    same = (one for one in shapes if without_ones(one) == without_ones(tuple(tensor.shape)))
    return tensor.reshape(next(same))


def _write(target: _Target, tensor: Tensor) -> None:
    rows = target.within.of_tensor(tensor, target.count)
    if target.order is not None:
        rows = in_order(rows.contiguous(), target.order)
    if target.less:
        rows = rows.float() + target.less
    for place in target.places:
        place.write_rows(target.first, rows)


def _read(target: _Target) -> Tensor:
    rows = target.places[0].read_rows(target.first, target.count)
    if target.less:
        rows = rows - target.less
    return rows if target.order is None else in_order(rows.contiguous(), target.order.back())


def _check(name: str, tensor: Any, shapes: tuple[tuple[int, ...], ...]) -> None:
    if not isinstance(tensor, Tensor):
        raise _wrong(f"the weight {name!r} is a {type(tensor).__name__}, not a tensor", name)
    if without_ones(tuple(tensor.shape)) not in map(without_ones, shapes):
        raise _wrong(
            f"the weight {name!r} has the shape {list(tensor.shape)}, the model's has "
            f"{list(shapes[0])}",
            name,
        )
    if tensor.is_meta or tensor.layout != torch.strided:
        kind = "has no numbers (device meta)" if tensor.is_meta else f"is {tensor.layout}"
        raise _wrong(f"the weight {name!r} {kind}; give a dense tensor with its numbers", name)
    if not tensor.is_floating_point():
        raise _wrong(f"the weight {name!r} is in {tensor.dtype}; weights are floats", name)


def _half_way(error: InvalidRequest, count: int) -> InvalidRequest:
    before = "1 tensor before it is" if count == 1 else f"{count} tensors before it are"
    return _wrong(
        f"{error.message} {before} written already: give all again. A list is checked whole before "
        "anything is written.",
        error.value,
    )


def _wrong(message: str, value: Any) -> InvalidRequest:
    return InvalidRequest(message, parameter="weights", value=value)
