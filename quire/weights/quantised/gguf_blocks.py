"""Blocks of GGUF files -> a GroupedMatrix, without making the weights wide.

Codes and scales are those of dequantise.py, kept apart: formats of 4 bits stay in 4, those of 5, 6
and 8 become 8.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from quire.backends.quantised.grouped import (
    SIGNED_ZERO,
    GroupedMatrix,
    block_columns,
    put_together,
)
from quire.weights.dequantise import FP4, IQ4, crumbs, half, high_bits, nibbles, planes, six_bit
from quire.weights.formats import StoredTensor
from quire.weights.read_rows import stored_rows
from quire.weights.row_order import RowOrder

_READ = 1 << 24
# Codes uint8 [blocks, weights], scales float32 [blocks, groups], and minima of the same shape.
Parts = tuple[Tensor, Tensor, Tensor | None]


def gguf_matrix(
    source: StoredTensor,
    num_rows: int,
    order: RowOrder | None,
    columns: range | None,
    device: torch.device,
) -> GroupedMatrix:
    """The first rows of a stored tensor, in order."""
    kind, width = KEPT_FORMATS[source.format.name], source.shape[1]
    codes, scales, minima = [], [], []
    for _, count, raw in stored_rows(source, num_rows, order, _READ):
        blocks = raw.to(device).view(-1, source.format.block_bytes)
        code, scale, minimum = kind.part(blocks)
        code = code.reshape(count, width)
        codes.append(put_together(code, kind.bits))
        scales.append(scale.reshape(count, -1))
        if minimum is not None:
            minima.append(minimum.reshape(count, -1))
    table = None if kind.table is None else torch.tensor(kind.table, device=device).float()
    made = GroupedMatrix(
        kind.bits,
        torch.cat(codes),
        torch.cat(scales),
        kind.zero,
        minima=torch.cat(minima) if minima else None,
        table=table,
    )
    return made if columns is None else made.columns(columns.start, columns.stop)


class _Kind:
    """How the blocks of a format come apart."""

    def __init__(
        self,
        bits: int,
        part: Callable[[Tensor], Parts],
        zero: int = 0,
        table: tuple[int, ...] | None = None,
    ) -> None:
        self.bits, self.part, self.zero, self.table = bits, part, zero, table


def _q4_0(raw: Tensor) -> Parts:
    return nibbles(raw[:, 2:], 16), half(raw, 0), None


def _q4_1(raw: Tensor) -> Parts:
    return nibbles(raw[:, 4:], 16), half(raw, 0), half(raw, 2)


def _q5_0(raw: Tensor) -> Parts:
    values = nibbles(raw[:, 6:], 16) | high_bits(raw, 2)
    return values + (SIGNED_ZERO - 16), half(raw, 0), None


def _q5_1(raw: Tensor) -> Parts:
    values = nibbles(raw[:, 8:], 16) | high_bits(raw, 4)
    return values, half(raw, 0), half(raw, 2)


def _q8_0(raw: Tensor) -> Parts:
    return raw[:, 2:] ^ SIGNED_ZERO, half(raw, 0), None


def _q4_k(raw: Tensor) -> Parts:
    scales, minima = six_bit(raw[:, 4:16])
    return nibbles(raw[:, 16:], 32), half(raw, 0) * scales, -half(raw, 2) * minima


def _q5_k(raw: Tensor) -> Parts:
    scales, minima = six_bit(raw[:, 4:16])
    values = nibbles(raw[:, 48:], 32) | (planes(raw[:, 16:48], 8) << 4)
    return values, half(raw, 0) * scales, -half(raw, 2) * minima


def _q6_k(raw: Tensor) -> Parts:
    values = nibbles(raw[:, :128], 64) | (crumbs(raw[:, 128:192]) << 4)
    scales = half(raw, 208) * raw[:, 192:208].view(torch.int8)
    return values + (SIGNED_ZERO - 32), scales, None


def _iq4_nl(raw: Tensor) -> Parts:
    return nibbles(raw[:, 2:], 16), half(raw, 0), None


def _mxfp4(raw: Tensor) -> Parts:
    # Half of 2^(power - 127): the table is doubled to be whole.
    return nibbles(raw[:, 1:], 16), torch.exp2(raw[:, :1].float() - 128), None


KEPT_FORMATS = {
    "Q4_0": _Kind(4, _q4_0, 8),
    "Q4_1": _Kind(4, _q4_1),
    "Q4_K": _Kind(4, _q4_k),
    "IQ4_NL": _Kind(4, _iq4_nl, table=IQ4),
    "MXFP4": _Kind(4, _mxfp4, table=FP4),
    "Q5_0": _Kind(8, _q5_0, SIGNED_ZERO),
    "Q5_1": _Kind(8, _q5_1),
    "Q5_K": _Kind(8, _q5_k),
    "Q6_K": _Kind(8, _q6_k, SIGNED_ZERO),
    "Q8_0": _Kind(8, _q8_0, SIGNED_ZERO),
}


def is_kept_format(source: StoredTensor) -> bool:
    """Whether a stored tensor can stay as it is."""
    kind = KEPT_FORMATS.get(source.format.name)
    if kind is None or source.is_scattered or source.scales or len(source.shape) != 2:
        return False
    return source.shape[1] % block_columns(kind.bits) == 0
