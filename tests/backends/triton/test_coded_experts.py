"""Experts whose weights stay in codes of 4 bits, beside the same weights made plain."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quire.backends import generic
from quire.backends.quantised.grouped import FP4, GroupedMatrix
from quire.backends.triton.coded_experts import CodedExperts
from quire.backends.triton.experts import ExpertWeights, FusedExperts
from tests.backends.triton.grouped_checks import codes_of, matrices
from tests.backends.triton.places import DEVICE
from tests.testing.pairs import in_pairs

ON_GPU = DEVICE.type == "cuda"
KINDS = ("4 bits", "4 bits, zeros", "4 bits, minima", "floats")
# Tokens, each with two of its experts: tiles of every size.
TOKENS = (1, 40, 200, 700, 2500) if ON_GPU else (5,)
COUNT = 40 if ON_GPU else 4
BF16, F16 = torch.bfloat16, torch.float16


def made(kind: str, lines: int, columns: int, group: int, dtype: torch.dtype) -> GroupedMatrix:
    if kind != "floats":
        return matrices(lines, columns, group, dtype, DEVICE)[kind]
    powers = torch.randint(-6, -1, (lines, columns // group), device=DEVICE)
    scales, table = torch.exp2(powers.float()), torch.tensor(FP4, device=DEVICE)
    return GroupedMatrix(4, codes_of(lines, columns, 4, DEVICE), scales, table=table)


def alone(plain: Tensor, biases: Tensor, x: Tensor, experts: Tensor) -> Tensor:
    """In float64, rounded once."""
    out = x.new_empty(len(x), plain.shape[1])
    for expert in range(len(plain)):
        mine = experts == expert
        wide = x[mine].double() @ plain[expert].double().t() + biases[expert].double()
        out[mine] = wide.to(x.dtype)
    return out


@pytest.mark.parametrize(
    ("kind", "group", "types"),
    in_pairs(KINDS, [32, 64, 128], [(BF16, BF16), (BF16, F16), (F16, F16)]),
)
@torch.inference_mode()
def test_pairs_are_multiplied_by_their_expert(
    kind: str, group: int, types: tuple[torch.dtype, torch.dtype]
) -> None:
    """Tiles of every size, an expert that nobody takes, lines that fill no tile. Scales of another
    type than the activations' are multiplied as they are, not rounded to that first."""
    torch.manual_seed(group)
    dtype, scales = types
    hidden, inner = (512, 320) if ON_GPU else (128, 64)
    inner = 384 if group == 128 and ON_GPU else max(inner, group)
    sides = []
    for lines, columns in ((2 * inner, hidden), (hidden, inner)):
        experts = [made(kind, lines, columns, group, scales) for _ in range(COUNT)]
        kept = CodedExperts.of(experts, dtype)
        assert kept is not None and kept.shape == (COUNT, lines, columns)
        biases = torch.randn(COUNT, lines, device=DEVICE).to(dtype)
        plain = torch.stack([one.dequantised() for one in experts])
        sides.append((kept.with_biases(biases), plain, biases))
    (ups, up, up_biases), (downs, down, down_biases) = sides
    fused, gate = FusedExperts(generic.gate("silu"), ups, downs), generic.gate("silu")
    for tokens in TOKENS:
        x = torch.randn(tokens, hidden, device=DEVICE).div_(8).to(dtype)
        chances = torch.rand(tokens, COUNT, device=DEVICE)
        chances[:, 3] = -1
        scores, chosen = chances.topk(2, -1)
        found, flat = fused(x, chosen, scores), chosen.flatten()
        opened = gate(alone(up, up_biases, x.repeat_interleave(2, 0), flat))
        pairs = alone(down, down_biases, opened, flat).double()
        expected = (pairs * scores.view(-1, 1).double()).view(tokens, 2, -1).sum(1)
        apart = (found.double() - expected).norm(dim=1) / expected.norm(dim=1)
        # Weights are rounded to 16 bits once, as plain ones are; the interpreter cuts bits off.
        bound = 2e-3 if dtype == F16 else 1e-2 if ON_GPU else 3e-2
        assert apart.max() < bound, (tokens, ups.tile_for(2 * tokens), float(apart.max()))
        assert torch.equal(found, fused(x, chosen, scores)), "not the same bits"


