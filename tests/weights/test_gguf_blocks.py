"""Blocks of GGUF files that stay codes mean what they mean when they are made plain."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quire.weights.dequantise import dequantise_into
from quire.weights.formats import READABLE, StoredTensor
from quire.weights.quantised.gguf_blocks import KEPT_BITS, gguf_matrix, is_kept_format
from quire.weights.row_order import deinterleaved

CPU = torch.device("cpu")
# Where a block has numbers in float16: random bits would not be finite.
HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def stored(name: str, rows: int, columns: int, path: Path) -> tuple[StoredTensor, torch.Tensor]:
    format_ = READABLE[name]
    torch.manual_seed(0)
    count = rows * columns // format_.block
    raw = torch.randint(0, 256, (count, format_.block_bytes), dtype=torch.uint8)
    for at in HALVES.get(name, () if name == "MXFP4" else (0,)):
        raw[:, at : at + 2] = torch.randn(count, 1).half().view(torch.uint8)
    if name == "MXFP4":
        raw[:, 0] = raw[:, 0] % 20 + 110
    path.write_bytes(raw.numpy().tobytes())
    return StoredTensor("w", (rows, columns), format_, path, 0, raw.numel()), raw


@pytest.mark.parametrize("name", KEPT_BITS)
def test_kept_blocks_are_the_weights_that_they_were(name: str, tmp_path: Path) -> None:
    rows, columns = 8, 512
    source, raw = stored(name, rows, columns, tmp_path / "w")
    assert is_kept_format(source)
    plain = torch.empty(rows, columns)
    dequantise_into(plain, raw.view(-1), name)
    kept = gguf_matrix(source, rows, None, None, CPU)
    assert torch.equal(kept.dequantised(), plain)
    order = deinterleaved(2, 4, 4)
    turned = gguf_matrix(source, rows, order, range(256, 512), CPU)
    expected = plain.view(2, 4, columns)[:, list(order.order)].reshape(rows, columns)
    assert torch.equal(turned.dequantised(), expected[:, 256:])
