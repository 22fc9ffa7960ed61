"""The layers of a decode step with few rows: five launches per layer instead of nine.

It computes a Decoder's pass with the same weights, by products with norms, gates and sums inside:
those of backends/cuda_c on Hopper, those of backends/triton/small_batch.py elsewhere. Used for so
few rows that a step costs as much as reading the weights and launching kernels.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.cuda_c import plain
from quire.backends.cuda_c.few_rows import AddedRows, NormedRows, Way
from quire.backends.cuda_c.linear import CodesMatrix, load_kernels
from quire.backends.cuda_c.packed import LINES, SQUARES, multiply_packed
from quire.backends.cuda_c.packed import MOST_ROWS as MOST_CODED_ROWS
from quire.backends.ops import AttentionStep, HeadNorms, Kernels
from quire.backends.triton.small_batch import (
    MOST_ROWS,
    Norm,
    Product,
    Stream,
    ThinProducts,
    embed,
    products_of,
)
from quire.layers.attention import Attention, Pass
from quire.layers.linear import Linear
from quire.layers.mlp import GatedMLP
from quire.models.decoder import Decoder
from quire.models.model import KVCache
from quire.spec import ModelSpec
from quire.weights.names import weights_of


class PackedStep(AttentionStep, Protocol):
    """The planned attention of a decode step on a GPU."""

    def attend_packed(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        keys: Tensor,
        values: Tensor,
        norms: HeadNorms | None,
    ) -> Tensor:
        """rope_and_store and then attend, from the packed projection
        [rows, (heads + 2 kv_heads) * D], in fewer launches if possible."""


class _Product(Protocol):
    """A product of few rows with a norm, a gate or an addition (see
    backends/triton/small_batch.py)."""

    @property
    def most_rows(self) -> int: ...

    def normed(self, stream: Stream) -> Tensor: ...
    def gated(self, stream: Stream) -> Tensor: ...
    def add(self, stream: Stream, x: Tensor, norm: Norm) -> None: ...


@dataclass(frozen=True, slots=True)
class _Thin:
    """With a plain weight and bias, by Triton."""

    weight: Tensor
    bias: Tensor | None
    products: ThinProducts

    @property
    def most_rows(self) -> int:
        return MOST_ROWS

    def normed(self, stream: Stream) -> Tensor:
        return self.products.normed(stream, self.weight, self.bias)

    def gated(self, stream: Stream) -> Tensor:
        return self.products.gated(stream, self.weight, self.bias)

    def add(self, stream: Stream, x: Tensor, norm: Norm) -> None:
        self.products.add(stream, x, self.weight, self.bias, norm)


@dataclass(frozen=True, slots=True)
class _Tiled:
    """With a plain weight and bias, by cuda_c/plain.cu."""

    weight: Tensor
    bias: Tensor | None

    @property
    def most_rows(self) -> int:
        return plain.MOST_ROWS

    def normed(self, stream: Stream, *, gated: bool = False) -> Tensor:
        rows = NormedRows(stream.eps, stream.squares)
        return plain.multiply_plain(self.weight, stream.scaled, self.bias, norm=rows, gated=gated)

    def gated(self, stream: Stream) -> Tensor:
        return self.normed(stream, gated=True)

    def add(self, stream: Stream, x: Tensor, norm: Norm) -> None:
        parts = plain.num_parts(self.weight, len(x))
        added = AddedRows.to(stream.residual, stream.scaled, norm.weight, parts)
        plain.multiply_plain(self.weight, x, self.bias, added=added)
        stream.squares, stream.eps = added.squares, norm.eps


@dataclass(frozen=True, slots=True)
class _Codes:
    """With a weight in 4-bit codes. If it is kept as a plain one, too, more rows multiply with
    that."""

    matrix: CodesMatrix
    bias: Tensor | None
    plain: _Tiled | None = None

    @property
    def most_rows(self) -> int:
        return MOST_CODED_ROWS if self.plain is None else self.plain.most_rows

    def normed(self, stream: Stream, *, gated: bool = False) -> Tensor:
        if self.plain is not None and len(stream.scaled) > MOST_CODED_ROWS:
            return self.plain.normed(stream, gated=gated)
        rows, x = NormedRows(stream.eps, stream.squares), self.matrix.ordered(stream.scaled)
        return multiply_packed(self.matrix.codes, x, self.bias, norm=rows, gated=gated)

    def gated(self, stream: Stream) -> Tensor:
        return self.normed(stream, gated=True)

    def add(self, stream: Stream, x: Tensor, norm: Norm) -> None:
        if self.plain is not None and len(x) > MOST_CODED_ROWS:
            self.plain.add(stream, x, norm)
            return
        parts = stream.residual.shape[1] // SQUARES
        added = AddedRows.to(stream.residual, stream.scaled, norm.weight, parts)
        multiply_packed(self.matrix.codes, self.matrix.ordered(x), self.bias, added=added)
        stream.squares, stream.eps = added.squares, norm.eps


@dataclass(frozen=True, slots=True)
class _ThinLayer:
    """The products of one layer, and the norms after its additions to the stream."""

    attention: Attention
    qkv: _Product
    out: _Product
    mlp_norm: Norm
    gate_up: _Product
    down: _Product
    next_norm: Norm

    @property
    def products(self) -> tuple[_Product, ...]:
        return self.qkv, self.out, self.gate_up, self.down


@dataclass(frozen=True, slots=True)
class _Head:
    """The logits of the stream. With more rows than `most_rows` the vendor's library is faster, by
    more than the norm's own launch costs."""

    product: _Product
    most_rows: int
    weight: Tensor
    norm: Norm
    kernels: Kernels

    def __call__(self, stream: Stream) -> Tensor:
        if len(stream.residual) <= self.most_rows:
            return self.product.normed(stream)
        normed = self.kernels.rms_norm(stream.residual, self.norm.weight, self.norm.eps)
        return F.linear(normed, self.weight)