@pytest.mark.parametrize("kept_first", [True, False])
@torch.inference_mode()
def test_one_product_may_be_plain(kept_first: bool) -> None:
    torch.manual_seed(3)
    hidden, inner = (512, 320) if ON_GPU else (128, 64)
    sizes = ((2 * inner, hidden), (hidden, inner))
    sides = [[made("4 bits", *size, 32, BF16) for _ in range(COUNT)] for size in sizes]
    plain = [ExpertWeights(torch.stack([one.dequantised(BF16) for one in side])) for side in sides]
    kept = [CodedExperts.of(side, BF16) for side in sides]
    ups, downs = (kept[0], plain[1]) if kept_first else (plain[0], kept[1])
    assert ups is not None and downs is not None
    for tokens in TOKENS:
        x = torch.randn(tokens, hidden, device=DEVICE).div_(8).to(BF16)
        scores, chosen = torch.rand(tokens, COUNT, device=DEVICE).topk(2, -1)
        found, expected = (
            FusedExperts(generic.gate("silu"), *pair)(x, chosen, scores).double()
            for pair in ((ups, downs), plain)
        )
        apart = (found - expected).norm(dim=1) / expected.norm(dim=1)
        assert apart.max() < (1e-2 if ON_GPU else 3e-2), (tokens, float(apart.max()))


@torch.inference_mode()
def test_a_token_of_nan_stays_alone() -> None:
    ups, downs = (
        CodedExperts.of([made("floats", *size, 32, BF16) for _ in range(4)], BF16)
        for size in ((128, 64), (64, 64))
    )
    assert ups is not None and downs is not None
    fused = FusedExperts(generic.gate("silu"), ups, downs)
    x = torch.randn(6, 64, device=DEVICE).to(BF16)
    chosen, scores = torch.zeros(6, 1, dtype=torch.int64, device=DEVICE), x.new_ones(6, 1).float()
    before = fused(x, chosen, scores)
    x[2] = torch.nan
    after = fused(x, chosen, scores)
    kept = [0, 1, 3, 4, 5]
    assert after[2].isnan().all() and torch.equal(after[kept], before[kept])


@pytest.mark.skipif(not ON_GPU, reason="gpu: no CUDA device here, and interpreted it takes minutes")
@torch.inference_mode()
def test_many_experts_and_many_pairs_are_as_with_plain_weights() -> None:
    """Sizes of real models, and numbers that show if a product reads what is not there yet."""
    torch.manual_seed(1)
    for count, kind, group in ((512, "4 bits", 128), (32, "floats", 32), (1, "4 bits, zeros", 64)):
        experts = [made(kind, 1536, 1024, group, BF16) for _ in range(count)]
        kept = CodedExperts.of(experts, BF16)
        assert kept is not None
        plain = ExpertWeights(torch.stack([one.dequantised(BF16) for one in experts]))
        for tokens in (2, 16 * count, 40 * count, 100 * count):
            x = torch.randn(tokens, 1024, device=DEVICE).to(BF16)
            chosen = torch.randint(0, max(1, count - 9), (tokens, 1), device=DEVICE)
            chosen[0] = max(0, count - 10)
            results = [of(one, x, chosen) for one in (kept, plain)]
            apart = (results[0] - results[1]).double().norm(dim=1)
            assert (apart / results[1].double().norm(dim=1)).max() < 5e-3, (count, tokens)


def of(product: CodedExperts | ExpertWeights, x: Tensor, chosen: Tensor) -> Tensor:
    """What a product makes of each token."""
    from quire.backends.triton.experts import Pairs

    tile = product.tile_for(chosen.numel())
    pairs = Pairs(chosen, product.shape[0], tile)
    return product.multiply(x, pairs, tile, per_row=1)


def test_weights_without_such_a_product_are_left() -> None:
    kinds = matrices(64, 128, 64, BF16, DEVICE)
    assert CodedExperts.of([kinds["4 bits"]] * 2, BF16) is not None
    for kind in ("4 bits, table", "4 bits, order", "8 bits"):
        assert CodedExperts.of([kinds[kind]] * 2, BF16) is None, kind
    assert CodedExperts.of([kinds["4 bits"]] * 2, torch.float32) is None
    few = matrices(40, 128, 64, BF16, DEVICE)["4 bits"]
    assert CodedExperts.of([few] * 2, BF16) is None  # lines of two experts in one block


def test_one_of_them_can_be_had_plain() -> None:
    for kind in KINDS:
        experts = [made(kind, 64, 128, 32, BF16) for _ in range(3)]
        kept = CodedExperts.of(experts, BF16)
        assert kept is not None
        assert torch.equal(kept.plain(2), experts[2].dequantised(BF16)), kind
