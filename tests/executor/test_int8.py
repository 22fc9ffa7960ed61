"""In 8-bit arithmetic the bits of a row depend on its text alone, with nothing asked for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quire.backends.cpu.int8 import Int8Arithmetic, Int8Matrix, TorchInt8
from quire.backends.cpu.native.library import library
from quire.backends.cpu.native_int8 import Choice, NativeInt8, paths_here
from quire.weights.load import dummy_int8_weights, dummy_weights
from tests.executor.harness import Drive, make_runner
from tests.executor.test_invariance import (
    NUM_BLOCKS,
    assert_same_bits,
    loud,
    spec_of,
    texts_of,
    without_native_kernels,
)


def all_paths() -> Int8Arithmetic:
    """Another path for almost every number of rows."""
    found = library()
    if found is None:
        return TorchInt8()
    paths = paths_here(found)
    return NativeInt8(found, [Choice(3 * i + 1, path) for i, path in enumerate(paths)])


def in_bytes(weights: dict[str, Tensor]) -> dict[str, Tensor | Int8Matrix]:
    return {n: Int8Matrix.of(w, all_paths()) if w.dim() == 2 else w for n, w in weights.items()}


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("tied", "native"),
    [
        pytest.param(True, True, id="native, tied"),
        pytest.param(False, True, id="native", marks=LONG),
        pytest.param(True, False, id="torch, tied", marks=LONG),
        pytest.param(False, False, id="torch"),
    ],
)
def test_every_way_of_cutting_a_text_gives_the_same_bits(
    tied: bool, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        without_native_kernels(monkeypatch)
        monkeypatch.setattr("tests.executor.test_int8.library", lambda: None)
    spec = spec_of(tied_embeddings=tied, windows=(50, None), qkv_bias=not tied)
    weights = in_bytes(loud(dummy_weights(spec, dtype=torch.float32, device="cpu")))
    runner, _ = make_runner(spec, weights, num_blocks=NUM_BLOCKS)
    assert runner.model.kernels.padded(7) == 7  # nothing is computed for nobody
    assert_same_bits(spec, weights, block_sizes=(16, 16, 4, 16, 16, 32))


def test_logits_are_near_those_of_the_wide_weights() -> None:
    spec = spec_of()
    wide = loud(dummy_weights(spec, dtype=torch.float32, device="cpu"))
    texts, num_prompts = texts_of(2)
    made = []
    for weights in (wide, in_bytes(wide)):
        runner, sampler = make_runner(spec, weights, num_blocks=NUM_BLOCKS)
        made.append(Drive(runner, sampler, 0, NUM_BLOCKS).run(texts, num_prompts))
    exact, rounded = (torch.stack([logits[key] for key in made[0]]) for logits in made)
    assert (exact - rounded).norm() / exact.norm() < 0.15
    assert not torch.equal(exact, rounded)


def test_dummy_weights_are_the_wide_ones_in_bytes() -> None:
    spec = spec_of(tied_embeddings=False)
    wide = dummy_weights(spec, dtype=torch.float32, device="cpu", seed=3)
    narrow = dummy_int8_weights(spec, TorchInt8(), seed=3)
    assert wide.keys() == narrow.keys()
    for name, weight in wide.items():
        made = narrow[name]
        if weight.dim() == 1:
            assert torch.equal(made, weight)
        else:
            assert torch.equal(made.packed, Int8Matrix.of(weight, TorchInt8()).packed)
