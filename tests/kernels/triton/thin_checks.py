"""What the products of few rows must be, for pytest and for a machine without it."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.kernels.ops import HeadShape
from quire.kernels.reference import ReferenceKernels
from tests.kernels.triton.checks import Place, assert_close, generator


def check_thin(
    place: Place,
    rows: int,
    hidden: int,
    inner: int,
    *,
    depth: int | None = None,
    has_bias: bool = False,
) -> None:
    """Embed, a product of the normed stream, gate and up, and what is added to the stream."""
    from quire.kernels.triton import thin

    reference = ReferenceKernels(HeadShape(1, 1, 16, 16, place.dtype))

    def random(*size: int, seed: int, spread: float = 1.0) -> Tensor:
        return (place.random(*size, seed=seed).float() * spread).to(place.dtype)

    def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return reference.make_linear(weight, bias)(x)

    table = random(50, hidden, seed=1)
    ids = torch.randint(0, 50, (rows,), generator=generator(2)).to(place.device)
    norm = thin.Norm(random(hidden, seed=3), 1e-5)
    qkv, bias = random(72, hidden, seed=4, spread=hidden**-0.5), random(72, seed=5)
    gate_up = random(2 * inner, hidden, seed=6, spread=hidden**-0.5)
    down = random(hidden, inner, seed=7, spread=inner**-0.5)
    products = thin.ThinProducts(thin.ThinTile(32, depth, 4, 2) if depth else None)
    stream = products.embed(ids, table)
    expected = table[ids].clone()
    assert_close(stream.residual, expected)
    normed = reference.rms_norm(expected, norm.weight, norm.eps)
    made = products.normed(stream, norm, qkv, bias if has_bias else None)
    assert_close(made, multiply(normed, qkv, bias if has_bias else None))
    opened = products.gated(stream, norm, gate_up)
    # The stream is rounded before it is normed here, after it there; what a wide row of the gate
    # makes of that is seen in one value of a hundred thousand.
    assert_close(opened, reference.silu_mul(multiply(normed, gate_up, None)), least=5e-2)
    products.add(stream, opened, down)
    expected += multiply(opened, down, None)
    assert_close(stream.residual, expected)
    normed = reference.rms_norm(expected, norm.weight, norm.eps)
    assert_close(products.normed(stream, norm, qkv), multiply(normed, qkv, None))
