"""States on a GPU: a convolution, then what the tokens do to the matrices, if there are any.

A launch a layer for each, for prompts and decode rows alike, both along each sequence: the first
token of a block begins with the state that the last token before it left. The host computes
nothing: the block tables say which blocks those are, so a step can be captured.

The layout of a state in its block is that of backends/states.py, so it is forked, kept and given
back like keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quire.backends.ops import StateRule
from quire.backends.states import block_numbers, half_of
from quire.backends.triton.jit import power_of_two
from quire.backends.triton.state_kernels import convolve, take_up_tokens
from quire.layer_parts.state import ConvolutionPlan, DeltaNetPlan, MambaPlan, StatePlan

_CHANNELS_AT_ONCE = 128
_TOKENS_AT_ONCE = 16  # tokens of a slice that the convolution computes at once
# Numbers of a head's state that one warp computes: more do not fit into its registers.
_NUMBERS_AT_ONCE = 2048
_MOST_COLUMNS = 16


@dataclass(frozen=True, slots=True)
class TritonStates:
    """The sequences of a pass: sequence i has the tokens query_starts[i] .. query_starts[i + 1],
    which are the last of its context_lens[i] tokens (0: idle), and the table of rows[i], or of i
    without `rows`."""

    query_starts: Tensor
    context_lens: Tensor
    tables: Tensor
    block_size: int
    rows: Tensor | None = None
    single: bool = False  # each has one token

    def take_up(
        self, rule: StateRule, x: Tensor, rates: Tensor | None, keys: Tensor, values: Tensor
    ) -> Tensor:
        plan, heads = rule.plan, rule.heads
        # What resting rows read is 0.
        make = x.new_zeros if heads is None else x.new_empty
        mixed = make(len(x), plan.channels, dtype=torch.float32)
        states = keys.view(len(keys), -1).view(torch.float32)
        apart = (values.data_ptr() - keys.data_ptr()) // states.itemsize
        sequences, rows = len(self.context_lens), self.rows
        who = self.context_lens if rows is None else rows
        given = (self.query_starts, self.context_lens, self.tables, who, states)
        shared = state_constants(plan, block_numbers(keys, plan), self.block_size)
        shared["HAS_ROWS"] = rows is not None
        bias = rule.convolution if rule.bias is None else rule.bias
        convolve[(sequences, -(-plan.channels // _CHANNELS_AT_ONCE))](
            *(x, rule.convolution, bias, mixed, *given, apart),
            *(self.tables.stride(0), x.stride(0)),
            **shared,
            **convolution_constants(rule, single=self.single),
        )
        if heads is None or rates is None or isinstance(plan, ConvolutionPlan):
            return mixed
        read = x.new_zeros(len(x), plan.num_heads, plan.value_dim, dtype=torch.float32)
        constants = rule_constants(plan)
        tiles = -(-plan.value_dim // constants["COLUMNS"])
        skips = heads.shifts if heads.skips is None else heads.skips
        take_up_tokens[(sequences, plan.num_heads * tiles)](
            *(mixed, rates, heads.log_slopes, heads.shifts, skips, read, *given, apart),
            self.tables.stride(0),
            **shared,
            **constants,
        )
        return read


def state_constants(plan: StatePlan, block: int, slots: int) -> dict[str, Any]:
    """The constants of both kernels; `block`: numbers from one block's state to the next."""
    return {
        "CHANNELS": plan.channels,
        "HALF": half_of(plan.state_numbers),
        "BLOCK": block,
        "SLOTS": slots,
    }


def convolution_constants(rule: StateRule, *, single: bool) -> dict[str, Any]:
    plan = rule.plan
    return {
        "REACH": plan.reach,
        "MATRIX": plan.matrix_numbers,
        "HAS_BIAS": rule.bias is not None,
        "SILU": rule.heads is not None,
        "TOKENS": 1 if single else _TOKENS_AT_ONCE,
        "COLUMNS": _CHANNELS_AT_ONCE,
        "num_warps": 1 if single else 4,
    }


def rule_constants(plan: DeltaNetPlan | MambaPlan) -> dict[str, Any]:
    key = power_of_two(plan.key_dim)
    return {
        "HEADS": plan.num_heads,
        "KEY_HEADS": plan.num_key_heads,
        "IN_TURN": isinstance(plan, DeltaNetPlan) and plan.in_turn,
        "KEY": plan.key_dim,
        "KEY_PADDED": key,
        "VALUE": plan.value_dim,
        "COLUMNS": min(_MOST_COLUMNS, max(1, _NUMBERS_AT_ONCE // key)),
        "SCALE": plan.key_dim**-0.5,
        # Of rates from above, or of steps from below.
        "LIMIT": plan.most_rate if isinstance(plan, DeltaNetPlan) else plan.least_step,
        "CORRECTS": isinstance(plan, DeltaNetPlan),
        "num_warps": 1,
    }
