"""Experts that are kept in fp8, beside one expert after the other in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quire.backends import generic
from quire.backends.quantised.fp8_matrix import Fp8Matrix
from quire.backends.triton.experts import FusedExperts, Tile
from quire.backends.triton.fp8_experts import Fp8Experts
from tests.backends.triton.places import DEVICE
from tests.backends.triton.test_fp8_product import matrix, rounded

ON_GPU = DEVICE.type == "cuda"
DTYPE = torch.bfloat16 if ON_GPU else torch.float32
EXPERTS = 5
# Tokens: tiles of every size.
TOKENS = (1, 12, 40, 90, 400) if ON_GPU else (1, 9)


def made(lines: int, columns: int, tall: int, wide: int) -> list[Fp8Matrix]:
    one = matrix(lines * EXPERTS, columns, tall, wide)
    one = one if (lines % (tall or 1)) == 0 and tall else one.flattened()
    return [one.rows(i * lines, (i + 1) * lines) for i in range(EXPERTS)]


def one_by_one(
    x: Tensor, chosen: Tensor, scores: Tensor, sides: list[list[Fp8Matrix]], biases: list[Tensor]
) -> Tensor:
    """With activations rounded as the products round them."""
    out = torch.zeros(len(x), sides[1][0].shape[0], dtype=torch.float64, device=x.device)
    for token, (experts, weights) in enumerate(zip(chosen.tolist(), scores.tolist(), strict=True)):
        for expert, score in zip(experts, weights, strict=True):
            made = x[token : token + 1]
            for side, (matrices, bias) in enumerate(zip(sides, biases, strict=True)):
                own = matrices[expert]
                wide = rounded(made, min(own.wide, own.shape[1])) @ own.dequantised().double().t()
                made = (wide + bias[expert].double()).to(x.dtype)
                made = generic.gate("silu")(made) if side == 0 else made
            out[token] += made[0].double() * score
    return out


@pytest.mark.parametrize(("tall", "wide"), [(0, 0), (1, 0), (64, 64), (128, 128), (1, 32)])
@torch.inference_mode()
def test_pairs_are_rounded_and_multiplied_by_their_expert(tall: int, wide: int) -> None:
    torch.manual_seed(tall + wide)
    hidden, inner = (512, 384) if ON_GPU else (128, 64)
    sides = [made(2 * inner, hidden, tall, wide), made(hidden, inner, tall, wide)]
    biases = [
        torch.randn(EXPERTS, len(side[0].codes), device=DEVICE).mul_(50).to(DTYPE) for side in sides
    ]
    kept = [Fp8Experts.of(side, DTYPE) for side in sides]
    assert kept[0] is not None and kept[1] is not None
    for tokens in TOKENS:
        x = torch.randn(tokens, hidden, device=DEVICE).div_(100).to(DTYPE)
        chances = torch.rand(tokens, EXPERTS, device=DEVICE)
        chances[:, 3] = -1  # an expert that nobody takes
        scores, chosen = chances.topk(2, -1)
        ups, downs = (
            one.with_biases(bias) for one, bias in zip(kept, biases, strict=True) if one is not None
        )
        expected = one_by_one(x, chosen, scores, sides, biases)
        for tile in (ups.tile_for(2 * tokens), Tile(64, 64, 0, 4, 3)):
            found = FusedExperts(generic.gate("silu"), ups, downs, tile=tile)(x, chosen, scores)
            apart = (found.double() - expected).norm(dim=1) / expected.norm(dim=1)
            # What the gate made is rounded to fp8: an error of 16 bits may become a step of that.
            assert apart.max() < (4e-2 if ON_GPU else 1e-2), (tokens, tile, float(apart.max()))


def test_one_of_them_can_be_had_plain() -> None:
    matrices = made(64, 128, 64, 64)
    kept = Fp8Experts.of(matrices, torch.float32)
    assert kept is not None and kept.shape == (EXPERTS, 64, 128)
    assert torch.equal(kept.plain(3), matrices[3].dequantised(torch.float32))


def test_scales_for_few_columns_have_no_product() -> None:
    assert Fp8Experts.of(made(64, 128, 1, 16), DTYPE) is None
