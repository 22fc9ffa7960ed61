"""States on a GPU: a convolution, then what the tokens do to the matrices, if there are any.

A step of decode rows has one launch for each. Slices of prompts have chunks: products of matrices
take up all tokens of a chunk at once, where one token after the other would leave the device
waiting. The host computes nothing: the block tables say where the states are, so a step can be
captured.

The layout of a state in its block is that of backends/states.py, so it is forked, kept and given
back like keys and values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from quire.backends.ops import StateRule
from quire.backends.states import block_numbers, half_of
from quire.backends.triton.convolution_kernels import convolve, keep_inputs
from quire.backends.triton.jit import power_of_two
from quire.backends.triton.state_chunk_kernels import (
    solve_chunks,
    take_up_chunks,
    unit_keys,
)
from quire.backends.triton.state_kernels import take_up_tokens
from quire.layer_parts.state import CHUNK, ConvolutionPlan, DeltaNetPlan, MambaPlan, StatePlan

_CHANNELS_AT_ONCE = 128
_CONVOLVED = 32  # tokens of a slice that the convolution computes at once
_UNIT_TOKENS = 16  # whose queries and keys are scaled at once
# Numbers of a head's state that a warp computes: more do not fit into its registers.
_NUMBERS_AT_ONCE = 2048
_MOST_COLUMNS = 64
_NARROW_COLUMNS, _WIDE_COLUMNS = 64, 32  # of a head's state in a program of chunks
_LEAST_CHUNK = 16  # the fewest rows of a product of matrices
_CHUNK_KEYS = 1 << 13  # numbers of a chunk's keys: more do not fit into shared memory
FEW_TOKENS = 8  # so many tokens one after the other take as long as a chunk
_ALL = 1 << 30


@dataclass(frozen=True, slots=True)
class Layer:
    """The states of one layer in its part of the KV cache, as float32 from its first key on; the
    values begin `apart` numbers after the keys. `constants` are those of all kernels."""

    rule: StateRule
    states: Tensor
    apart: int
    constants: dict[str, Any]

    @property
    def convolution(self) -> tuple[Tensor, Tensor]:
        """Its taps and its bias, which a kernel without one does not read."""
        rule = self.rule
        return rule.convolution, rule.convolution if rule.bias is None else rule.bias

    @property
    def heads(self) -> tuple[Tensor, Tensor, Tensor]:
        """Slopes, shifts and skips of its heads, which only a Mamba reads."""
        heads = self.rule.heads
        if heads is None:
            raise TypeError(f"a {type(self.rule.plan).__name__} without heads")
        return heads.log_slopes, heads.shifts, heads.shifts if heads.skips is None else heads.skips


@dataclass(frozen=True, slots=True)
class TritonStates:
    """The sequences of a pass, each with one token: sequence i has the last of its context_lens[i]
    tokens (0: idle), which is the query_starts[i]-th of the pass, and the table of rows[i], or of i
    without `rows`."""

    query_starts: Tensor
    context_lens: Tensor
    tables: Tensor
    block_size: int
    rows: Tensor | None = None

    def take_up(
        self, rule: StateRule, x: Tensor, rates: Tensor | None, keys: Tensor, values: Tensor
    ) -> Tensor:
        layer = self.layer_of(rule, keys, values)
        # What resting rows read is 0.
        make = x.new_zeros if rule.heads is None else x.new_empty
        mixed = make(len(x), rule.plan.channels, dtype=torch.float32)
        self.convolve(layer, x, mixed)
        if rates is None:
            return mixed
        read = rates.new_zeros(read_shape(rule.plan, len(x)))
        self.take_up_tokens(layer, mixed, rates, read)
        return read

    @property
    def given(self) -> tuple[Tensor, ...]:
        rows = self.context_lens if self.rows is None else self.rows
        return self.query_starts, self.context_lens, self.tables, rows

    def layer_of(self, rule: StateRule, keys: Tensor, values: Tensor) -> Layer:
        states = keys.view(len(keys), -1).view(torch.float32)
        constants = {
            "CHANNELS": rule.plan.channels,
            "HALF": half_of(rule.plan.state_numbers),
            "BLOCK": block_numbers(keys, rule.plan),
            "SLOTS": self.block_size,
            "HAS_ROWS": self.rows is not None,
        }
        apart = (values.data_ptr() - keys.data_ptr()) // states.itemsize
        return Layer(rule, states, apart, constants)

    def convolve(self, layer: Layer, x: Tensor, out: Tensor, chunks: Chunks | None = None) -> None:
        plan, sequences = layer.rule.plan, len(self.context_lens)
        owners = self.query_starts if chunks is None else chunks.owners
        convolve[(sequences if chunks is None else len(owners), tiles_of(plan.channels))](
            *(x, *layer.convolution, out, *self.given, layer.states, layer.apart),
            *(self.tables.stride(0), x.stride(0), owners),
            *(self.query_starts if chunks is None else chunks.ends, sequences),
            **layer.constants,
            **input_constants(plan),
            **convolution_constants(layer.rule, 0 if chunks is None else chunks.size),
        )

    def take_up_tokens(
        self, layer: Layer, mixed: Tensor, rates: Tensor, read: Tensor, *, most: int = _ALL
    ) -> None:
        """Take up the tokens of sequences with at most so many, one after the other."""
        plan = matrices_of(layer.rule.plan)
        constants = token_constants(plan)
        tiles = plan.num_heads * -(-plan.value_dim // constants["COLUMNS"])
        take_up_tokens[(len(self.context_lens), tiles)](
            *(mixed, rates, *layer.heads, read, *self.given, layer.states, layer.apart),
            *(self.tables.stride(0), most),
            **layer.constants,
            **rule_constants(plan),
            **constants,
        )


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks of a pass, each of `size` tokens at most: `ends` counts those of all sequences up
    to each, `owners` has the sequence of each, and behind the last the number of sequences."""

    size: int
    owners: Tensor
    ends: Tensor

    @classmethod
    def of(cls, starts: Tensor, lengths: Tensor, num_tokens: int, size: int) -> Chunks:
        """Chunks begin at positions that are multiples of `size`."""
        begun = (lengths - starts.diff()) // size
        ends = ((lengths + (size - 1)) // size - begun).cumsum(0)
        most = num_tokens // size + 2 * len(lengths)
        numbers = torch.arange(most, device=ends.device)
        return cls(size, torch.searchsorted(ends, numbers, right=True, out_int32=True), ends)


@dataclass(frozen=True, slots=True)
class SlicesStates(TritonStates):
    """The slices of a pass, with so many tokens in all: sequence i has the tokens query_starts[i]
    .. query_starts[i + 1]. `one_by_one`: how tokens add up does not depend on the slices, as none
    are taken up together."""

    num_tokens: int = 0
    one_by_one: bool = False
    _chunks: dict[int, Chunks] = field(default_factory=dict)

    def take_up(
        self, rule: StateRule, x: Tensor, rates: Tensor | None, keys: Tensor, values: Tensor
    ) -> Tensor:
        plan, layer = rule.plan, self.layer_of(rule, keys, values)
        size = 0 if rates is None else self._chunk_size(matrices_of(plan))
        # Products of matrices round what they multiply in any case.
        mixed = x.new_empty(len(x), plan.channels, dtype=x.dtype if size else torch.float32)
        self.convolve(layer, x, mixed, self._chunks_of(largest_chunk(self.block_size)))
        keep_inputs[(len(self.context_lens), tiles_of(plan.channels))](
            *(x, *self.given, layer.states, layer.apart, self.tables.stride(0), x.stride(0)),
            **layer.constants,
            **input_constants(plan),
        )
        if rates is None:
            return mixed
        read = rates.new_empty(read_shape(plan, len(x)))
        self.take_up_tokens(layer, mixed, rates, read, most=FEW_TOKENS if size else _ALL)
        if size:
            self._take_up_chunks(layer, mixed, rates, read, self._chunks_of(size), x.dtype)
        return read

    def _take_up_chunks(
        self,
        layer: Layer,
        mixed: Tensor,
        rates: Tensor,
        read: Tensor,
        chunks: Chunks,
        dtype: torch.dtype,
    ) -> None:
        """`dtype`: that of the model, whose precision is enough."""
        plan = matrices_of(layer.rule.plan)
        sequences, stride = len(self.context_lens), self.tables.stride(0)
        constants, solved = chunk_constants(plan, chunks.size, dtype), mixed
        if isinstance(plan, DeltaNetPlan):
            # In place: tokens that are taken up one after the other were, and scaled their own.
            unit_keys[(-(-len(mixed) // _UNIT_TOKENS), 2 * plan.num_key_heads)](
                *(mixed, len(mixed)), **unit_constants(plan)
            )
            kind = torch.float16 if constants["NARROW"] else torch.float32
            solved = mixed.new_empty(len(mixed), plan.num_heads, chunks.size, dtype=kind)
            solve_chunks[(len(chunks.owners), plan.num_heads)](
                *(mixed, rates, *layer.heads[:2], solved, *self.given, stride),
                *(chunks.owners, chunks.ends, sequences),
                **solving_constants(layer, plan, constants),
            )
        tiles = plan.num_heads * -(-plan.value_dim // constants["COLUMNS"])
        take_up_chunks[(sequences, tiles)](
            *(mixed, rates, *layer.heads, solved, read, *self.given[:3], layer.states, layer.apart),
            *(stride, FEW_TOKENS),
            **{name: number for name, number in layer.constants.items() if name != "HAS_ROWS"},
            **rule_constants(plan),
            **constants,
        )

    def _chunk_size(self, plan: DeltaNetPlan | MambaPlan) -> int:
        return 0 if self.one_by_one else chunk_size(plan, self.block_size)

    def _chunks_of(self, size: int) -> Chunks:
        if size not in self._chunks:
            given = self.query_starts, self.context_lens, self.num_tokens
            self._chunks[size] = Chunks.of(*given, size)
        return self._chunks[size]


def matrices_of(plan: StatePlan) -> DeltaNetPlan | MambaPlan:
    if isinstance(plan, ConvolutionPlan):
        raise TypeError("a ConvolutionPlan has no matrices")
    return plan


def read_shape(plan: StatePlan, num_tokens: int) -> tuple[int, int, int]:
    """Of what tokens read from matrices."""
    return num_tokens, matrices_of(plan).num_heads, matrices_of(plan).value_dim


def tiles_of(channels: int) -> int:
    return -(-channels // _CHANNELS_AT_ONCE)


def largest_chunk(block_size: int) -> int:
    """The most tokens of a chunk, of which a whole number fills a block."""
    return math.gcd(block_size, CHUNK)


def chunk_size(plan: DeltaNetPlan | MambaPlan, block_size: int) -> int:
    """The tokens of a chunk; 0 if blocks or keys are such that products of matrices do not fit."""
    size = min(largest_chunk(block_size), _CHUNK_KEYS // power_of_two(plan.key_dim))
    return size if size >= _LEAST_CHUNK else 0


def input_constants(plan: StatePlan) -> dict[str, Any]:
    """The constants of what knows the kept inputs of a convolution."""
    return {"REACH": plan.reach, "MATRIX": plan.matrix_numbers, "COLUMNS": _CHANNELS_AT_ONCE}


def convolution_constants(rule: StateRule, chunk: int) -> dict[str, Any]:
    """`chunk` 0: one token for each sequence."""
    return {
        "CHUNK": chunk,
        "HAS_BIAS": rule.bias is not None,
        "SILU": rule.heads is not None,
        "TOKENS": min(chunk, _CONVOLVED) or 1,
        "num_warps": 4 if chunk else 1,
    }


def rule_constants(plan: DeltaNetPlan | MambaPlan) -> dict[str, Any]:
    return {
        "HEADS": plan.num_heads,
        "KEY_HEADS": plan.num_key_heads,
        "IN_TURN": isinstance(plan, DeltaNetPlan) and plan.in_turn,
        "KEY": plan.key_dim,
        "KEY_PADDED": max(power_of_two(plan.key_dim), _LEAST_CHUNK),
        "VALUE": plan.value_dim,
        # Of rates from above, or of steps from below.
        "LIMIT": plan.most_rate if isinstance(plan, DeltaNetPlan) else plan.least_step,
        "CORRECTS": isinstance(plan, DeltaNetPlan),
    }


def unit_constants(plan: DeltaNetPlan) -> dict[str, Any]:
    rule = {**rule_constants(plan), "CHANNELS": plan.channels}
    kept = {name: rule[name] for name in ("KEY_HEADS", "KEY", "KEY_PADDED", "CHANNELS")}
    return {**kept, "TOKENS": _UNIT_TOKENS, "num_warps": 4}


def token_constants(plan: DeltaNetPlan | MambaPlan) -> dict[str, Any]:
    """How the work of one token after the other is cut: the columns of a program, and its warps."""
    columns = min(_MOST_COLUMNS, power_of_two(plan.value_dim))
    numbers = max(power_of_two(plan.key_dim), _LEAST_CHUNK) * columns
    warps = min(8, max(1, numbers // _NUMBERS_AT_ONCE))
    return {"COLUMNS": columns, "num_warps": warps}


def chunk_constants(
    plan: DeltaNetPlan | MambaPlan, size: int, dtype: torch.dtype
) -> dict[str, Any]:
    narrow = dtype == torch.bfloat16
    # Triton 3.6 makes code for Hopper that is wrong with narrower tiles of bfloat16, and float32
    # does not fit with wider ones.
    columns = _NARROW_COLUMNS if narrow else _WIDE_COLUMNS
    # float32 is multiplied in three parts, so that no digits are lost.
    precision = "tf32x3" if dtype == torch.float32 else "tf32"
    cut = {"CHUNK": size, "COLUMNS": columns, "NARROW": narrow, "PRECISION": precision}
    # Keys of 256 numbers take twice the registers.
    warps = 4 if power_of_two(plan.key_dim) * columns <= _CHUNK_KEYS else 8
    return {**cut, "num_warps": warps, "num_stages": 2 if narrow else 1}


def solving_constants(
    layer: Layer, plan: DeltaNetPlan, constants: dict[str, Any]
) -> dict[str, Any]:
    rule = {**rule_constants(plan), **constants, **layer.constants}
    names = ("HEADS", "KEY_HEADS", "IN_TURN", "KEY", "KEY_PADDED", "CHANNELS", "LIMIT", "HAS_ROWS")
    kept = {name: rule[name] for name in (*names, "CHUNK", "NARROW", "PRECISION")}
    return {**kept, "LEVELS": constants["CHUNK"].bit_length() - 1, "num_warps": 4}
