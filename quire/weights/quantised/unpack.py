"""The tensors of one quantised weight -> a GroupedMatrix or an Fp8Matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.quantised.fp8_matrix import Fp8Matrix
from quire.backends.quantised.grouped import (
    FP4,
    SIGNED_ZERO,
    GroupedMatrix,
    block_columns,
    put_together,
)
from quire.errors import CorruptModel, UnsupportedModel
from quire.weights.formats import StoredTensor
from quire.weights.json_file import parse_object
from quire.weights.quantised.stored import STATES, StoredMatrix
from quire.weights.read_rows import in_order, read_exactly
from quire.weights.row_order import RowOrder

QuantisedMatrix = GroupedMatrix | Fp8Matrix

_DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I8": torch.int8,
    "I32": torch.int32,
    "I64": torch.int64,
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.uint8,
}
# The nibble of a word in which AWQ stores each of eight columns.
_AWQ_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)


# Weights that are dequantised at a time.
_PIECE = 1 << 23
_TALL = 128  # the usual rows of an fp8 block


def dequantised_rows(
    source: StoredMatrix, order: RowOrder | None, columns: range | None, like: Tensor
) -> Iterator[tuple[int, Tensor]]:
    """Plain rows of a weight, some at a time: (index of the first, the rows)."""
    # Whole rows: codes can be cut only at some columns, plain numbers at any.
    matrix = read_matrix(source, order, None, like.device)
    rows, width = matrix.shape
    wanted = slice(None) if columns is None else slice(columns.start, columns.stop)
    step = max(_PIECE // width // _TALL, 1) * _TALL
    for first in range(0, rows, step):
        made = matrix.rows(first, min(first + step, rows)).dequantised(like.dtype)
        yield first, made[:, wanted]


def read_matrix(
    source: StoredMatrix, order: RowOrder | None, columns: range | None, device: torch.device
) -> QuantisedMatrix:
    """The wanted rows and columns of a weight, in order, in the form for quire's products."""
    matrix = read_whole(source, device)
    if source.wanted is not None and source.wanted.step > 1:
        matrix = matrix.rows_at(torch.tensor(source.wanted, device=device))
    elif source.wanted is not None:
        matrix = matrix.rows(source.wanted.start, source.wanted.stop)
    if order is not None:
        matrix = matrix.rows_at(in_order(torch.arange(matrix.shape[0], device=device), order))
    if columns is not None:
        matrix = matrix.columns(columns.start, columns.stop)
    return matrix


def read_whole(source: StoredMatrix, device: torch.device | str = "cpu") -> QuantisedMatrix:
    """Read a whole weight to a device."""
    tensors = {
        role: read_raw(tensor).to(device, non_blocking=False)
        for role, tensor in source.tensors.items()
    }
    return _UNPACK[source.layout.kind](source, tensors)


def read_raw(source: StoredTensor) -> Tensor:
    raw = torch.empty(source.num_bytes, dtype=torch.uint8)
    with source.path.open("rb", buffering=0) as file:
        file.seek(source.offset)
        read_exactly(file, raw.numpy(), source)
    return raw.view(_DTYPES[source.format.name]).view(source.shape)


def _awq(source: StoredMatrix, tensors: dict[str, Tensor]) -> GroupedMatrix:
    def columns(words: Tensor) -> Tensor:
        fields = _fields(words, 4).view(len(words), -1, 8)
        return fields[..., list(_AWQ_NIBBLES)].flatten(1).t().contiguous()

    scales = tensors[".scales"].t().contiguous()
    codes, zeros = columns(tensors[".qweight"]), columns(tensors[".qzeros"])
    return GroupedMatrix(*_words(codes, 4), scales, zeros=zeros)


def _gptq(source: StoredMatrix, tensors: dict[str, Tensor]) -> GroupedMatrix:
    (rows, columns), bits, layout = source.shape, source.layout.bits, source.layout
    # Words hold neighbouring columns: [K / 8, N] -> [N, K].
    codes = _fields(tensors[".qweight"].t().contiguous(), bits)[:, :columns].contiguous()
    zero, zeros = 1 << (bits - 1), None
    if not layout.symmetric:
        words = tensors[".qzeros"]
        whole = layout.zeros_less_one and 32 % bits == 0
        if whole:
            # The tool subtracts 1 from all fields of a word at once, so a field of 0 borrows from
            # the next. Adding to the whole word restores that.
            words = words + sum(1 << at for at in range(0, 32, bits))
        zero, zeros = 0, _fields(words, bits)[:, :rows].t().contiguous()
        if layout.zeros_less_one and not whole:
            zeros = (zeros + 1) & ((1 << bits) - 1)  # one by one, as fields cross words
    order = _order(source, tensors.get(".g_idx"))
    if order is not None:
        codes = codes[:, order].contiguous()
    scales = tensors[".scales"].t().contiguous()
    return GroupedMatrix(*_words(codes, bits), scales, zero, zeros, order=order)


