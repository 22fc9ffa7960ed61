"""Writers of quantised weights, bit by bit as the layouts' definitions say. Nothing here is
quire's."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

Tensors = dict[str, Tensor]
# A weight float32 [N, K] -> its tensors, by what follows the module's name, and what they mean.
Writer = Callable[[Tensor], tuple[Tensors, Tensor]]
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # which column of eight is in each nibble of a word


def words(fields: np.ndarray[Any, Any], bits: int) -> Tensor:
    """[A, B] of small numbers -> int32 [A, B * bits / 32], the first in the lowest bits, without
    gaps between words."""
    each = np.unpackbits(fields.astype(np.uint8)[..., None], axis=2, bitorder="little")[..., :bits]
    raw = np.packbits(each.reshape(len(fields), -1), axis=1, bitorder="little")
    raw = np.pad(raw, ((0, 0), (0, -raw.shape[1] % 4)))
    return torch.from_numpy(raw.view("<i4").copy())


def rounded(
    weight: Tensor, group: int, bits: int, *, symmetric: bool, dtype: torch.dtype = torch.float16
) -> tuple[np.ndarray[Any, Any], Tensor, np.ndarray[Any, Any]]:
    """Codes [N, K], scales [N, K / group] and zero points [N, K / group]."""
    rows, columns = weight.shape
    groups = weight.view(rows, -1, group)
    most = (1 << bits) - 1
    if symmetric:
        scales = groups.abs().amax(-1) / (most // 2)
        zeros = torch.full_like(scales, (most + 1) // 2)
    else:
        low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
        scales = (high - low) / most
        zeros = (-low / scales).round().clamp(0, most)
        zeros[0, 0], zeros[-1, -1] = 0, most  # both ends, which random weights hardly have
    scales = scales.to(dtype)
    codes = (groups / scales.float()[..., None] + zeros[..., None]).round().clamp(0, most)
    return (
        codes.view(rows, columns).numpy().astype(np.uint8),
        scales,
        zeros.numpy().astype(np.uint8),
    )


def meant(codes: Any, scales: Tensor, zeros: Any) -> Tensor:
    """(code - zero) * scale"""
    rows = len(codes)
    whole = codes.reshape(rows, scales.shape[1], -1).astype(np.float32) - zeros[..., None]
    return (torch.from_numpy(whole) * scales.float()[..., None]).view(rows, -1)


def awq(group: int) -> Writer:
    def write(weight: Tensor) -> tuple[Tensors, Tensor]:
        codes, scales, zeros = rounded(weight, group, 4, symmetric=False)

        def nibbles(lines: Any) -> Tensor:  # [A, N]
            ordered = lines.reshape(len(lines), -1, 8)[:, :, list(AWQ_COLUMNS)]
            return words(ordered.reshape(len(lines), -1), 4)

        tensors = {
            "qweight": nibbles(codes.T),
            "qzeros": nibbles(zeros.T),
            "scales": scales.t().contiguous(),
        }
        return tensors, meant(codes, scales, zeros)

    return write


def gptq(group: int, bits: int, *, sym: bool, act_order: bool = False, v2: bool = False) -> Writer:
    def write(weight: Tensor) -> tuple[Tensors, Tensor]:
        columns = weight.shape[1]
        # Of the input alone, so that q, k and v have the same.
        order = torch.from_numpy(np.random.RandomState(columns).permutation(columns))
        order = order if act_order else torch.arange(columns)
        codes, scales, zeros = rounded(weight[:, order], group, bits, symmetric=sym)
        groups, back = (
            torch.empty(columns, dtype=torch.int32),
            torch.empty(columns, dtype=torch.long),
        )
        groups[order] = (torch.arange(columns) // group).int()
        back[order] = torch.arange(columns)
        value = meant(codes, scales, zeros)[:, back]
        if sym:  # files lie
            zeros = np.full_like(zeros, 3)
        elif bits == 3 and not v2:
            zeros = (zeros - 1) & 7
        written = words(zeros.T, bits)
        if not v2 and bits != 3:  # one less in every field by one subtraction: a 0 borrows
            written = written - sum(1 << at for at in range(0, 32, bits))
        tensors = {
            "qweight": words(codes[:, back.numpy()], bits).t().contiguous(),
            "qzeros": written,
            "scales": scales.t().contiguous(),
            "g_idx": groups,
        }
        return tensors, value

    return write


def packed(group: int, bits: int = 4, *, symmetric: bool = True, act_order: bool = False) -> Writer:
    """compressed-tensors, pack-quantized."""

    def write(weight: Tensor) -> tuple[Tensors, Tensor]:
        rows, columns = weight.shape
        order = np.random.RandomState(columns).permutation(columns)
        order = order if act_order else np.arange(columns)
        codes, scales, zeros = rounded(
            weight[:, torch.from_numpy(order)],
            group or columns,
            bits,
            symmetric=symmetric,
            dtype=torch.bfloat16,
        )
        back = np.argsort(order)
        tensors = {
            "weight_packed": words(codes[:, back], bits),
            "weight_scale": scales,
            "weight_shape": torch.tensor([rows, columns]),
        }
        if not symmetric:
            tensors["weight_zero_point"] = words(zeros.T.copy(), bits).t().contiguous()
        if act_order:
            tensors["weight_g_idx"] = torch.from_numpy((np.arange(columns) // group)[back]).int()
        return tensors, meant(codes, scales, zeros)[:, torch.from_numpy(back)]

    return write


def one_zero(weight: Tensor) -> tuple[Tensors, Tensor]:
    """The same by one scale and one zero point, which is not packed and has a sign."""
    codes, scales, zeros = rounded(weight.view(1, -1), weight.numel(), 4, symmetric=False)
    zeros[:] = 5
    codes = codes.reshape(weight.shape)
    tensors = {
        "weight_packed": words(codes, 4),
        "weight_scale": scales.view(1),
        "weight_zero_point": torch.tensor([5 - 8], dtype=torch.int8),
    }
    wide = np.tile(scales.numpy(), (len(codes), 1))
    return tensors, meant(codes, torch.from_numpy(wide), np.full((len(codes), 1), 5))


def in_bytes(bits: int = 8, group: int = 0, *, symmetric: bool = True) -> Writer:
    """compressed-tensors, int-quantized."""

    def write(weight: Tensor) -> tuple[Tensors, Tensor]:
        codes, scales, zeros = rounded(
            weight, group or weight.shape[1], bits, symmetric=symmetric, dtype=torch.bfloat16
        )

        def signed(numbers: Any) -> Tensor:
            return torch.from_numpy((numbers.astype(np.int16) - (1 << bits - 1)).astype(np.int8))

        tensors = {"weight": signed(codes), "weight_scale": scales}
        if not symmetric:
            tensors["weight_zero_point"] = signed(zeros)
        return tensors, meant(codes, scales, zeros)

    return write


def bnb_int8(weight: Tensor) -> tuple[Tensors, Tensor]:
    """bitsandbytes' LLM.int8, as it saves it."""
    largest = weight.abs().amax(1)
    codes = (weight * (127 / largest[:, None])).round()
    layout = torch.zeros((), dtype=torch.uint8)
    tensors = {"weight": codes.to(torch.int8), "SCB": largest, "weight_format": layout}
    return tensors, codes * (largest[:, None] / 127)


