"""Reads rows of a stored tensor, a few at a time, and unpacks them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.errors import CorruptModel
from quire.weights.dequantise import dequantise_into
from quire.weights.formats import StoredTensor
from quire.weights.row_order import RowOrder

_WHOLE_READ = 1 << 23


def stored_rows(
    source: StoredTensor,
    num_rows: int,
    order: RowOrder | None,
    read_size: int,
    *,
    pinned: bool = False,
) -> Iterator[tuple[int, int, Tensor]]:
    """Read about `read_size` bytes at a time: (first row, number of rows, their bytes in order).

    With `pinned`, into memory for copies to a GPU, which torch keeps until they are done."""
    if source.is_scattered:
        yield 0, num_rows, _scattered_rows(source, order)
        return
    unit = len(order.order) if order else 1  # rows that must be read together
    rows = max(read_size // (source.row_bytes * unit), 1) * unit
    with source.path.open("rb", buffering=0) as file:
        file.seek(source.offset)
        for first in range(0, num_rows, rows):
            count = min(rows, num_rows - first)
            raw = torch.empty(count * source.row_bytes, dtype=torch.uint8, pin_memory=pinned)
            read_exactly(file, raw.numpy(), source)
            if order:
                raw = in_order(raw.view(count, -1), order, first // unit).view(-1)
            yield first, count, raw


def _scattered_rows(source: StoredTensor, order: RowOrder | None) -> Tensor:
    """All rows of a tensor that are not contiguous in the file, as bytes in order."""
    raw = torch.empty(source.num_bytes, dtype=torch.uint8)
    with source.path.open("rb", buffering=0) as file:
        file.seek(source.offset)
        read_exactly(file, raw.numpy(), source)
    if source.transposed:
        columns = raw.view(*source.shape[1:], -1, source.format.block_bytes)
        rows = columns.transpose(0, 1).flatten(1)
    else:
        rows = raw.view(-1, source.row_bytes)
    wanted = slice(source.first, source.first + source.step * source.shape[0], source.step)
    rows = rows[wanted].contiguous()
    return (rows if order is None else in_order(rows, order)).view(-1)


def unpack(out: Tensor, raw: Tensor, source: StoredTensor, piece: int) -> None:
    """Dequantise `piece` weights at a time, a multiple of every format's block."""
    format = source.format
    (scale,) = source.scales or (1.0,)  # of several, an expert's part has one
    for first in range(0, out.numel(), piece):
        weights = out[first : first + piece]
        start = first // format.block * format.block_bytes
        num_bytes = weights.numel() // format.block * format.block_bytes
        dequantise_into(weights, raw[start : start + num_bytes], format.name, scale)


def in_order(rows: Tensor, order: RowOrder, first_head: int = 0) -> Tensor:
    """Rows [N, ...] of a tensor that begin with head `first_head`, put in order."""
    heads = rows.view(-1, len(order.order), *rows.shape[1:])
    num_ordered = max(order.heads - first_head, 0)
    ordered = heads[:num_ordered, torch.tensor(order.order, device=rows.device)]
    return torch.cat([ordered, heads[num_ordered:]]).view(rows.shape)


def read_exactly(file: BinaryIO, into: npt.NDArray[np.uint8], source: StoredTensor) -> None:
    view = into.data
    while view:
        count = file.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise CorruptModel(
                f"{source.path}: the file ended inside tensor {source.name!r}; it was cut short "
                "while it was read"
            )
        view = view[count:]


def read_tensor(source: StoredTensor, first: int = 0, count: int | None = None) -> Tensor:
    """Rows first .. first + count of a stored tensor, by default all, as float32."""
    if not source.shape:  # a single number
        return read_tensor(replace(source, shape=(1,)))[0]
    count = source.shape[0] - first if count is None else count
    part = replace(
        source,
        offset=source.offset + first * source.row_bytes,
        num_bytes=count * source.row_bytes,
        shape=(count, *source.shape[1:]),
    )
    out = torch.empty(part.shape)
    rows = stored_rows(part, count, None, _WHOLE_READ)
    for at, number, raw in rows:
        unpack(out[at : at + number].view(-1), raw, source, _WHOLE_READ)
    return out


def turned_blocks(source: StoredTensor) -> Tensor:
    """The rows of a transposed tensor whose stored rows (its columns) are in blocks."""
    count = source.first + source.step * source.shape[0]
    columns, row = source.shape[1], source.format.block_bytes
    width = source.num_bytes // columns // row * source.format.block
    whole = read_tensor(replace(source, shape=(columns, width), transposed=False, first=0, step=1))
    return whole.T[source.first : count : source.step]