def _packed(source: StoredMatrix, tensors: dict[str, Tensor]) -> GroupedMatrix:
    (rows, columns), bits = source.shape, source.layout.bits
    codes = _fields(tensors[".weight_packed"], bits)[:, :columns].contiguous()
    zero, zeros = 1 << (bits - 1), None
    if not source.layout.symmetric:
        zero, zeros = 0, _packed_zeros(tensors[".weight_zero_point"], rows, bits)
    order = _order(source, tensors.get(".weight_g_idx"))
    if order is not None:
        codes = codes[:, order].contiguous()
    scales = _by_row(tensors[".weight_scale"], rows)
    return GroupedMatrix(*_words(codes, bits), scales, zero, zeros, order=order)


def _packed_zeros(stored: Tensor, rows: int, bits: int) -> Tensor:
    """Words with neighbouring rows, [N / 8, groups] -> [N, groups]; or one signed number for
    all."""
    if stored.dtype == torch.int8:
        return (_by_row(stored, rows).int() + (1 << (bits - 1))).to(torch.uint8)
    return _fields(stored.t().contiguous(), bits)[:, :rows].t().contiguous()


def _int(source: StoredMatrix, tensors: dict[str, Tensor]) -> GroupedMatrix:
    rows = source.shape[0]
    codes = put_together(_unsigned(tensors[".weight"]), 8)
    if (largest := tensors.get(".SCB")) is not None:
        order = tensors.get(".weight_format")
        if order is not None and bool(order.any()):
            raise UnsupportedModel(
                f"{source.name}: its weight_format is {order.flatten()[0]}; of bitsandbytes' 8 "
                "bits quire reads rows (0). Save the model again with a newer version of it."
            )
        return GroupedMatrix(8, codes, largest[:, None] / 127, zero=SIGNED_ZERO)
    zeros = tensors.get(".weight_zero_point") if not source.layout.symmetric else None
    return GroupedMatrix(
        8,
        codes,
        _by_row(tensors[".weight_scale"], rows),
        zero=SIGNED_ZERO if zeros is None else 0,
        zeros=None if zeros is None else _unsigned(_by_row(zeros, rows)),
    )


def _unsigned(numbers: Tensor) -> Tensor:
    """int8 -> uint8, where 0 becomes SIGNED_ZERO: flips the first bit."""
    return numbers.contiguous().view(torch.uint8) ^ SIGNED_ZERO


def _fp8(source: StoredMatrix, tensors: dict[str, Tensor]) -> Fp8Matrix:
    inverse = tensors.get(".weight_scale_inv")
    scales = tensors[".weight_scale"] if inverse is None else inverse
    if scales.dtype == torch.uint8:  # e8m0: powers of two
        scales = torch.exp2(scales.float() - 127)
    if source.layout.block is not None:
        return Fp8Matrix(tensors[".weight"], scales.float(), *source.layout.block)
    rows, columns = source.shape
    return Fp8Matrix(tensors[".weight"], _by_row(scales.float(), rows), 1, columns)


