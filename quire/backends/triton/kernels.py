"""TritonKernels: every op of quire.backends.ops on a CUDA device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends import generic
from quire.backends.adapter_ops import AdapterKernels, AdapterRoom
from quire.backends.cuda_c.few_rows_linear import FewRowsLinear
from quire.backends.cuda_c.gated import GatedRows
from quire.backends.cuda_c.prompt_attention import PromptAttention, prompt_attention
from quire.backends.experts import EveryExpert, GroupedExperts
from quire.backends.fp8 import wide_keys, wide_values
from quire.backends.linear import GatedProduct, LinearOp, is_kept
from quire.backends.ops import (
    AttentionInputs,
    ChoiceOp,
    ExpertsOp,
    HeadNorms,
    HeadShape,
    HeadsOp,
    LatentRows,
    ReadGate,
    RowOp,
    StateStep,
)
from quire.backends.plain import PlainLinear
from quire.backends.triton import blocks, elementwise
from quire.backends.triton.adapters import StackedAdapters
from quire.backends.triton.choice import choice_by
from quire.backends.triton.decode import DecodeAttention, DecodeBuffers
from quire.backends.triton.experts import WIDE, ExpertProduct, ExpertWeights, FusedExperts
from quire.backends.triton.heads import rope_store
from quire.backends.triton.jit import power_of_two
from quire.backends.triton.kept_experts import joined
from quire.backends.triton.latent import (
    BatchedProducts,
    LatentPrefill,
    decode_attention,
    parts_shape,
    rotate_latents,
)
from quire.backends.triton.prefill import PrefillAttention
from quire.backends.triton.prefix import PrefixSize, PrefixWork
from quire.backends.triton.state_gate import gate_read
from quire.backends.triton.states import SlicesStates
from quire.backends.triton.steady import SteadyDecode
from quire.backends.triton.widen import WidenedAttention, widened_attention
from quire.layer_plan import Activation, ExpertsPlan, LayerPlan, mlps_of

PromptsOp = PrefillAttention | PromptAttention | WidenedAttention


class TritonKernels:
    """The ops of one model; plan_attention is for passes that run eagerly (a captured decode
    step uses DecodeAttention with its own buffers)."""

    def __init__(self, shape: HeadShape) -> None:
        self.shape = shape
        self._buffers: DecodeBuffers | None = None
        self._others: dict[HeadShape, TritonKernels] = {}

    def of_heads(self, shape: HeadShape) -> TritonKernels:
        if shape == self.shape:
            return self
        if shape not in self._others:
            self._others[shape] = type(self)(shape)
        return self._others[shape]

    def declines(self, layer: LayerPlan) -> tuple[str, ...]:
        learned = [mlp.activation for mlp in mlps_of(layer) if mlp.activation == "xielu"]
        return (*generic.row_norms_of(layer), *learned)

    def kv_dtype_beside_int8(self) -> torch.dtype:
        return self.shape.dtype

    def padded(self, num_tokens: int) -> int:
        return num_tokens

    def make_linear(self, weight: Tensor, bias: Tensor | None) -> LinearOp:
        return FewRowsLinear.of(weight, bias) or PlainLinear(weight, bias)

    def make_experts(
        self, gate: RowOp, ups: Sequence[LinearOp], downs: Sequence[LinearOp]
    ) -> ExpertsOp:
        up, down = joined(ups) or stacked(ups), joined(downs) or stacked(downs)
        if up is None or down is None:
            return EveryExpert(gate, ups, downs)
        return FusedExperts(gate, up, down, for_many=for_many(gate, up, down))

    def make_head_products(self, products: Sequence[LinearOp]) -> HeadsOp:
        made = stacked(products)
        if made is None or made.biases is not None:
            return generic.HeadProducts(products)
        return BatchedProducts(made.weights)

    def make_choice(self, plan: ExpertsPlan, bias: Tensor | None) -> ChoiceOp:
        return choice_by(plan, bias)

    def make_adapters(self, room: AdapterRoom) -> AdapterKernels:
        return StackedAdapters(room)

    def embed(self, token_ids: Tensor, table: Tensor) -> Tensor:
        return F.embedding(token_ids, table)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return elementwise.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        return elementwise.add_rms_norm(x, residual, weight, eps)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        return elementwise.layer_norm(x, weight, bias, eps)

    def add_layer_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float
    ) -> Tensor:
        return elementwise.add_layer_norm(x, residual, weight, bias, eps)

    def gate(self, activation: Activation) -> RowOp:
        return partial(elementwise.gate_mul, activation=activation)

    def gated(self, activation: Activation, product: LinearOp) -> RowOp:
        apart = GatedProduct(product, self.gate(activation))
        plain = as_plain(product)
        if plain is None:
            return apart
        return GatedRows.of(plain, activation, apart) or apart

    def activate(self, activation: Activation) -> RowOp:
        return partial(elementwise.activate, activation=activation)

    def plan_attention(self, inputs: AttentionInputs, window: int | None) -> TritonAttention:
        return TritonAttention(self, inputs, window)

    def prefill_attention(
        self, inputs: AttentionInputs, num_tokens: int, window: int | None
    ) -> PromptsOp:
        """Attention of the slices of a pass, which have so many tokens."""
        if self.shape.values_in_keys:
            return LatentPrefill(self.shape, inputs, num_tokens)
        given = (self.shape, inputs, num_tokens, window)
        if (own := prompt_attention(*given) or widened_attention(*given)) is not None:
            return own
        count = inputs.num_prefill
        return PrefillAttention(
            *(self.shape, inputs.query_starts[: count + 1], inputs.context_lens[:count]),
            *(inputs.tables[:count], num_tokens),
            window=window,
        )

    def decode_attention(
        self, inputs: AttentionInputs, window: int | None
    ) -> DecodeAttention | SteadyDecode:
        """Attention of the decode rows of a pass."""
        return _decode(self, inputs, window)

    def plan_states(self, inputs: AttentionInputs) -> StateStep:
        return self._states(inputs, one_by_one=False)

    def _states(self, inputs: AttentionInputs, *, one_by_one: bool) -> SlicesStates:
        given = (inputs.query_starts, inputs.context_lens, inputs.tables, self.shape.block_size)
        return SlicesStates(*given, num_tokens=len(inputs.slots), one_by_one=one_by_one)

    def gate_read(self, read: Tensor, gate: Tensor, by: ReadGate) -> Tensor:
        return gate_read(read, gate, by)

    def rotate_latents(self, given: LatentRows, slots: Tensor, keys: Tensor) -> Tensor:
        return rotate_latents(given, slots, keys)

    def copy_blocks(self, cache: Tensor, copies: tuple[tuple[int, int], ...]) -> None:
        """Copy pairs in order, as one may read what an earlier one wrote."""
        written: set[int] = set()
        start = 0
        for i, (old, new) in enumerate(copies):
            if old in written or new in written:
                self._copy(cache, copies[start:i])
                start, written = i, set()
            written |= {old, new}
        self._copy(cache, copies[start:])

    def clear_blocks(self, cache: Tensor, blocks: Tensor) -> None:
        """Not needed for attention here: it never reads a slot that was not written."""
        cache[:, :, blocks] = 0

    def decode_buffers(
        self, num_rows: int, prefix_parts: int, device: torch.device
    ) -> DecodeBuffers:
        """Buffers with room for this much, kept from one pass to the next."""
        have = self._buffers
        enough = (
            have is not None
            and have.max_rows >= num_rows
            and len(have.parts) - have.num_own >= prefix_parts
        )
        if have is None or not enough:
            rows, parts = power_of_two(max(1, num_rows)), prefix_parts
            have = DecodeBuffers.make(parts_shape(self.shape), rows, device, prefix_parts=parts)
            self._buffers = have
        return have

    def _copy(self, cache: Tensor, copies: tuple[tuple[int, int], ...]) -> None:
        if copies:
            blocks.copy_blocks(cache, torch.tensor(copies, dtype=torch.int32).to(cache.device))


def as_plain(product: LinearOp) -> PlainLinear | None:
    """The product, if passes of many rows multiply with a plain weight."""
    return product if isinstance(product, PlainLinear) else None


def stacked(products: Sequence[LinearOp]) -> ExpertWeights | None:
    """The weights of products as one tensor, of which each product keeps its part. None if they are
    not all of the same kind."""
    plain = [one for one in map(as_plain, products) if one is not None and not is_kept(one)]
    biases = [one.bias for one in plain if one.bias is not None]
    if len(plain) < len(products) or len(biases) not in (0, len(plain)):
        return None
    first = plain[0].weight
    stack = first.new_empty(len(plain), *first.shape)
    for one, part in zip(plain, stack, strict=True):
        part.copy_(one.weight)
        one.weight = part
    return ExpertWeights(stack, torch.stack(biases) if biases else None)


def for_many(gate: RowOp, up: ExpertProduct, down: ExpertProduct) -> GroupedExperts | None:
    """The library's products, where they support weights and are faster for many pairs."""
    if not (isinstance(up, ExpertWeights) and isinstance(down, ExpertWeights)):
        return None
    is_faster = up.grouped and down.grouped and down.weights.shape[2] >= WIDE
    return GroupedExperts(gate, up.weights, down.weights) if is_faster else None


