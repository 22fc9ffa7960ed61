"""A model whose weights stay quantised gives the logits of the same model with plain ones."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from quire.backends.choose import torch_kernels
from quire.backends.ops import PackedMatrix
from quire.errors import NotSupported
from quire.executor.cpu.accuracy import hidden_states
from quire.executor.new_weights import NewWeights
from quire.layers.tp import TensorParallel
from quire.models.decoder import Decoder, head_shape
from quire.models.registry import build_model
from quire.models.weight_parts import Weights
from quire.spec import ModelSpec
from quire.weights.load import load_weights
from quire.weights.load_kept import load_kept_weights
from quire.weights.quantised.kept import Products
from quire.weights.source import locate
from tests.backends.triton import conftest  # noqa: F401 - before kernels: they are interpreted
from tests.parity.more_families import LATENTS, random_model
from tests.weights.quantised_files import CASES, write_quantised
from tests.weights.tiny import tiny_model, write_gguf

CPU = torch.device("cpu")


def built(spec: ModelSpec, weights: Weights) -> Decoder:
    shape = head_shape(spec, 16, torch.float32)
    kernels = torch_kernels(shape, batch_invariant=False)
    return build_model(spec, weights, kernels, shape, max_len=64, tp=TensorParallel())


def check(path: Path, least_kept: int, bound: float) -> None:
    from quire.backends.triton.grouped import Scratch
    from quire.backends.triton.quantised import DeviceMatrix

    files = locate(str(path))
    spec = files.spec()
    exact = built(spec, load_weights(files, spec, dtype=torch.float32, device="cpu"))
    kept = load_kept_weights(
        files, spec, dtype=torch.float32, device=CPU, products=Products(fp8=True, experts=False)
    )
    scratch = Scratch(CPU, torch.float32)
    weights: dict[str, Tensor | PackedMatrix] = {
        name: one if isinstance(one, Tensor) else DeviceMatrix(one, scratch)
        for name, one in kept.items()
    }
    assert sum(not isinstance(one, Tensor) for one in weights.values()) >= least_kept
    narrow = built(spec, weights)
    tokens = [3, 90, 17, 4, 66]
    with torch.inference_mode():
        expected, found = (
            model.logits(hidden_states(model, spec, tokens)) for model in (exact, narrow)
        )
    assert (found - expected).abs().max() <= bound * expected.abs().max()


@pytest.mark.parametrize("name", ["awq", "gptq desc_act", "gptq 3 bits", "packed 8 bits", "nf4"])
def test_codes(name: str, tmp_path: Path) -> None:
    write_quantised(tiny_model("llama", num_hidden_layers=1), tmp_path, CASES[name])
    check(tmp_path, 3, 1e-3 if name == "nf4" else 1e-5)


@pytest.mark.parametrize("name", ["fp8 by tensor", "fp8 blocks", "mxfp8"])
def test_fp8_rounds_activations_too(name: str, tmp_path: Path) -> None:
    write_quantised(tiny_model("llama", num_hidden_layers=1), tmp_path, CASES[name])
    check(tmp_path, 3, 6e-2)


def test_groups_that_no_product_has_are_made_plain(tmp_path: Path) -> None:
    write_quantised(tiny_model("llama", num_hidden_layers=1), tmp_path, CASES["nvfp4"])
    check(tmp_path, 0, 0.0)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_blocks_of_gguf(name: str, tmp_path: Path) -> None:
    write_gguf(tiny_model("qwen2", num_hidden_layers=1), tmp_path / "m.gguf", quantised=name)
    check(tmp_path / "m.gguf", 4, 1e-3)


def test_what_latents_become_keys_and_values_by_is_plain(tmp_path: Path) -> None:
    """It is taken apart by heads, whatever it was stored as."""
    config = copy.deepcopy(LATENTS["deepseek v2 lite"])
    config.first_k_dense_replace = config.num_hidden_layers  # a choice of experts may change
    write_quantised(random_model(config), tmp_path, CASES["fp8 by tensor"])
    check(tmp_path, 4, 2e-1)


def test_weights_that_stay_quantised_are_not_exchanged(tmp_path: Path) -> None:
    """And nothing of what is given with them is written."""
    from quire.backends.triton.grouped import Scratch
    from quire.backends.triton.quantised import DeviceMatrix

    write_quantised(tiny_model("llama", num_hidden_layers=1), tmp_path, CASES["awq"])
    files = locate(str(tmp_path))
    spec = files.spec()
    products = Products(fp8=True, experts=False)
    kept = load_kept_weights(files, spec, dtype=torch.float32, device=CPU, products=products)
    scratch = Scratch(CPU, torch.float32)
    weights: dict[str, Tensor | PackedMatrix] = {
        name: one if isinstance(one, Tensor) else DeviceMatrix(one, scratch)
        for name, one in kept.items()
    }
    model, width = built(spec, weights), spec.hidden_size
    norm, name = torch.full((width,), 7.0), "model.layers.0.self_attn.o_proj.weight"
    with pytest.raises(NotSupported, match="o_proj.weight: weights that are kept quantised"):
        NewWeights(model, spec).load(
            [("model.norm.weight", norm), (name, torch.ones(width, width))]
        )
    tokens = [3, 90, 17]
    with torch.inference_mode():
        before = hidden_states(model, spec, tokens)
        NewWeights(model, spec).load([("model.norm.weight", norm)])
        assert not torch.equal(hidden_states(model, spec, tokens), before)