def _nf4(source: StoredMatrix, tensors: dict[str, Tensor]) -> GroupedMatrix:
    rows, columns = source.shape
    state = _state(source, tensors)
    size = state["blocksize"]
    if columns % size:
        raise UnsupportedModel(
            f"{source.name}: {columns} columns in blocks of {size}, which cross from row to row; "
            "quire reads weights whose rows are whole blocks"
        )
    if ".weight.nested_absmax" in tensors:
        scales = _nested(source, tensors, state)
    else:
        scales = tensors[".weight.absmax"]
    if scales.numel() != rows * columns // size:
        raise CorruptModel(f"{source.name}: {scales.numel()} scales for blocks of {size} weights")
    # Two codes in a byte, the first in the high half.
    raw = tensors[".weight"].view(rows, columns // 2)
    codes = torch.stack([raw >> 4, raw & 15], 2).view(rows, columns)
    table = tensors[".weight.quant_map"]
    return GroupedMatrix(*_words(codes, 4), scales.view(rows, -1), table=table)


def _nested(source: StoredMatrix, tensors: dict[str, Tensor], state: dict[str, Any]) -> Tensor:
    """Scales that are quantised themselves, after subtracting their mean."""
    size, numbers = state["nested_blocksize"], tensors[".weight.absmax"].flatten()
    outer = tensors[".weight.nested_absmax"].repeat_interleave(size)[: numbers.numel()]
    if outer.numel() != numbers.numel():
        raise CorruptModel(f"{source.name}: {outer.numel()} nested scales for {numbers.numel()}")
    offset: float = state["nested_offset"]
    return tensors[".weight.nested_quant_map"][numbers.int()] * outer + offset


def _state(source: StoredMatrix, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """bitsandbytes' description of a weight, JSON in a tensor."""
    raw = next(tensors[role] for role in STATES if role in tensors)
    state = parse_object(bytes(raw.cpu().numpy()), f"{source.name}: quant_state")
    for key, kind in (("blocksize", int), ("nested_blocksize", int), ("nested_offset", float)):
        nested = ".weight.nested_absmax" in tensors
        value = state.get(key)
        if (nested or key == "blocksize") and (not isinstance(value, kind) or value is True):
            raise CorruptModel(f"{source.name}: quant_state has {key} {str(value)[:40]!r}")
        if kind is int and isinstance(value, int) and not 0 < value <= 1 << 20:
            raise CorruptModel(f"{source.name}: quant_state has {key} {value}")
    if list(state.get("shape", [])) != list(source.shape):
        raise CorruptModel(
            f"{source.name}: quant_state has the shape {str(state.get('shape'))[:40]}; the model's "
            f"config asks for {source.shape}"
        )
    return state


def _mxfp4(source: StoredMatrix, tensors: dict[str, Tensor]) -> GroupedMatrix:
    packed, powers = tensors.get(".weight_packed"), tensors.get(".weight_scale")
    codes = tensors["_blocks"] if packed is None else packed
    scales = torch.exp2((tensors["_scales"] if powers is None else powers).float() - 127)
    return _fp4_matrix(source, codes, scales)


def _nvfp4(source: StoredMatrix, tensors: dict[str, Tensor]) -> GroupedMatrix:
    """The scales of groups are fp8 numbers. compressed-tensors divides them by a scale of the whole
    weight, ModelOpt multiplies."""
    scales, packed = tensors[".weight_scale"].float(), tensors.get(".weight_packed")
    if packed is not None:
        return _fp4_matrix(source, packed, scales / tensors[".weight_global_scale"])
    return _fp4_matrix(source, tensors[".weight"], scales * tensors[".weight_scale_2"])


def _fp4_matrix(source: StoredMatrix, raw: Tensor, scales: Tensor) -> GroupedMatrix:
    # Two codes in a byte, the first in the low half.
    raw = raw.reshape(source.shape[0], -1)
    codes = torch.stack([raw & 15, raw >> 4], 2).view(source.shape)
    table = torch.tensor(FP4, device=raw.device)
    return GroupedMatrix(*_words(codes, 4), scales, table=table)


def _ternary(source: StoredMatrix, tensors: dict[str, Tensor]) -> GroupedMatrix:
    """A byte has the codes of four rows, which are a quarter of all rows apart."""
    raw, scale = tensors[".weight"], tensors[".weight_scale"].float()
    codes = torch.cat([(raw >> shift) & 3 for shift in (0, 2, 4, 6)])
    scale = scale.reciprocal() if source.layout.divides else scale
    return GroupedMatrix(*_words(codes, 4), _by_row(scale, source.shape[0]), zero=1)


def _order(source: StoredMatrix, groups: Tensor | None) -> Tensor | None:
    """The order that sorts columns by group; None if they are sorted already."""
    if groups is None or bool((groups < 0).any()):  # negative: not filled in, and there is no order
        return None
    columns, group = source.shape[1], source.group
    expected = torch.arange(columns, device=groups.device) // group
    if torch.equal(groups.long(), expected):
        return None
    order = groups.long().argsort(stable=True)
    if not torch.equal(groups.long()[order], expected):
        raise CorruptModel(
            f"{source.name}: its group indices (g_idx) are not groups of {group} columns each"
        )
    return order


def _fields(words: Tensor, bits: int) -> Tensor:
    """int32 [A, B] -> uint8 [A, B * 32 / bits], with the first field in the lowest bits. Fields of
    3, 5, 6 and 7 bits may cross words, and the last ones may be padding."""
    span = bits // math.gcd(bits, 32)  # words until a word ends with a field
    runs = F.pad(words, (0, -words.shape[1] % span)).view(len(words), -1, span)
    shape = (*runs.shape[:2], 32 * span // bits)
    made = torch.empty(shape, dtype=torch.uint8, device=words.device)
    for i in range(shape[2]):
        word, shift = divmod(i * bits, 32)
        field, known = runs[..., word] >> shift, 32 - shift
        if known < bits:
            field = (field & ((1 << known) - 1)) | (runs[..., word + 1] << known)
        made[..., i] = field & ((1 << bits) - 1)
    return made.flatten(1)


def _words(codes: Tensor, bits: int) -> tuple[int, Tensor]:
    """Codes packed in 4 bits if they fit, else in 8: also if a row ends inside a block."""
    held = 4 if bits <= 4 and codes.shape[1] % block_columns(4) == 0 else 8
    return held, put_together(codes, held)


def _by_row(numbers: Tensor, rows: int) -> Tensor:
    """Scales [N, any] of rows; a file may have a single one for all."""
    if numbers.dim() == 2 and numbers.shape[0] == rows:
        return numbers.contiguous()
    return numbers.reshape(-1, 1).expand(rows, 1).contiguous()


_UNPACK: dict[str, Callable[[StoredMatrix, dict[str, Tensor]], QuantisedMatrix]] = {
    "awq": _awq,
    "gptq": _gptq,
    "packed": _packed,
    "int": _int,
    "fp8": _fp8,
    "nf4": _nf4,
    "mxfp4": _mxfp4,
    "nvfp4": _nvfp4,
    "ternary": _ternary,
}
