"""Which of a stored tensor is a part of a weight, where that is not all of it. No torch."""

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
    """Of a tensor that holds one for each expert, that of `expert`; of that, `turned` from
    [in, out] to [out, in], of the `of` rows it has (None: as many as are wanted) every `step`-th
    from `first` on."""

    expert: int | None = None
    turned: bool = False
    first: int = 0
    step: int = 1
    of: int | None = None

    def of_stored(self, source: StoredTensor, shape: tuple[int, ...], where: str) -> StoredTensor:
        """The part of a stored tensor that has this shape; refused where there is no such."""
        if self.expert is not None:
            source = of_expert(source, self.expert, where)
        whole = (self.of or shape[0], *shape[1:])
        if source.shape == tuple(size for size in whole if size > 1):  # GGUF files leave ones out
            source = replace(source, shape=whole)
        expected = whole[::-1] if self.turned else whole
        if source.shape != expected:
            raise CorruptModel(
                f"{where}: tensor {source.name!r} has the shape {source.shape}; "
                f"the model's config asks for {expected}"
            )
        if self.turned:
            source = replace(source, shape=whole, turned=True)
        if self.of is None:
            return source
        return source.rows(self.first, shape[0], self.step)

    def of_tensor(self, tensor: Tensor, count: int) -> Tensor:
        """The same of a tensor in memory: `count` rows of it."""
        if self.expert is not None:
            tensor = tensor[self.expert]
        if self.turned:
            tensor = tensor.transpose(0, 1)
        return tensor[self.first : self.first + count * self.step : self.step]

    def whole(self, shape: tuple[int, ...], experts: int) -> tuple[int, ...]:
        """The shape of the tensor that a part of this shape is cut from, of so many experts."""
        rows = (self.of or shape[0], *shape[1:])
        rows = rows[::-1] if self.turned else rows
        return rows if self.expert is None else (experts, *rows)


WHOLE = Within()


def latent_pairs(
    names: tuple[Name, Name], heads: int, latent: LatentPlan
) -> Iterator[tuple[Name, int, Within, Within]]:
    """Head by head what makes its keys, then its values: its name of `names`, its rows, and which
    they are of a tensor of Hugging Face, and of a GGUF file, which has that of keys turned."""
    total, at = heads * latent.pair_dims, 0
    for head in range(heads):
        for name, rows in zip(names, (latent.plain_dims, latent.value_dims), strict=True):
            inside = Within(expert=head, turned=name is names[0])
            yield name, rows, Within(first=at, of=total), inside
            at += rows


def of_expert(source: StoredTensor, expert: int, where: str) -> StoredTensor:
    """What a tensor of all experts holds of one."""
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
