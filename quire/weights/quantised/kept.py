"""Weights that stay quantised on a GPU: read and stacked for the model, or random.

Kept are the matrices of layers, a head that is not tied, and experts where a device has products
for them. Plain are an embedding, whose rows are looked up, and the product that makes keys and
values of latents, which is divided by heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from quire.backends.quantised.fp8_matrix import Fp8Matrix, stacked_fp8
from quire.backends.quantised.grouped import FP4, GroupedMatrix, stacked
from quire.weights.cuts import Piece
from quire.weights.parts import Weight
from quire.weights.quantised.gguf_blocks import gguf_matrix, is_kept_format
from quire.weights.quantised.layout import Layout, Quantisation
from quire.weights.quantised.stored import Source, StoredMatrix
from quire.weights.quantised.unpack import QuantisedMatrix, read_matrix

SMALL = 0.02  # the size of random weights
_POWER = 2.0**-8  # the scale of random floats of 4 bits, which are about 2


@dataclass(frozen=True, slots=True)
class Products:
    """What a GPU has products for beside codes of matrices: fp8, and experts in 4-bit codes or
    fp8."""

    fp8: bool
    experts: bool

    def take(self, weight: Weight, sources: Sequence[Source]) -> bool:
        """Whether all parts of a weight are quantised in ways that a product supports."""
        if not _is_used_whole(weight):
            return False
        kept = all(
            one.layout.has_product and (one.layout.kind != "fp8" or self.fp8)
            if isinstance(one, StoredMatrix)
            else is_kept_format(one)
            for one in sources
        )
        if not _is_expert(weight):
            return kept
        return kept and self.experts and all(map(_has_expert_product, sources))


def _is_used_whole(weight: Weight) -> bool:
    """Whether this is a matrix used as a whole in a product."""
    if weight.name == "embed.weight" or weight.name.endswith(".kv_b.weight"):
        return False
    return weight.is_matrix


def _is_expert(weight: Weight) -> bool:
    return ".experts." in weight.name


def _has_expert_product(source: Source) -> bool:
    if isinstance(source, StoredMatrix):
        return source.layout.has_expert_product
    return source.format.name in ("Q4_0", "Q4_1", "Q4_K", "MXFP4")


def read_kept(piece: Piece, device: torch.device) -> QuantisedMatrix:
    """The piece's rows and columns of a stored weight."""
    if isinstance(piece.source, StoredMatrix):
        return read_matrix(piece.source, piece.order, piece.columns, device)
    return gguf_matrix(piece.source, piece.rows, piece.order, piece.columns, device)


def stack(parts: Sequence[QuantisedMatrix], dtype: torch.dtype) -> QuantisedMatrix | Tensor:
    """The parts of a weight, stacked. Plain if they cannot be: codes beside fp8, or columns
    scattered in different orders."""
    if all(isinstance(part, Fp8Matrix) for part in parts):
        return stacked_fp8(cast(Sequence[Fp8Matrix], parts))
    made = None
    if all(isinstance(part, GroupedMatrix) for part in parts):
        made = stacked(cast(Sequence[GroupedMatrix], parts))
        if made is not None and made.zeros is not None and made.minima is not None:
            made = None  # no product has both
    return torch.cat([part.dequantised(dtype) for part in parts]) if made is None else made


def random_matrix(
    weight: Weight,
    said: Quantisation,
    device: torch.device,
    generator: torch.Generator,
    products: Products,
) -> QuantisedMatrix | None:
    """A random weight in the layout that the config names; None: it is plain."""
    module = weight.parts[0].hf.removesuffix(".weight")
    layout = said.layout_of(module)
    if weight.name == "head.weight" or layout is None or not _is_used_whole(weight):
        return None
    if _is_expert(weight) and not (products.experts and layout.has_expert_product):
        return None
    if not layout.has_product:
        return None
    lines, columns = weight.shape[0], weight.shape[1]
    if layout.kind == "fp8":
        return _random_fp8(lines, columns, layout, device, generator)
    group = layout.group or (64 if layout.kind == "nf4" else columns)
    held = 4 if layout.bits <= 4 else 8
    size = (lines, columns * held // 16)
    ends = (-(1 << 15), 1 << 15)
    codes = torch.randint(*ends, size, dtype=torch.int16, device=device, generator=generator)
    scales = torch.full((lines, columns // group), SMALL * 4 / (1 << layout.bits), device=device)
    zeros = torch.full(scales.shape, 1 << (layout.bits - 1), dtype=torch.uint8, device=device)
    if layout.kind == "mxfp4":
        return GroupedMatrix(4, codes, _POWER * scales.sign(), table=torch.tensor(FP4).to(device))
    if layout.kind == "nf4":
        table = torch.linspace(-8.0, 8.0, 16, device=device)
        return GroupedMatrix(4, codes, scales, table=table)
    if layout.symmetric:
        return GroupedMatrix(held, codes, scales.half(), zero=1 << (layout.bits - 1))
    return GroupedMatrix(held, codes, scales.half(), zeros=zeros)


def _random_fp8(
    lines: int, columns: int, layout: Layout, device: torch.device, generator: torch.Generator
) -> Fp8Matrix:
    wide = torch.empty(lines, columns, device=device).normal_(0.0, 50.0, generator=generator)
    codes = wide.to(torch.float8_e4m3fn)
    tall, width = layout.block or (1, columns)
    size = (-(-lines // tall), -(-columns // width))
    return Fp8Matrix(codes, torch.full(size, SMALL / 50.0, device=device), tall, width)
