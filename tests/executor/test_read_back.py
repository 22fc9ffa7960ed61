"""Weights that were exchanged are read back from the model, however it keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from quire import LLM
from tests.parity.families import FAMILIES, make_pair
from tests.parity.families_with_states import WITH_STATES
from tests.parity.more_families import LATENTS, MORE, random_model
from tests.parity.older_families import OLDER
from tests.test_new_weights import loader, open_llm, without_native_kernels


@pytest.mark.parametrize(
    "name",
    [
        *("glm", "gemma3", "gpt2", "gpt neox", "dbrx", "granite moe, every factor and bias"),
        *("deepseek v2 lite", "qwen3_next", "mamba2"),
    ],
)
def test_what_was_written_is_read_back_as_files_have_it(name: str, tmp_path: Path) -> None:
    """Whatever the order, the layout and the packing of a weight. What was not written is not."""
    every = {**FAMILIES, **MORE, **OLDER, **LATENTS, **WITH_STATES}
    random_model(every[name]).save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    new = {name: torch.randn(tensor.shape) for name, tensor in stored.items()}
    names = sorted(new)
    with open_llm(tmp_path, batch_invariant=name == "glm") as llm:
        loader(llm)([(one, new[one]) for one in names[::2]])
        assert dict(written(llm, names)).keys() >= {*names[::2]}
        loader(llm)(new)
        for one, tensor in written(llm, [*names, "another"]):
            assert torch.allclose(tensor, new.pop(one), atol=1e-6), one
    assert not new


def written(llm: LLM, names: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
    exchange = llm._session.model.executor.handles.exchange
    assert exchange is not None
    return iter(exchange.written(names))


@pytest.mark.parametrize("kernels", ["native", "torch"])
@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"quantization": "int8"}], ids=str)
@pytest.mark.filterwarnings("ignore:.*bf16.*")
def test_what_is_read_back_is_rounded_as_the_model_has_it(
    options: dict[str, Any], kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernels == "torch":
        without_native_kernels(monkeypatch)
    make_pair("llama").oracle.save_pretrained(tmp_path)
    name = "model.layers.1.mlp.up_proj.weight"
    given = torch.randn(load_file(tmp_path / "model.safetensors")[name].shape)
    with open_llm(tmp_path, **{"dtype": None, **options}) as llm:
        loader(llm)([(name, given)])
        [(_, found)] = written(llm, [name, "model.layers.1.mlp.gate_proj.weight"])
    assert torch.allclose(found, given, rtol=0.004, atol=0.02 if "quantization" in options else 0)
    if "dtype" in options:
        assert torch.equal(found, given.bfloat16().float())
