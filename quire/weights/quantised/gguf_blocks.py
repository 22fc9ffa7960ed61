"""Blocks of GGUF files -> a GroupedMatrix, without dequantising.

Codes and scales are those of dequantise.py: formats of 4 bits keep 4, those of 5, 6 and 8 bits
become 8.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.backends.quantised.grouped import (
    SIGNED_ZERO,
    GroupedMatrix,
    block_columns,
    put_together,
)
from quire.weights.dequantise import BLOCKS
from quire.weights.formats import StoredTensor
from quire.weights.read_rows import stored_rows
from quire.weights.row_order import RowOrder

_READ = 1 << 24
# The bits of codes in a GroupedMatrix, by format.
KEPT_BITS = {
    **dict.fromkeys(("Q4_0", "Q4_1", "Q4_K", "IQ4_NL", "MXFP4"), 4),
    **dict.fromkeys(("Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0"), 8),
}


def gguf_matrix(
    source: StoredTensor,
    num_rows: int,
    order: RowOrder | None,
    columns: range | None,
    device: torch.device,
) -> GroupedMatrix:
    """The first `num_rows` rows of a stored tensor, in order."""
    name, width = source.format.name, source.shape[1]
    bits, format = KEPT_BITS[name], BLOCKS[name]
    codes, scales, minima, zero = [], [], [], format.zero
    for _, count, raw in stored_rows(source, num_rows, order, _READ):
        blocks = raw.to(device).view(-1, source.format.block_bytes)
        code, scale, minimum = format.part(blocks)
        if bits == 8:
            code, zero = _unsigned(code, format.zero)
        codes.append(put_together(code.reshape(count, width), bits))
        scales.append(scale.reshape(count, -1))
        if minimum is not None:
            minima.append(minimum.reshape(count, -1))
    table = None if format.table is None else torch.tensor(format.table, device=device).float()
    made = GroupedMatrix(
        bits,
        torch.cat(codes),
        torch.cat(scales),
        zero,
        minima=torch.cat(minima) if minima else None,
        table=table,
    )
    return made if columns is None else made.columns(columns.start, columns.stop)


def _unsigned(codes: Tensor, zero: int) -> tuple[Tensor, int]:
    """8-bit codes, and the code of zero, which for signed numbers is in the middle."""
    if codes.dtype == torch.int8:
        return codes.contiguous().view(torch.uint8) ^ SIGNED_ZERO, SIGNED_ZERO
    return (codes + (SIGNED_ZERO - zero), SIGNED_ZERO) if zero else (codes, zero)


def is_kept_format(source: StoredTensor) -> bool:
    """Whether a stored tensor can stay quantised."""
    bits = KEPT_BITS.get(source.format.name)
    if bits is None or source.is_scattered or source.scales or len(source.shape) != 2:
        return False
    return source.shape[1] % block_columns(bits) == 0
