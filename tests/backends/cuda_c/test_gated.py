"""Products of gate and up for many rows in CUDA C++, beside torch in float32; on a GPU."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quire.backends.cuda_c import gated
from quire.backends.cuda_c.gated import (
    GatedKind,
    GatedRows,
    GatedTile,
    gated_tile,
    load_kernels,
    multiply_gated,
)
from quire.backends.cuda_c.launch import CudaKernel
from quire.backends.cuda_c.nvrtc import NoCudaC
from quire.backends.linear import GatedProduct
from quire.backends.plain import PlainLinear
from quire.backends.triton.elementwise import gate_mul
from quire.layer_plan import Activation
from tests.backends.cuda_c.checks import assert_near, random

# Lines that fill no tile, columns of part of a stage, one stage and real sizes.
SHAPES = ((528, 200), (256, 64), (1008, 768), (1024, 2048), (6144, 1024))
CLUSTERS = 66


class TestTiles:
    @pytest.mark.parametrize("lines", [256, 224, 192, 128])
    def test_fit_a_core(self, lines: int) -> None:
        tile = GatedTile(lines)
        assert tile.shared_bytes <= 227 << 10
        assert tile.stages >= 3

    def test_are_none_where_many_clusters_would_be_idle(self) -> None:
        for rows in (1, 128, 192, 208, 257, 384):
            assert gated_tile(28672, rows, CLUSTERS) is None
        for rows in (256, 512, 1000, 16384):
            assert gated_tile(28672, rows, CLUSTERS) is not None
        assert gated_tile(1024, 512, CLUSTERS) is None
        assert gated_tile(1024, 16384, CLUSTERS) == GatedTile(256)

    @pytest.mark.parametrize("num_lines", [512, 3072, 6144, 28672])
    def test_of_any_number_of_rows_have_a_kernel_that_is_loaded_ahead(
        self, num_lines: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loaded: set[GatedTile] = set()

        def known(tile: GatedTile, *_: object) -> CudaKernel:
            loaded.add(tile)
            kernel = CudaKernel("gated.cu", "multiply", {}, threads=1)
            monkeypatch.setattr(kernel, "load", lambda: None)
            return kernel

        monkeypatch.setattr(gated, "kernel_of", known)
        monkeypatch.setattr(gated, "clusters_of", lambda _: CLUSTERS)
        monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
        kind = GatedKind(num_lines, 64, torch.bfloat16, "silu")
        assert load_kernels([kind], torch.device("cuda", 0))
        needed = {gated_tile(num_lines, rows, CLUSTERS) for rows in range(1, 5000)}
        assert needed - {None} <= loaded


def opened(sums: Tensor, activation: Activation) -> Tensor:
    gate, up = sums.float().chunk(2, 1)
    made = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
    return made.to(sums.dtype).float() * up


@pytest.mark.gpu
@pytest.mark.parametrize("lines", [256, 224, 192, 128])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_a_product_is_that_of_torch(
    shape: tuple[int, int], lines: int, activation: Activation
) -> None:
    torch.manual_seed(0)
    for rows, dtype, biased in (
        (1, torch.bfloat16, True),
        (130, torch.float16, False),
        (300, torch.bfloat16, True),
        (2049, torch.bfloat16, False),
    ):
        weight = random(*shape, spread=shape[1] ** -0.5, dtype=dtype)
        x = random(rows, shape[1], dtype=dtype)
        bias = random(shape[0], dtype=dtype) if biased else None
        sums = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
        given = weight, x, bias, activation, GatedTile(lines)
        found = multiply_gated(*given)
        assert_near(found, opened(sums.to(dtype), activation), 6e-3)
        assert torch.equal(found, multiply_gated(*given)), "not the same bits"


@pytest.mark.gpu
def test_a_row_has_the_same_bits_in_every_batch_and_tile() -> None:
    torch.manual_seed(3)
    weight, x = random(1024, 768), random(1500, 768)
    whole = multiply_gated(weight, x, None, "silu", GatedTile(256))
    for lines, rows in ((256, 129), (224, 700), (192, 1500), (128, 1)):
        found = multiply_gated(weight, x[:rows], None, "silu", GatedTile(lines))
        assert torch.equal(found, whole[:rows]), (lines, rows)


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_a_gate_is_the_same_joined_and_apart(activation: Activation) -> None:
    """With numbers of every size: some gates are far below zero, and some are infinite."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("joined on Hopper alone")
    torch.manual_seed(4)
    product = PlainLinear(random(6144, 64, spread=3), random(6144))
    apart = GatedProduct(product, partial(gate_mul, activation=activation))
    joined = GatedRows.of(product, activation, apart)
    assert joined is not None
    for rows in (7, 300, 1024, 5000):
        x = random(rows, 64, spread=4)
        assert_near(joined(x), apart(x), 1e-3)
    x[0] *= 1e37
    assert torch.equal(joined(x)[0].isfinite(), apart(x)[0].isfinite())


def test_other_activations_and_devices_stay_apart() -> None:
    weight = torch.ones(32, 64, dtype=torch.bfloat16)
    product = PlainLinear(weight, None)
    activations: tuple[Activation, ...] = ("silu", "relu")
    for activation in activations:
        assert GatedRows.of(product, activation, product) is None
        kind = GatedKind(32, 64, weight.dtype, activation)
        assert not kind.is_tiled(torch.device("cpu"))


def test_where_nothing_compiles_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(*_: object) -> CudaKernel:
        raise NoCudaC("no compiler in this test")

    monkeypatch.setattr(gated, "kernel_of", missing)
    monkeypatch.setattr(gated, "clusters_of", lambda _: CLUSTERS)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    caplog.set_level(logging.INFO, "quire")
    kind = GatedKind(28672, 4096, torch.bfloat16, "silu")
    for _ in range(2):
        assert not load_kernels([kind], torch.device("cuda", 0))
    assert caplog.text.count("no compiler in this test") == 1
