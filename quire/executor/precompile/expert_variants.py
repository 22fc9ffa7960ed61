"""The variants of the kernels for mixtures of experts; see signatures.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from quire.backends.triton import experts
from quire.backends.triton.experts_kernels import (
    add_up,
    arrange_pairs,
    choose_experts,
    count_pairs,
    multiply_experts,
    order_pairs,
)
from quire.executor.precompile.variants import A_FRACTION, F32, I32, I64, SOME, Pointer, Variant
from quire.layer_plan import expert_plans
from quire.spec import ModelSpec

if TYPE_CHECKING:
    import torch


def expert_variants(spec: ModelSpec, dtype: torch.dtype, own: Pointer) -> Iterator[Variant]:
    """`own`: what the model's weights and activations are."""
    hidden = spec.hidden_size
    for plan in expert_plans(spec.layers):
        counted, summed = experts.COUNT_CONSTANTS, experts.sum_constants(plan.per_token)
        router = (F32, F32, I64, F32, SOME, A_FRACTION, A_FRACTION)
        yield Variant(choose_experts, router, experts.choice_constants(plan))
        yield Variant(count_pairs, (I64, I32, I32, SOME), counted)
        yield Variant(add_up, (own, F32, own, hidden), summed)
        for tile in dict.fromkeys(experts.all_tiles(plan, dtype)):
            order = experts.order_constants(plan.count, tile)
            arranged = experts.arrange_constants(plan.count, tile)
            yield Variant(order_pairs, (I64, I32, I32, I32, SOME), order)
            yield Variant(arrange_pairs, (I64, I32, I32, SOME), arranged)
            for inner, constants in experts.products_of(plan, hidden, tile, dtype):
                given = (own, own, own, I32, I32, own, inner)
                yield Variant(multiply_experts, given, constants)
