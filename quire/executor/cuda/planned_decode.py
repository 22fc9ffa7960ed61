"""The attention of a decode step in Triton, as layers call it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from quire.backends.ops import HeadNorms
from quire.backends.triton.decode import DecodeAttention
from quire.backends.triton.heads import norm_rope_store, rope_store
from quire.backends.triton.steady import SteadyDecode


@dataclass(frozen=True, slots=True)
class PlannedDecode:
    """The attention of a decode step at fixed addresses, with the tables of a group of layers."""

    attention: DecodeAttention | SteadyDecode
    slots: Tensor
    tables: Tensor
    alone: bool = True  # no row reads KV that another row of the step stores

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
        shape = self.attention.shape
        return rope_store(qk, v, cos, sin, self.slots, keys, values, shape, norms)

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        return self.attention.attend(q, keys, values, tables=self.tables, sinks=sinks)

    def attend_packed(
        self,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        keys: Tensor,
        values: Tensor,
        norms: HeadNorms | None,
    ) -> Tensor:
        """In one launch; in two if rows read each other's KV or share prefixes, or KV is fp8."""
        attention, turn = self.attention, (cos, sin, self.slots)
        packed = isinstance(attention, DecodeAttention) and attention.takes_packed
        if isinstance(attention, DecodeAttention) and packed and self.alone:
            return attention.attend_packed(qkv, *turn, keys, values, norms, tables=self.tables)
        heads = qkv.view(qkv.shape[0], -1, attention.shape.head_dim)
        q = norm_rope_store(heads, *turn, keys, values, attention.shape, norms)
        return self.attend(q, keys, values)
