"""LoRA adapters under the CUDA runner, in Triton's interpreter: the tokens of the plain runner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

import tests.backends.triton.conftest  # noqa: F401 - makes the interpreter work, before any kernel
from quire.adapters.read import AdapterWeights
from quire.adapters.sites import sites_of
from quire.backends.adapter_ops import Added, OwnNumbers
from quire.backends.triton import adapters as on_device
from quire.config import AdapterOptions, EngineConfig
from quire.executor.cpu.local import LocalExecutor
from quire.layer_parts.state import StatePlan
from quire.request import Adapter, Request
from quire.spec import ModelSpec
from quire.weights.load import dummy_weights
from tests.executor.cuda.mixture import MIXTURE, mixture_weights
from tests.executor.cuda.plain import answers
from tests.executor.cuda.test_interpreted import STATES, InterpretedExecutor
from tests.executor.cuda.test_runner import PLAIN, SPEC, WEIGHTS, requests
from tests.specs import small_config

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
ADAPTERS = AdapterOptions(max_loras=2, max_lora_rank=4, max_cpu_loras=8)


def weights(number: int, spec: ModelSpec = SPEC) -> AdapterWeights:
    """Adapter 1 changes everything, 2 the products of layers, 3 and on q and v."""
    made = torch.Generator().manual_seed(number)
    added: dict[str, tuple[Added, ...]] = {}

    def some(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=made) / 2

    for name, site in sites_of(spec).sites.items():
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


def with_own_numbers(number: int) -> AdapterWeights:
    """Of a mixture; 1 has an embedding, a head, norms and offsets of its own as well, 2 rows of
    three tokens, 3 the same of others."""
    found, sites = weights(number, MIXTURE), sites_of(MIXTURE)
    made = torch.Generator().manual_seed(10 + number)

    def some(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=made)

    def rows_of(site: str, rows: torch.Tensor) -> OwnNumbers:
        return OwnNumbers(rows, some(len(rows), sites.sites[site].columns))

    if number > 1:
        tokens = torch.tensor([3, 11, 2]) + number
        return replace(found, own={site: rows_of(site, tokens) for site in ("embed", "head")})
    vocabulary = torch.arange(MIXTURE.vocab_size)
    own = {site: rows_of(site, vocabulary) for site in ("embed", "head")}
    own |= {one.site: OwnNumbers(None, some(one.rows) + 1) for one in sites.norms.values()}
    own["layers.0.attn.qkv"] = OwnNumbers(offset=some(sites.rows_of("layers.0.attn.qkv")))
    own["layers.1.attn.o"] = rows_of("layers.1.attn.o", torch.tensor([1, 5]))
    return replace(found, own=own)


def asked() -> list[Request]:
    """Few and short: the interpreter runs some hundred programs a second."""
    found = []
    for number, request in zip((1, 0, 2, 3), requests(PLAIN[:3], count=4), strict=True):
        short = replace(request, prompt_ids=request.prompt_ids[:5], max_tokens=2)
        by = Adapter(number, f"adapter {number}", "digest") if number else None
        found.append(short.adapted_by(by))
    return found


def run(
    executor: Any,
    config: EngineConfig,
    wanted: list[Request],
    find: Callable[[int], AdapterWeights] = weights,
) -> list[list[int]]:
    executor.handles.adapter = find
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


@pytest.mark.interpreted
@pytest.mark.parametrize("rounded", [False, pytest.param(True, marks=pytest.mark.long)])
def test_the_device_has_numbers_of_adapters_and_their_experts_as_the_host(rounded: bool) -> None:
    config = small_config(depth=2, max_repeat=4, num_blocks=128, adapters=ADAPTERS)
    plain = replace(config, depth=1, max_repeat=1, num_blocks=256)

    def on_host(find: Callable[[int], AdapterWeights]) -> list[list[int]]:
        return run(LocalExecutor(plain, MIXTURE, mixture_weights()), plain, asked(), find)

    expected = on_host(with_own_numbers)
    low_rank = on_host(partial(weights, spec=MIXTURE))
    assert [a == b for a, b in zip(expected, low_rank, strict=True)].count(False) >= 2
    executor = InterpretedExecutor(config, MIXTURE, mixture_weights(), rounded=rounded)
    assert run(executor, config, asked(), with_own_numbers) == expected


@pytest.mark.interpreted
@pytest.mark.parametrize("state", STATES, ids=lambda state: type(state).__name__)
def test_products_around_states_have_adapters_on_the_device(state: StatePlan) -> None:
    first, second = SPEC.layers
    spec = replace(SPEC, layers=(replace(first, state=state), second))
    made = dummy_weights(spec, dtype=torch.float32, device="cpu")
    base = {name: w * 10 if w.dim() == 2 else w for name, w in made.items()}
    config = small_config(depth=2, max_repeat=4, num_blocks=128, block_size=16, adapters=ADAPTERS)
    plain = replace(config, depth=1, max_repeat=1, num_blocks=256)

    def of_states(number: int) -> AdapterWeights:
        """Only around states, so that nothing else makes a difference."""
        found = weights(2 if number == 2 else 1, spec).added.items()
        return AdapterWeights({site: one for site, one in found if "layers.0.attn" in site})

    expected = run(LocalExecutor(plain, spec, dict(base)), plain, asked(), of_states)
    without = [replace(one, adapter=None) for one in asked()]
    bare = run(LocalExecutor(plain, spec, dict(base)), plain, without, of_states)
    assert [a == b for a, b in zip(expected, bare, strict=True)].count(False) >= 2
    executor = InterpretedExecutor(config, spec, dict(base))
    assert run(executor, config, asked(), of_states) == expected
