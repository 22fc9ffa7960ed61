"""The ops of an encoder: on a CPU in C where there is a library, in the chosen arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from quire.backends.choose import kernels_for
from quire.backends.cpu.native.library import library
from quire.backends.cpu.native.rows import NativeRows
from quire.backends.cpu.native.texts import NativeTexts
from quire.backends.cpu.native.tiles import tiles
from quire.backends.ops import HeadShape
from quire.backends.plain import PlainLinear
from quire.config import EngineConfig
from quire.models.encoder_ops import EncoderOps, Op, activation_of_rows
from quire.spec import EncoderSpec


def encoder_ops(spec: EncoderSpec, config: EngineConfig) -> EncoderOps:
    if config.device != "cpu":
        return EncoderOps(PlainLinear)
    dtype: torch.dtype = getattr(torch, config.dtype)
    if config.quantization == "int8":
        return _between_products(EncoderOps(_bytes()))
    if dtype == torch.bfloat16 and (found := tiles()) is not None:
        return _between_products(
            EncoderOps(found.make_linear, takes=torch.float32, join=found.join)
        )
    shape = HeadShape(spec.num_heads, spec.num_kv_heads, spec.head_dim, config.block_size, dtype)
    kernels = kernels_for("cpu", shape, batch_invariant=config.batch_invariant)
    return _between_products(EncoderOps(kernels.make_linear, kernels.padded))


def _bytes() -> Callable[[Tensor, Tensor | None], Op]:
    from quire.backends.cpu.int8 import Int8Matrix
    from quire.executor.cpu.int8_probe import int8_arithmetic

    arithmetic = int8_arithmetic()
    return lambda weight, bias: Int8Matrix.of(weight, arithmetic).linear(bias)


def _between_products(ops: EncoderOps) -> EncoderOps:
    """The ops, with everything but products in C, where there is a library."""
    found = library()
    if found is None:
        return ops
    rows = NativeRows(found)

    def activation(name: str, gated: bool) -> Op:
        return rows.activation(name, gated=gated, plain=activation_of_rows(name, gated))

    return replace(
        ops, attend=NativeTexts(found), layer_norm=rows.layer_norm, activation=activation
    )