class TritonAttention:
    """One eager pass: slices first, then decode rows, some of which may share prefixes."""

    def __init__(self, kernels: TritonKernels, inputs: AttentionInputs, window: int | None) -> None:
        self.shape, self.inputs = kernels.shape, inputs
        count, self.num_rows = inputs.num_prefill, len(inputs.context_lens) - inputs.num_prefill
        num_tokens = inputs.slots.shape[0]
        self.num_prefilled = num_tokens - self.num_rows
        self.prefill: PromptsOp | None = None
        self.decode: DecodeAttention | SteadyDecode | None = None
        if count:
            self.prefill = kernels.prefill_attention(inputs, self.num_prefilled, window)
        if self.num_rows:
            self.decode = kernels.decode_attention(inputs, window)

    def rope_and_store(
        self,
        qk: Tensor,
        v: Tensor,
        cos: Tensor,
        sin: Tensor,
        keys: Tensor,
        values: Tensor,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        given = (qk, v, cos, sin, self.inputs.slots, keys, values, self.shape, norms)
        return rope_store(*given)

    def plain(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if not self.shape.fp8_kv:
            return keys, values
        size = self.shape.block_size
        return wide_keys(keys, size), wide_values(values, size)

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        out = q.new_empty(q.shape[0], self.shape.num_heads * self.shape.value_dim)
        if self.prefill:
            self.prefill.attend(q, keys, values, out, sinks)
        if self.decode:
            first = self.num_prefilled
            rows = slice(first, first + self.num_rows)
            self.decode.attend(q[rows], keys, values, out[rows], sinks=sinks)
        out[self.num_prefilled + self.num_rows :] = 0
        return out


def _decode(kernels: TritonKernels, inputs: AttentionInputs, window: int | None) -> DecodeAttention:
    shape, first = kernels.shape, inputs.num_prefill
    num_rows = len(inputs.context_lens) - first
    device = inputs.context_lens.device
    work, parts = None, 0
    if inputs.prefixes and not shape.values_in_keys:
        groups = [
            (_host(blocks), _host(members) - np.int32(first)) for blocks, members in inputs.prefixes
        ]
        num_blocks = sum(len(blocks) for blocks, _ in groups)
        size = PrefixSize.of(shape, num_rows, blocks=num_blocks)
        work, parts = PrefixWork(shape, num_rows, device, size), size.parts
        work.fill(groups)
    buffers = kernels.decode_buffers(num_rows, parts, device)
    attention = decode_attention(shape, buffers, num_rows, window=window, prefixes=work)
    lengths = inputs.context_lens[first:].to(torch.int32)
    attention.plan(lengths, inputs.tables[first:].to(torch.int32))
    return attention


def _host(numbers: Tensor) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return numbers.cpu().numpy().astype(np.int32)
