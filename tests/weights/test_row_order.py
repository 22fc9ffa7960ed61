"""Rows of heads that a file has in another order."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quire.backends.cpu.int8 import Int8Matrix
from quire.executor.cpu.int8_probe import int8_arithmetic
from quire.weights.formats import StoredTensor
from quire.weights.load import load_int8_weights, load_weights
from quire.weights.read_rows import stored_rows
from quire.weights.row_order import RowOrder, deinterleaved, paired
from quire.weights.source import locate
from tests.parity.families import make_pair
from tests.weights.tiny import tiny_model


def test_pairs_are_half_a_head_apart() -> None:
    assert deinterleaved(3, 8, 8) == RowOrder(3, (0, 2, 4, 6, 1, 3, 5, 7))
    assert paired(3, 8, 8) is None
    partial = paired(3, 8, 4)
    assert partial == RowOrder(3, (0, 1, 4, 5, 2, 3, 6, 7))
    assert partial.after(deinterleaved(3, 8, 4)) == RowOrder(3, (0, 2, 4, 5, 1, 3, 6, 7))


@pytest.mark.parametrize("read_size", [1, 5000, 1 << 20])
def test_only_the_first_heads_are_put_in_order_however_much_is_read_at_once(
    read_size: int, tmp_path: Path
) -> None:
    model = tiny_model("phi3", pad_token_id=0)
    model.save_pretrained(tmp_path)
    name = "model.layers.1.self_attn.qkv_proj.weight"
    source: StoredTensor = locate(str(tmp_path)).stored_tensors()[name]
    order = RowOrder(6, (*range(1, 16, 2), *range(0, 16, 2)))
    pieces = [raw for _, _, raw in stored_rows(source, 128, order, read_size)]
    heads = model.state_dict()[name].view(8, 16, -1)
    expected = torch.cat([heads[:6, list(order.order)], heads[6:]])
    assert torch.equal(torch.cat(pieces).view(torch.float32), expected.reshape(-1))


def test_bytes_are_put_in_order_as_floats_are(tmp_path: Path) -> None:
    make_pair("phi3, partial longrope").oracle.save_pretrained(tmp_path)
    files = locate(str(tmp_path))
    spec = files.spec()
    assert spec.layers[0].attention.rope.dims == 12
    wide = load_weights(files, spec, dtype=torch.float32, device="cpu")
    arithmetic = int8_arithmetic()
    narrow = load_int8_weights(files, spec, arithmetic)
    for name, weight in wide.items():
        if weight.dim() == 2:
            found, expected = narrow[name], Int8Matrix.of(weight, arithmetic)
            assert isinstance(found, Int8Matrix)
            assert torch.equal(found.packed, expected.packed), name
