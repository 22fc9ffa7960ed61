"""The layers of a decode step with few rows: five launches each instead of nine.

What a pass of a Decoder computes, from the same weights, by the products of
backends/triton/small_batch.py. Used where rows are so few that a step costs what reading the
weights and launching kernels costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor

from quire.backends.cuda_c.linear import PackedLinear, load_kernels
from quire.backends.cuda_c.packed import LINES, AddedRows, NormedRows, Way, multiply_packed
from quire.backends.ops import AttentionStep, HeadNorms
from quire.backends.quantised.fragments import FragmentMatrix
from quire.backends.triton.small_batch import MOST_ROWS, Norm, Stream, ThinProducts, products_of
from quire.layers.attention import Attention, Pass
from quire.layers.linear import Linear
from quire.models.decoder import Decoder
from quire.models.model import KVCache
from quire.spec import ModelSpec
from quire.weights.names import weights_of

# Whether steps of few rows multiply with codes of 4 bits. Not before test_packed.py has passed on a
# GPU as those products are now; until then such weights take the plain pass, whose products did.
FUSED_CODES = False
# What is done on the way of each product of a layer.
_WAYS: dict[str, Way] = {
    "attn.qkv": "normed",
    "attn.o": "adds",
    "mlp.gate_up": "gated",
    "mlp.down": "adds",
}


class PackedStep(AttentionStep, Protocol):
    """The attention of a decode step that is planned on a GPU."""

    def attend_packed(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        keys: Tensor,
        values: Tensor,
        norms: HeadNorms | None,
    ) -> Tensor:
        """What rope_and_store and then attend compute, of the packed projection
        [rows, (heads + 2 kv_heads) * D], in fewer launches where that is built."""


class _Product(Protocol):
    """A product of few rows, and what is done on the way (see backends/triton/small_batch.py)."""

    def normed(self, stream: Stream) -> Tensor: ...
    def gated(self, stream: Stream) -> Tensor: ...
    def add(self, stream: Stream, x: Tensor, norm: Norm) -> None: ...


@dataclass(frozen=True, slots=True)
class _Matrix:
    """With a weight and its bias as they came."""

    products: ThinProducts
    weight: Tensor
    bias: Tensor | None

    def normed(self, stream: Stream) -> Tensor:
        return self.products.normed(stream, self.weight, self.bias)

    def gated(self, stream: Stream) -> Tensor:
        return self.products.gated(stream, self.weight, self.bias)

    def add(self, stream: Stream, x: Tensor, norm: Norm) -> None:
        self.products.add(stream, x, self.weight, self.bias, norm)


@dataclass(frozen=True, slots=True)
class _Codes:
    """With a weight in codes of 4 bits."""

    linear: PackedLinear

    def normed(self, stream: Stream, *, gated: bool = False) -> Tensor:
        rows, linear = NormedRows(stream.eps, stream.squares), self.linear
        return multiply_packed(linear.matrix, stream.scaled, linear.bias, norm=rows, gated=gated)

    def gated(self, stream: Stream) -> Tensor:
        return self.normed(stream, gated=True)

    def add(self, stream: Stream, x: Tensor, norm: Norm) -> None:
        added = AddedRows.to(stream.residual, stream.scaled, norm.weight)
        multiply_packed(self.linear.matrix, x, self.linear.bias, added=added)
        stream.squares, stream.eps = added.squares, norm.eps


@dataclass(frozen=True, slots=True)
class _ThinLayer:
    """The tensors of one layer, as the products want them."""

    attention: Attention
    qkv: _Product
    out: _Product
    mlp_norm: Norm
    gate_up: _Product
    down: _Product
    next_norm: Norm


class SmallBatchPass:
    """Token ids to logits, for at most `most_rows` rows."""

    most_rows = MOST_ROWS

    def __init__(
        self, table: Tensor, first_norm: Norm, layers: Sequence[_ThinLayer], head: _Matrix
    ) -> None:
        self._table, self._first_norm = table, first_norm
        self._layers, self._head = tuple(layers), head

    @staticmethod
    def of(model: Decoder, spec: ModelSpec, dtype: torch.dtype) -> SmallBatchPass | None:
        """The same model, by the plans of its layers; None where they say something that this does
        not know, or where weights do not lie as they came."""
        if not products_of(spec, dtype) or model.tp.size > 1:
            return None
        codes = _codes(model, spec, dtype)
        if codes and not FUSED_CODES:
            return None
        tensors, products = _plain_tensors(model, spec, codes), ThinProducts()
        if tensors is None:
            return None

        def norm(name: str) -> Norm:
            return Norm(tensors[f"{name}.weight"], spec.norm_eps)

        def matrix(name: str) -> _Product:
            if (found := codes.get(f"{name}.weight")) is not None:
                return _Codes(found)
            return _Matrix(products, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))

        norms = [norm(f"layers.{i}.attn_norm") for i in range(spec.num_layers)] + [norm("norm")]
        layers = [
            _ThinLayer(
                attention=cast(Attention, layer.attention),  # of a plain model
                qkv=matrix(f"layers.{i}.attn.qkv"),
                out=matrix(f"layers.{i}.attn.o"),
                mlp_norm=norm(f"layers.{i}.mlp_norm"),
                gate_up=matrix(f"layers.{i}.mlp.gate_up"),
                down=matrix(f"layers.{i}.mlp.down"),
                next_norm=norms[i + 1],
            )
            for i, layer in enumerate(model.layers)
        ]
        table = tensors["embed.weight"]
        head = table if spec.tied_embeddings else tensors["head.weight"]
        return SmallBatchPass(table, norms[0], layers, _Matrix(products, head, None))

    def __call__(self, token_ids: Tensor, shared: Pass, cache: KVCache) -> Tensor:
        """The logits [rows, V]."""
        stream = self._head.products.embed(token_ids, self._table, self._first_norm)
        for layer, (keys, values) in zip(self._layers, cache, strict=True):
            attention = layer.attention
            qkv = layer.qkv.normed(stream)
            # Whatever attention reads but `qkv` and the cache was made before the stream's tokens
            # were embedded, by a kernel that begins when all before it is done; see jit.waiting.
            step = cast(PackedStep, shared.attention[attention.kind])
            turn = shared.turns[attention.rope]
            attended = step.attend_packed(qkv, *turn, keys, values, attention.norms)
            layer.out.add(stream, attended, layer.mlp_norm)
            layer.down.add(stream, layer.gate_up.gated(stream), layer.next_norm)
        return self._head.normed(stream)


def _codes(model: Decoder, spec: ModelSpec, dtype: torch.dtype) -> dict[str, PackedLinear]:
    """The weights of layers that are kept in codes of 4 bits and can be multiplied with so here,
    by their names; their kernels are loaded."""
    found: dict[str, PackedLinear] = {}
    ways: list[tuple[FragmentMatrix, Way]] = []
    for weight in weights_of(spec):
        place = model.places[weight.name][0]
        way = next((_WAYS[end] for end in _WAYS if weight.name.endswith(f"{end}.weight")), None)
        linear = place.multiply if isinstance(place, Linear) else None
        if way is None or not isinstance(linear, PackedLinear):
            continue
        if linear.order is None and linear.matrix.shape[0] % LINES == 0:
            found[weight.name] = linear
            ways.append((linear.matrix, way))
    load_kernels(ways, dtype)
    return found


def _plain_tensors(
    model: Decoder, spec: ModelSpec, but: Mapping[str, object]
) -> dict[str, Tensor] | None:
    """Every weight by its name but some, if all of them lie as they came."""
    found = {}
    for weight in weights_of(spec):
        if weight.name in but:
            continue
        tensors = model.places[weight.name][0].tensors()
        if len(tensors) != 1 or tuple(tensors[0].shape) != weight.shape:
            return None
        found[weight.name] = tensors[0]
    return found
