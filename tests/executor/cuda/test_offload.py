"""Weights out of a device's memory and back, with the parts of a GPU's model on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quire.backends.triton.kernels import TritonKernels
from quire.executor.cuda.offload import OffloadedWeights, _tensors
from quire.executor.new_weights import NewWeights
from quire.layers.tp import TensorParallel
from quire.models.decoder import Decoder, head_shape
from quire.models.registry import build_model
from tests.parity.families import Pair, canonical, make_pair


def built(pair: Pair) -> Decoder:
    shape = head_shape(pair.spec, 16, torch.float32)
    weights = {name: w.clone() for name, w in pair.weights.items()}
    kernels = TritonKernels(shape)
    return build_model(pair.spec, weights, kernels, shape, max_len=64, tp=TensorParallel())


def bits(tensors: list[Tensor]) -> list[Tensor]:
    return [t.view(torch.uint8).clone() for t in tensors]


@pytest.mark.parametrize("name", ["llama", "llama untied, every bias", "qwen3 untied", "gemma3"])
def test_every_weight_leaves_and_comes_back(name: str) -> None:
    pair = make_pair(name)
    model = built(pair)
    tensors = list(_tensors(model))
    before = bits(tensors)
    num_weights = sum(w.numel() for w in pair.weights.values())
    tied = pair.spec.tied_embeddings  # the table comes as the head's, too
    listed = sum(t.numel() for t in tensors if t.dim() < 2 or t.shape[1] > 1)
    assert listed == num_weights + tied * pair.weights["embed.weight"].numel()
    out = OffloadedWeights(model)
    assert all(t.untyped_storage().nbytes() == 0 for t in tensors)
    out.bring_back()
    assert all(torch.equal(a, b) for a, b in zip(bits(tensors), before, strict=True))


def test_other_weights_are_written_into_the_same_memory() -> None:
    pair = make_pair("llama untied, every bias")
    model = built(pair)
    places = [t.data_ptr() for t in _tensors(model)]
    others = {n: torch.randn_like(w) for n, w in pair.oracle.state_dict().items()}
    assert NewWeights(model, pair.spec).load(others.items()) == set(others)
    assert [t.data_ptr() for t in _tensors(model)] == places
    fresh = built(Pair(pair.oracle, pair.spec, canonical(others, pair.spec)))
    wanted, found = bits(list(_tensors(fresh))), bits(list(_tensors(model)))
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
