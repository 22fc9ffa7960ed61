"""LoRA adapters under the CUDA runner, in Triton's interpreter: the tokens of the plain runner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import tests.backends.triton.conftest  # noqa: F401 - makes the interpreter work, before any kernel
from quire.adapters.read import AdapterWeights
from quire.adapters.sites import sites_of
from quire.backends.adapter_ops import Added
from quire.backends.triton import adapters as on_device
from quire.config import AdapterOptions, EngineConfig
from quire.executor.cpu.local import LocalExecutor
from quire.request import Adapter, Request
from tests.executor.cuda.plain import answers
from tests.executor.cuda.test_interpreted import InterpretedExecutor
from tests.executor.cuda.test_runner import PLAIN, SPEC, WEIGHTS, requests
from tests.specs import small_config

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
ADAPTERS = AdapterOptions(max_loras=2, max_lora_rank=4, max_cpu_loras=8)


def weights(number: int) -> AdapterWeights:
    """Adapter 1 changes everything, 2 the products of layers, 3 and on q and v."""
    made = torch.Generator().manual_seed(number)
    added: dict[str, tuple[Added, ...]] = {}

    def some(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=made) / 2

    for name, site in sites_of(SPEC).sites.items():
        outer = name in ("embed", "head")
        if (outer and number != 1) or (number > 2 and not name.endswith("attn.qkv")):
            continue
        if name == "embed":
            added[name] = (Added(0, 0, some(3, site.rows[0]), some(site.columns, 3)),)
            continue
        parts = []
        for part, rows in enumerate(site.rows):
            if number > 2 and part == 1:
                continue
            factor = torch.rand(rows, generator=made) + 0.5 if number == 2 else None
            first = sum(site.rows[:part])
            parts.append(Added(part, first, some(4, site.columns), some(rows, 4), factor))
        added[name] = tuple(parts)
    return AdapterWeights(added)


def asked() -> list[Request]:
    """Few and short: the interpreter runs some hundred programs a second."""
    found = []
    for number, request in zip((1, 0, 2, 3), requests(PLAIN[:3], count=4), strict=True):
        short = replace(request, prompt_ids=request.prompt_ids[:5], max_tokens=2)
        by = Adapter(number, f"adapter {number}", "digest") if number else None
        found.append(short.adapted_by(by))
    return found


def run(executor: Any, config: EngineConfig, wanted: list[Request]) -> list[list[int]]:
    executor.handles.adapter = weights
    found = answers(executor, config, wanted, max_adapters=ADAPTERS.max_loras)
    return [sequence.output_ids.tolist() for sequence in found]


@pytest.mark.interpreted
@pytest.mark.parametrize("rounded", [False, pytest.param(True, marks=pytest.mark.long)])
def test_the_device_adds_what_the_host_adds(rounded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_device, "MOST_BEHIND", 1.0)  # A of all but qkv is behind the weight
    config = small_config(depth=2, max_repeat=4, num_blocks=128, adapters=ADAPTERS)
    plain = replace(config, depth=1, max_repeat=1, num_blocks=256)
    expected = run(LocalExecutor(plain, SPEC, dict(WEIGHTS)), plain, asked())
    without = [replace(one, adapter=None) for one in asked()]
    assert expected != run(LocalExecutor(plain, SPEC, dict(WEIGHTS)), plain, without)
    executor = InterpretedExecutor(config, SPEC, WEIGHTS, rounded=rounded)
    assert run(executor, config, asked()) == expected
