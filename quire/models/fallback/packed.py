"""Attention by quire's kernels, for models whose sequences are computed side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from quire.backends.ops import AttentionInputs, AttentionStep, HeadShape
from quire.layers.attention import Kind
from quire.models.fallback.seen import AttentionCall
from quire.models.model import KVCache

# No mask function is registered under this name, so models make no masks.
PACKED = "quire"


@dataclass(frozen=True, slots=True)
class PackedPass:
    """What all layers of one pass share. `inputs` is set if a layer needs PlainAttention."""

    cache: KVCache
    steps: Mapping[Kind, AttentionStep]
    inputs: AttentionInputs | None

    def plain(self, window: int | None) -> PlainAttention:
        if self.inputs is None:
            raise RuntimeError("a pass without its inputs reached a layer with a softcap or sinks.")
        return PlainAttention(self.inputs, window)


@dataclass(slots=True)
class CurrentPass:
    """The pass that is computed now. Layers read it here, as not all classes pass arguments on."""

    now: PackedPass | None = None


class PackedLayer:
    """One layer: its place in the cache, and how the dry pass saw it call attention."""

    def __init__(
        self, index: int, call: AttentionCall, shape: HeadShape, current: CurrentPass
    ) -> None:
        self._index, self._call, self._shape, self._current = index, call, shape, current
        self._factor = call.scale / shape.scale  # the kernels know one scale for all layers
        # Nor more than one softcap, nor sinks.
        self.is_plain = call.has_sinks or call.softcap != shape.softcap

    def attend(self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> Tensor:
        """q [1, heads, T, D_k], k and v of the pass's tokens -> [1, T, heads, D_v]"""
        work, call = self._current.now, self._call
        if work is None:
            raise RuntimeError("attention was called outside of a pass.")
        keys, values = work.cache[self._index]
        queries, own_keys, own_values = (self._slot_sized(x[0].transpose(0, 1)) for x in (q, k, v))
        if self.is_plain:
            # PlainAttention reads plain values; kernels may store them in another layout.
            plain = work.plain(call.window)
            plain.store(own_keys, own_values, keys, values)
            extras = Extras(call.scale, call.softcap, sinks)
            made = plain.attend(queries, keys, values, extras)
        else:
            step = work.steps[Kind(0, call.window, self._shape)]
            if self._factor != 1:
                queries = queries * self._factor
            queries = self._store(step, queries, own_keys, own_values, keys, values)
            made = step.attend(queries, keys, values).view(queries.shape)
        return made[None, ..., : call.kv.value_dim]

    def _slot_sized(self, x: Tensor) -> Tensor:
        """Heads padded with zeros to the size of a slot. Zeros do not change any product."""
        missing = self._shape.head_dim - x.shape[-1]
        return F.pad(x, (0, missing)) if missing else x

    def _store(
        self, step: AttentionStep, q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        """Store keys and values with a rotation by 0: the model has rotated q and k already."""
        still = q.new_zeros(q.shape[0], self._shape.head_dim // 2, dtype=torch.float32)
        qk = torch.cat([q, k], dim=1)
        return step.rope_and_store(qk, v.contiguous(), still + 1, still, keys, values)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any = None, **given: Any
) -> tuple[Tensor, None]:
    layer: PackedLayer = module.quire_layer  # type: ignore[assignment]
    return layer.attend(query, key, value, given.get("s_aux")), None


AttentionInterface.register(PACKED, _attend)


@dataclass(frozen=True, slots=True)
class Extras:
    """How scores of a head are changed: scaled, bounded to +-softcap, and, with `sinks` [heads],
    softmax over one more score whose value is 0."""

    scale: float
    softcap: float | None
    sinks: Tensor | None


class PlainAttention:
    """One pass over the paged cache for layers with the same window that have a softcap or sinks
    that the kernels cannot compute: plain torch, a sequence at a time."""

    def __init__(self, inputs: AttentionInputs, window: int | None) -> None:
        self._inputs, self._window = inputs, window
        self._starts = inputs.query_starts.tolist()
        self._lengths = inputs.context_lens.tolist()

    def store(self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write k and v [T, kv_heads, D] to their slots of keys and values [N, kv_heads, S, D]."""
        slots, size = self._inputs.slots, keys.shape[2]
        for pool, new in ((keys, k), (values, v)):
            pool[slots // size, :, slots % size] = new[: len(slots)].to(pool.dtype)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, extras: Extras) -> Tensor:
        """q [T, heads, D] -> [T, heads, D]"""
        out = torch.zeros_like(q)
        for i, length in enumerate(self._lengths):
            first, last = self._starts[i : i + 2]
            blocks = self._inputs.tables[i, : -(-length // keys.shape[2])].to(torch.int64)
            k, v = (
                pool[blocks].transpose(0, 1).flatten(1, 2)[:, :length] for pool in (keys, values)
            )
            out[first:last] = self._attend(q[first:last], k, v, extras).to(q.dtype)
        return out

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> Tensor:
        """One sequence: q [n, heads, D], k and v [kv_heads, length, D]; in fp32 inside."""
        group, length, count = q.shape[1] // k.shape[0], k.shape[1], q.shape[0]
        k, v = (x.float().repeat_interleave(group, dim=0) for x in (k, v))
        scores = q.transpose(0, 1).float() @ k.transpose(1, 2) * extras.scale
        if extras.softcap is not None:
            scores = torch.tanh(scores / extras.softcap) * extras.softcap
        query_at = torch.arange(length - count, length, device=q.device)[:, None]
        key_at = torch.arange(length, device=q.device)
        hidden = key_at > query_at
        if self._window is not None:
            hidden |= key_at <= query_at - self._window
        scores = scores.masked_fill(hidden, -torch.inf)
        if extras.sinks is not None:
            sinks = extras.sinks.float().view(-1, 1, 1).expand(-1, count, 1)
            chances = torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]
        else:
            chances = scores.softmax(-1)
        return (chances @ v).transpose(0, 1)
