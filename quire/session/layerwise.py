"""Reads text in float32 with one layer of the model in memory at a time.

A model whose float32 weights do not fit into memory can be compared with its 8-bit form this way:
all texts go through one layer, then the next layer takes its place in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import gcd

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.cpu.fast import CpuKernels
from quire.backends.linear import LinearOp
from quire.backends.ops import HeadShape
from quire.backends.plain import PlainLinear
from quire.executor.cpu.accuracy import caches_alone, pass_alone
from quire.families.chunks import chunk_of
from quire.layers.attention import Kind
from quire.layers.rotary import Rotary
from quire.layers.tp import TensorParallel
from quire.models.decoder import head_shape, logits_finish
from quire.models.long_parts import layer_embeddings
from quire.models.parts import Parts
from quire.options.decide import DEFAULT_BLOCK_SIZE
from quire.spec import ModelSpec
from quire.weights.load import load_weights
from quire.weights.names import weights_of
from quire.weights.source import ModelFiles

CPU = torch.device("cpu")


class _Unpacked(CpuKernels):
    """Kernels that use weights unpacked: each is used for a few texts only, and packing it would
    take as long as the products."""

    def make_linear(self, weight: Tensor, bias: Tensor | None) -> LinearOp:
        return PlainLinear(weight, bias)


class LayerwiseModel:
    """The exact model of some files; each call of `hidden` reads all its weights once."""

    def __init__(self, files: ModelFiles, spec: ModelSpec) -> None:
        self._files, self._spec = files, spec
        self._block_size = gcd(DEFAULT_BLOCK_SIZE, chunk_of(spec))  # blocks divide chunks
        self._shape = head_shape(spec, self._block_size, torch.float32)
        self._kernels = _Unpacked(self._shape)
        self._names = [weight.name for weight in weights_of(spec)]
        # Weights of the output head, loaded when first needed.
        self._table: Tensor | None = None
        self._bias: Tensor | None = None

    @torch.inference_mode()
    def hidden(self, windows: Sequence[Sequence[int]]) -> list[Tensor]:
        """The last hidden states of each text, after the last norm."""
        spec, plans = self._spec, self._spec.layers
        rotary = Rotary(spec.rotations, max(map(len, windows)), CPU)
        kinds = frozenset(
            Kind(0, one.window, HeadShape.of(one, self._block_size, torch.float32), one.chunk)
            for one in spec.attentions
        )
        lengths = {len(window) for window in windows}
        passes = {
            n: pass_alone(n, self._kernels, self._shape, kinds, rotary) for n in sorted(lengths)
        }
        caches = self._caches(windows)
        residuals = self._embedded(windows)
        embeddings = self._layer_embeddings(windows, residuals)
        first = self._parts(self._norm_before(0)).norm_before(0)
        normed = [first(residual) for residual in residuals]
        for index, plan in enumerate(plans):
            parts = self._parts([*self._of_layer(index), *self._norm_before(index + 1)])
            layer = parts.layer(index, plan, parts.norm_before(index + 1))
            for i, residual in enumerate(residuals):
                shared = replace(passes[len(windows[i])], layer_embeddings=embeddings[i])
                kept = caches[i][index]
                normed[i] = layer(normed[i], residual, shared, kept[0], kept[-1])
        return normed

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """[R, H] -> [R, V]"""
        if self._table is None:
            self._table = self._load(["head.weight"])["head.weight"]
        if self._bias is None and self._spec.logits.bias:
            self._bias = self._load(["head.bias"])["head.bias"]
        return logits_finish(self._spec.logits)(F.linear(hidden, self._table, self._bias))

    def _caches(self, windows: Sequence[Sequence[int]]) -> list[tuple[Tensor, ...]]:
        """The KV cache of each text, by layer. All layers of all texts use one place in turn; but
        keys and values that later layers read are kept for each text."""
        spec, longest = self._spec, max(map(len, windows))
        sources = sorted({one for one in spec.kv_sources if one is not None})
        places = [1 + sources.index(i) if i in sources else 0 for i in range(spec.num_layers)]
        each = [
            caches_alone(spec, longest, self._block_size, torch.float32, CPU, places)
            for _ in (windows if sources else windows[:1])
        ]
        return each if sources else each * len(windows)

    def _layer_embeddings(
        self, windows: Sequence[Sequence[int]], residuals: Sequence[Tensor]
    ) -> Sequence[Tensor | None]:
        spec, plan = self._spec, self._spec.layer_embeddings
        if plan is None:
            return [None] * len(windows)
        table, *others = [name for name in self._names if name.startswith("layer_embed")]
        # As stored, and only rows of these texts in float32: all would be 9 GB for a small model.
        stored = self._load([table], getattr(torch, spec.dtype))[table]
        ids = torch.tensor([token for window in windows for token in window])
        ids = torch.where(ids < plan.count, ids, 0)
        known, numbers = torch.unique(ids, return_inverse=True)
        weights = self._load(others) | {table: stored[known].float()}
        parts = Parts(spec, weights, self._kernels, self._shape, TensorParallel())
        embeddings = layer_embeddings(parts, replace(plan, count=len(known)))
        texts = numbers.split([len(window) for window in windows])
        pairs = zip(texts, residuals, strict=True)
        return [embeddings(one, torch.arange(len(one)), residual) for one, residual in pairs]

    def _embedded(self, windows: Sequence[Sequence[int]]) -> list[Tensor]:
        parts = self._parts([n for n in self._names if n in ("embed.weight", "positions.weight")])
        table = parts.tensor("embed.weight", self._spec.vocab_size, self._spec.hidden_size)
        if self._spec.tied_embeddings:
            self._table = table
        embedding = parts.embedding(table)
        return [embedding(torch.tensor(one), torch.arange(len(one))) for one in windows]

    def _of_layer(self, index: int) -> list[str]:
        before = self._norm_before(index)  # which is built with the layer before
        start = f"layers.{index}."
        return [name for name in self._names if name.startswith(start) and name not in before]

    def _norm_before(self, index: int) -> list[str]:
        starts: tuple[str, ...] = (f"layers.{index}.attn_norm.",)
        if self._spec.streams is not None:  # a layer has the norm before it for itself
            starts = ("streams.spread.",) if index == 0 else ()
        if index == self._spec.num_layers:
            starts = ("norm.", "streams.joined.")
        return [name for name in self._names if name.startswith(starts)]

    def _parts(self, names: Collection[str]) -> Parts:
        weights = self._load(names)
        return Parts(self._spec, weights, self._kernels, self._shape, TensorParallel())

    def _load(
        self, names: Collection[str], dtype: torch.dtype = torch.float32
    ) -> dict[str, Tensor]:
        # Other threads fill these tensors, and inference mode holds for one thread only.
        with torch.inference_mode(False):
            return load_weights(self._files, self._spec, dtype=dtype, device="cpu", only=names)
