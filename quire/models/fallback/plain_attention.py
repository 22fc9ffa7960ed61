"""Attention with a softcap or sinks, which the kernels do not compute: plain torch, a sequence at a
time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quire.backends.ops import AttentionInputs


@dataclass(frozen=True, slots=True)
class Extras:
    """What is done to the scores of a head: scaled, bounded to +-softcap, and summed with the
    exponential of a sink [heads] that takes a share and gives nothing."""

    scale: float
    softcap: float | None
    sinks: Tensor | None


class PlainAttention:
    """One pass over the paged cache, for layers with the same window."""

    def __init__(self, inputs: AttentionInputs, window: int | None) -> None:
        self._inputs, self._window = inputs, window
        self._starts = inputs.query_starts.tolist()
        self._lengths = inputs.context_lens.tolist()

    def store(self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> None:
        """k and v [T, kv_heads, D] go to their slots of keys and values [N, kv_heads, S, D]."""
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