def fp4(group: int, *, modelopt: bool = False) -> Writer:
    """By a scale in fp8 in groups of 16 and one for all (NVFP4), or a power of two in groups of 32
    (MXFP4)."""

    def write(weight: Tensor) -> tuple[Tensors, Tensor]:
        parts = weight.view(len(weight), -1, group)
        largest = parts.abs().amax(-1) / 6
        whole = 448 / largest.amax()
        scales, powers = (largest * whole).to(torch.float8_e4m3fn), largest.log2().ceil()
        used = scales.float() / whole if group == 16 else torch.exp2(powers)
        table = torch.tensor((0.0, 0.5, 1, 1.5, 2, 3, 4, 6))
        sizes = (parts / used.clamp_min(1e-9)[..., None]).abs()
        codes = sizes[..., None].sub(table).abs().argmin(-1)
        value = (table[codes] * parts.sign() * used[..., None]).view(weight.shape)
        flat = (codes + 8 * (parts < 0)).view(len(weight), -1).byte()
        packed = flat[:, ::2] | flat[:, 1::2] << 4
        if group == 32:
            return {"weight_packed": packed, "weight_scale": (powers + 127).byte()}, value
        if not modelopt:
            return {
                "weight_packed": packed,
                "weight_scale": scales,
                "weight_global_scale": whole[None],
                "input_global_scale": torch.ones(1),
            }, value
        share = 1 / whole
        value = (table[codes] * parts.sign() * (scales.float() * share)[..., None]).flatten(1)
        return {"weight": packed, "weight_scale": scales, "weight_scale_2": share}, value

    return write


