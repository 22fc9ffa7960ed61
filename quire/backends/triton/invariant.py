"""SteadyKernels: batch-invariant kernels for a GPU, where a row gets the same bits in any batch,
chunk or cache state.

What would make a row depend on other rows, and how it is avoided:
- The vendor's library chooses its algorithm by the number of rows. It is kept from cutting sums and
  from small numbers of rows, which have other kernels: products run with numbers of rows that gave
  equal bits in a test when the model was built, and batches are padded to them.
- Attention is cut by the other rows of a batch. Here it is cut by position alone (steady.py).
- States take up several tokens at once, as many as a slice has. Here they take up each by itself.
- Kernels for few rows, and attention by the library, round differently: neither is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quire.backends.experts import EveryExpert
from quire.backends.linear import LinearOp
from quire.backends.ops import (
    STEADY_ROWS,
    AttentionInputs,
    ExpertsOp,
    HeadShape,
    RowOp,
    StateStep,
)
from quire.backends.plain import PlainLinear
from quire.backends.triton.experts import FusedExperts
from quire.backends.triton.experts import Tile as ExpertsTile
from quire.backends.triton.kernels import TritonKernels, stacked
from quire.backends.triton.steady import SteadyBuffers, SteadyDecode, SteadyPrefill
from quire.backends.triton.tiles import steady_tiles
from quire.base.shared_setting import SharedSetting
from quire.errors import NotSupported

# Rows of a product: those of captured steps and passes, and between them steps that add little
# padding. More rows than the last are multiplied in pieces.
ROW_COUNTS = (
    *range(STEADY_ROWS, 257, 32),  # with fewer the library is no faster, and at times far slower
    *range(320, 513, 64),
    *range(640, 1025, 128),
    *range(1280, 2049, 256),
    *range(2560, 4097, 512),
)
# Wider products are of logits, for which no pass computes that many lines.
_WIDE, _WIDE_ROWS = 1 << 15, 1024
_REDUCED = (
    "allow_bf16_reduced_precision_reduction",
    "allow_fp16_reduced_precision_reduction",
)
_EXPERTS = ExpertsTile(64, 128, 32, 4, 4)  # for any number of pairs of tokens and experts


def unkept(what: str) -> NotSupported:
    return NotSupported(
        f"batch_invariant=True: on this GPU {what} give a row other bits at other places of a "
        "batch, so the promise cannot be kept. Leave it out, or set device='cpu'."
    )


def _add_whole_sums() -> Callable[[], None]:
    """Make cuBLASLt compute each sum in one piece, in float32, until the setting is undone. Other
    threads may multiply at any time, so the library is switched first and switched back last:
    cuBLAS itself cannot be kept from cutting sums."""
    settings: Any = torch.backends.cuda.matmul
    library = torch.backends.cuda.preferred_blas_library()
    sums = {
        name: (getattr(settings, name), getattr(settings, f"{name}_split_k", True))
        for name in _REDUCED
    }

    def take_back() -> None:
        for name, value in sums.items():
            setattr(settings, name, value)
        torch.backends.cuda.preferred_blas_library(library)

    torch.backends.cuda.preferred_blas_library("cublaslt")
    for name in _REDUCED:
        setattr(settings, name, (False, False))
    return take_back


WHOLE_SUMS = SharedSetting(_add_whole_sums)


def agreeing(linear: PlainLinear, counts: Sequence[int]) -> tuple[int, ...]:
    """The numbers of rows that give the same bits as most of them do, wherever a row is."""
    weight = linear.weight
    most = counts[-1]
    x = torch.randn(most, weight.shape[1], dtype=weight.dtype, device=weight.device)
    whole = _product(linear, x)
    if not torch.equal(_product(linear, x.roll(5, 0)).roll(-5, 0), whole):
        return ()
    tails = ((count, most - count) for count in counts)
    return tuple(c for c, at in tails if torch.equal(_product(linear, x[at:]), whole[at:]))


def _product(linear: PlainLinear, x: Tensor, out: Tensor | None = None) -> Tensor:
    with WHOLE_SUMS if x.is_cuda else nullcontext():
        if linear.bias is None:
            return torch.mm(x, linear.weight.t(), out=out)
        return torch.addmm(linear.bias, x, linear.weight.t(), out=out)


@dataclass(slots=True)
class SteadyLinear:
    """x weight^T + bias, with numbers of rows that give equal bits."""

    plain: PlainLinear
    counts: tuple[int, ...]

    def __call__(self, x: Tensor) -> Tensor:
        num_rows, most = x.shape[0], self.counts[-1]
        if num_rows in self.counts:
            return _product(self.plain, x)
        whole = num_rows // most * most
        out = x.new_empty(whole + self._padded(num_rows - whole), self.plain.weight.shape[0])
        for first in range(0, whole, most):
            last = first + most
            _product(self.plain, x[first:last], out[first:last])
        if rest := out.shape[0] - whole:
            padded = x.new_zeros(rest, x.shape[1])
            padded[: num_rows - whole] = x[whole:]
            _product(self.plain, padded, out[whole:])
        return out[:num_rows]

    def _padded(self, num_rows: int) -> int:
        return next(count for count in self.counts if count >= num_rows) if num_rows else 0

    def write_rows(self, first: int, rows: Tensor) -> None:
        self.plain.write_rows(first, rows)

    def read_rows(self, first: int, count: int) -> Tensor:
        return self.plain.read_rows(first, count)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.plain.tensors()


class SteadyKernels(TritonKernels):
    """The ops of a GPU where they are batch-invariant, slower ones where they are not."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__(shape)
        self._known: dict[tuple[Any, ...], tuple[int, ...]] = {}

    def make_linear(self, weight: Tensor, bias: Tensor | None) -> LinearOp:
        plain = PlainLinear(weight, bias)
        key = (*weight.shape, weight.dtype, bias is not None)
        if key not in self._known:
            wide = weight.shape[0] > _WIDE
            counts = [c for c in ROW_COUNTS if not wide or c <= _WIDE_ROWS]
            # Random weights: with zeros every order of sums gives the same.
            tried = PlainLinear(torch.randn_like(weight), bias)
            self._known[key] = agreeing(tried, counts)
            if not self._known[key]:
                raise unkept(f"products with a matrix of {weight.shape[0]} x {weight.shape[1]}")
        return SteadyLinear(plain, self._known[key])

    def make_experts(
        self, gate: RowOp, ups: Sequence[LinearOp], downs: Sequence[LinearOp]
    ) -> ExpertsOp:
        up, down = (
            stacked([one.plain if isinstance(one, SteadyLinear) else one for one in some])
            for some in (ups, downs)
        )
        if up is None or down is None:
            return EveryExpert(gate, ups, downs)
        return FusedExperts(gate, up, down, tile=_EXPERTS)

    def plan_states(self, inputs: AttentionInputs) -> StateStep:
        return self._states(inputs, one_by_one=True)

    def prefill_attention(
        self, inputs: AttentionInputs, num_tokens: int, window: int | None
    ) -> SteadyPrefill:
        count = inputs.num_prefill
        return SteadyPrefill(
            *(self.shape, inputs.query_starts[: count + 1], inputs.context_lens[:count]),
            *(inputs.tables[:count], num_tokens),
            window=window,
            tile=steady_tiles(self.shape)[1],
        )

    def decode_attention(self, inputs: AttentionInputs, window: int | None) -> SteadyDecode:
        first = inputs.num_prefill
        lengths = inputs.context_lens[first:].to(torch.int32)
        longest = inputs.tables.shape[1] * self.shape.block_size
        buffers = SteadyBuffers.make(self.shape, len(lengths), longest, lengths.device)
        attention = SteadyDecode(self.shape, buffers, len(lengths), window=window)
        attention.plan(lengths, inputs.tables[first:].to(torch.int32))
        return attention