class SmallBatchPass:
    """Token ids to logits, for at most `most_rows` rows."""

    def __init__(
        self,
        table: Tensor,
        first_norm: Norm,
        layers: Sequence[_ThinLayer],
        head: _Head,
        *,
        most_rows: int,
    ) -> None:
        self._table, self._first_norm = table, first_norm
        self._layers, self._head, self.most_rows = tuple(layers), head, most_rows

    @staticmethod
    def of(model: Decoder, spec: ModelSpec, dtype: torch.dtype) -> SmallBatchPass | None:
        """The pass for a model. None if its plans contain something not built here, or its weights
        are neither plain nor in known codes."""
        products = products_of(spec, dtype)
        if not products or model.tp.size > 1:
            return None
        linears = _linears(model)
        codes = {name: _codes(linear) for name, linear in linears.items()}
        known = {name: found for name, found in codes.items() if found is not None}
        tensors = _plain_tensors(model, spec, but={f"{name}.weight" for name in known})
        if tensors is None:
            return None
        load_kernels(((found.matrix.codes, _way(name)) for name, found in known.items()), dtype)
        table, thin = tensors["embed.weight"], ThinProducts()
        tiled = _tiled(products, table.device)

        def norm(name: str) -> Norm:
            return Norm(tensors[f"{name}.weight"], spec.norm_eps)

        def product(name: str) -> _Product:
            weight, bias = tensors.get(f"{name}.weight"), linears[name].bias
            if weight is None:
                found = known[name]
                kept = found.matrix.plain
                if kept is None or (*kept.shape, _way(name)) not in tiled:
                    return found
                return replace(found, plain=_Tiled(kept, bias))
            is_tiled = (*weight.shape, _way(name)) in tiled
            return _Tiled(weight, bias) if is_tiled else _Thin(weight, bias, thin)

        norms = [norm(f"layers.{i}.attn_norm") for i in range(spec.num_layers)] + [norm("norm")]
        layers = [
            _ThinLayer(
                attention=cast(Attention, layer.attention),  # of a plain model
                qkv=product(f"layers.{i}.attn.qkv"),
                out=product(f"layers.{i}.attn.o"),
                mlp_norm=norm(f"layers.{i}.mlp_norm"),
                gate_up=product(f"layers.{i}.mlp.gate_up"),
                down=product(f"layers.{i}.mlp.down"),
                next_norm=norms[i + 1],
            )
            for i, layer in enumerate(model.layers)
        ]
        weight = table if spec.tied_embeddings else tensors["head.weight"]
        if (*weight.shape, "normed") in tiled:
            logits: tuple[_Product, int] = _Tiled(weight, None), plain.MOST_HEAD_ROWS
        else:
            logits = _Thin(weight, None, thin), MOST_ROWS
        head = _Head(*logits, weight, norms[-1], model.kernels)
        most_rows = min(one.most_rows for layer in layers for one in layer.products)
        return SmallBatchPass(table, norms[0], layers, head, most_rows=most_rows)

    def __call__(self, token_ids: Tensor, shared: Pass, cache: KVCache) -> Tensor:
        """The logits [rows, V]."""
        stream = embed(token_ids, self._table, self._first_norm)
        for layer, (keys, values) in zip(self._layers, cache, strict=True):
            attention = layer.attention
            qkv = layer.qkv.normed(stream)
            # All that attention reads except `qkv` and the cache was computed before the embedding,
            # whose kernel waits until all work before it is done; see jit.waiting.
            step = cast(PackedStep, shared.attention[attention.kind])
            turn = shared.turns[attention.rope]
            attended = step.attend_packed(qkv, *turn, keys, values, attention.norms)
            layer.out.add(stream, attended, layer.mlp_norm)
            layer.down.add(stream, layer.gate_up.gated(stream), layer.next_norm)
        return self._head(stream)