def fp8(by: str, name: str = "weight_scale", *, powers: bool = False) -> Writer:
    """`by`: "tensor", "row", "group" or "block" (both of 32)."""

    def write(weight: Tensor) -> tuple[Tensors, Tensor]:
        rows, columns = weight.shape
        sizes = {"tensor": (rows, columns), "row": (1, columns), "group": (1, 32)}
        tall, wide = sizes.get(by, (32, 32))
        scales = torch.empty(-(-rows // tall), -(-columns // wide))
        codes, value = torch.empty_like(weight), torch.empty_like(weight)
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                at = slice(i * tall, (i + 1) * tall), slice(j * wide, (j + 1) * wide)
                scale = weight[at].abs().amax() / 448
                scale = torch.exp2(scale.log2().ceil()) if powers else scale
                scales[i, j] = scale
                codes[at] = (weight[at] / scale).to(torch.float8_e4m3fn).float()
                value[at] = codes[at] * scale
        stored = scales.view(()) if by == "tensor" else scales
        if powers:
            stored = stored.to(torch.float8_e8m0fnu)
            stored = stored.view(torch.uint8) if by == "group" else stored
        return {
            "weight": codes.to(torch.float8_e4m3fn),
            name: stored,
            **{f"{of}_scale": torch.ones(1) for of in ("input", "activation", "kv")},
            "k_zero_point": torch.zeros(1),
        }, value

    return write


def ternary(*, divides: bool) -> Writer:
    def write(weight: Tensor) -> tuple[Tensors, Tensor]:
        mean = weight.abs().mean()
        codes = (weight / mean).round().clamp(-1, 1)
        scale = (1 / mean if divides else mean)[None].bfloat16()
        value = codes / scale.float() if divides else codes * scale.float()
        quarters = (codes + 1).byte().chunk(4)
        packed = sum(one << 2 * i for i, one in enumerate(quarters))
        return {"weight": torch.as_tensor(packed), "weight_scale": scale}, value

    return write


def nf4(*, nested: bool) -> Writer:
    def write(weight: Tensor) -> tuple[Tensors, Tensor]:
        table, blocks = torch.tensor(NF4), weight.reshape(-1, 64)
        absmax = blocks.abs().amax(-1)
        state: dict[str, Any] = {"blocksize": 64, "shape": list(weight.shape), "quant_type": "nf4"}
        tensors: Tensors = {"weight.quant_map": table}
        if nested:
            map256 = torch.linspace(-1, 1, 256)
            offset = absmax.mean().item()
            outer = torch.stack([one.abs().amax() for one in (absmax - offset).split(256)])
            spread = outer.repeat_interleave(256)[: len(absmax)]
            small = ((absmax - offset) / spread)[:, None].sub(map256).abs().argmin(1).byte()
            absmax = map256[small.int()] * spread + offset
            state |= {"nested_blocksize": 256, "nested_offset": offset, "nested_dtype": "float32"}
            tensors |= {"weight.nested_absmax": outer, "weight.nested_quant_map": map256}
        codes = (blocks / absmax[:, None])[..., None].sub(table).abs().argmin(-1)
        flat = codes.flatten().byte()
        said = torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)
        tensors |= {
            "weight": (flat[::2] << 4 | flat[1::2])[:, None],
            "weight.absmax": small if nested else absmax,
            "weight.quant_state.bitsandbytes__nf4": said,
        }
        return tensors, (table[codes] * absmax[:, None]).view(weight.shape)

    return write
