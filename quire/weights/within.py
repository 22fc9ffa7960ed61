"""Which part of a stored tensor fills a weight, if not all of it. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from quire.errors import CorruptModel
from quire.families.family import Name
from quire.layer_plan import LatentPlan
from quire.weights.formats import StoredTensor

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Within:
    """The part of a stored tensor that fills a weight: of a tensor for all experts that of
    `expert`; then, if `transposed`, changed from [in, out] to [out, in]; then, of its `of` rows
    (None: as many as are wanted), every `step`-th from `first` on. With `groups` the file has them
    as so many rows of equal length. With `piled` it has so many experts, one below the other in one
    matrix. With `either_way` its shape shows whether it is transposed; a
    square is not, as for Transformers."""

    expert: int | None = None
    transposed: bool = False
    first: int = 0
    step: int = 1
    of: int | None = None
    groups: int = 1
    either_way: bool = False
    piled: int = 0

    def of_stored(self, source: StoredTensor, shape: tuple[int, ...], where: str) -> StoredTensor:
        """The part of a stored tensor, which must have this shape."""
        if self.expert is not None:
            source = of_expert(self._apart(source), self.expert, where)
        whole = (self.of or shape[0], *shape[1:])
        grouped = (self.groups, whole[0] // self.groups, *whole[1:])
        if without_ones(source.shape) == without_ones(grouped):  # some files leave out or add 1s
            source = replace(source, shape=whole)
        turned = self.transposed or (self.either_way and source.shape == whole[::-1] != whole)
        expected = whole[::-1] if turned else whole
        if source.shape != expected:
            raise CorruptModel(
                f"{where}: tensor {source.name!r} has the shape {source.shape}; "
                f"the model's config asks for {expected}"
            )
        if turned:
            source = replace(source, shape=whole, transposed=True)
        if self.of is None:
            return source
        return source.rows(self.first, shape[0], self.step)

    def _apart(self, source: StoredTensor) -> StoredTensor:
        """The stored tensor, with a dimension for experts; as it is if they do not divide it."""
        rows = source.shape[0]
        if not self.piled or rows % self.piled:
            return source
        return replace(source, shape=(self.piled, rows // self.piled, *source.shape[1:]))

    def of_tensor(self, tensor: Tensor, count: int) -> Tensor:
        """The part of a tensor in memory: `count` rows."""
        if self.piled:
            tensor = tensor.reshape(self.piled, -1, *tensor.shape[1:])
        if self.expert is not None:
            tensor = tensor[self.expert]
        wanted = self.of or count
        if self.transposed or (self.either_way and tensor.shape[0] != wanted):
            tensor = tensor.transpose(0, 1)
        return tensor[self.first : self.first + count * self.step : self.step]

    def wholes(self, shape: tuple[int, ...], experts: int) -> tuple[tuple[int, ...], ...]:
        """The shapes that the tensor may have from which a part of this shape is cut, with so many
        experts."""
        rows = (self.of or shape[0], *shape[1:])
        rows = rows[::-1] if self.transposed else rows
        if self.piled:
            return ((self.piled * rows[0], *rows[1:]),)
        ways = (rows, rows[::-1]) if self.either_way else (rows,)
        return ways if self.expert is None else tuple((experts, *one) for one in ways)


WHOLE = Within()


def without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size > 1)


def latent_pairs(
    names: tuple[Name, Name], heads: int, latent: LatentPlan
) -> Iterator[tuple[Name, int, Within, Within]]:
    """Head by head the parts that make its keys and its values: the name, the rows, and the part of
    the tensor in files of Hugging Face and in GGUF files, where that of keys is transposed."""
    total, at = heads * latent.pair_dims, 0
    for head in range(heads):
        for name, rows in zip(names, (latent.plain_dims, latent.value_dims), strict=True):
            inside = Within(expert=head, transposed=name is names[0])
            yield name, rows, Within(first=at, of=total), inside
            at += rows


def of_expert(source: StoredTensor, expert: int, where: str) -> StoredTensor:
    """One expert's part of a tensor of all experts."""
    if len(source.shape) < 2 or expert >= source.shape[0]:
        raise CorruptModel(
            f"{where}: tensor {source.name!r} has the shape {source.shape}; it has nothing "
            f"for expert {expert}"
        )
    return replace(
        source,
        shape=source.shape[1:],
        offset=source.offset + expert * source.row_bytes,
        num_bytes=source.row_bytes,
        scales=source.scales[expert : expert + 1] if len(source.scales) > 1 else source.scales,
    )