def _tiled(products: Sequence[Product], device: torch.device) -> set[tuple[int, int, Way]]:
    """The products that cuda_c/plain.cu computes on this device: lines and columns of the weight,
    and what else is done."""
    if device.type != "cuda":
        return set()
    capability = torch.cuda.get_device_capability(device)
    found = [one for one in products if one.is_tiled(capability)]
    if not plain.load_kernels(found, device):
        return set()
    return {(one.num_lines, one.inner, plain.way_of(one)) for one in found}


def _linears(model: Decoder) -> dict[str, Linear]:
    """The products of a plain model's layers, by the names of their weights without `.weight`."""
    found: dict[str, Linear] = {}
    for i, layer in enumerate(model.layers):
        attention, mlp = cast(Attention, layer.attention), cast(GatedMLP, layer.mlp)
        found |= {f"layers.{i}.attn.qkv": attention.qkv, f"layers.{i}.attn.o": attention.out}
        found |= {f"layers.{i}.mlp.gate_up": mlp.gate_up, f"layers.{i}.mlp.down": mlp.down}
    return found


def _codes(linear: Linear) -> _Codes | None:
    """The product with its 4-bit codes; None if it has none, or its lines make no whole tiles."""
    weight = linear.packed
    if not isinstance(weight, CodesMatrix) or weight.shape[0] % LINES:
        return None
    return _Codes(weight, linear.bias)


def _way(name: str) -> Way:
    """What the product of this name does besides multiplying."""
    return "normed" if name.endswith("qkv") else "gated" if name.endswith("gate_up") else "adds"


def _plain_tensors(
    model: Decoder, spec: ModelSpec, but: Collection[str]
) -> dict[str, Tensor] | None:
    """All weights but some by name; None if one of them is not a plain tensor."""
    found = {}
    for weight in weights_of(spec):
        if weight.name in but:
            continue
        tensors = model.places[weight.name][0].tensors()
        if len(tensors) != 1 or tuple(tensors[0].shape) != weight.shape:
            return None
        found[weight.name] = tensors[0]
    return found
