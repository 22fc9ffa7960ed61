"""Groups of layers with windows through the CUDA runner: tables, slots, prompts and steps."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

import tests.backends.triton.conftest  # noqa: F401 - makes the interpreter work, before any kernel
from quire.cache.groups import blocks_held
from quire.config import EngineConfig
from quire.executor.cpu.local import LocalExecutor
from quire.executor.executor import Executor
from quire.executor.memory import block_bytes, groups_of, windows_of
from quire.layers.kv_groups import BlockTables
from quire.request import Request
from quire.spec import ModelSpec
from tests.executor.cuda.plain import PlainExecutor, answers
from tests.executor.cuda.test_interpreted import InterpretedExecutor
from tests.executor.cuda.test_runner import PLAIN, SPEC, SPECIAL, WEIGHTS, requests
from tests.executor.cuda.windowed import HEADED, HEADED_WEIGHTS, MANY, MANY_WEIGHTS
from tests.specs import small_config

# In the interpreter numpy does the arithmetic, and says so where a GPU goes on with infinity.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

WINDOWED = SPEC.with_windows(None, 12)


def outputs(
    executor: Executor, config: EngineConfig, asked: list[Request], *, poisoned: bool = False
) -> list[list[int]]:
    made = answers(executor, config, asked, poisoned=poisoned)
    return [one.output_ids.tolist() for one in made]


MODELS: dict[str, tuple[ModelSpec, dict[str, Tensor]]] = {
    "windows": (WINDOWED, WEIGHTS),
    "windows and heads": (HEADED, HEADED_WEIGHTS),
}


@cache
def wanted(name: str) -> list[list[int]]:
    """What the plain runner gives, in whatever room."""
    plain, (spec, weights) = small_config(max_num_batched_tokens=48, num_blocks=600), MODELS[name]
    return outputs(LocalExecutor(plain, spec, dict(weights)), plain, requests(PLAIN + SPECIAL))


@pytest.mark.parametrize(
    ("max_repeat", "extra", "rounded"),
    [
        (1, 60, False),
        (8, 0, True),
        pytest.param(1, 60, True, marks=pytest.mark.long),
        pytest.param(8, 0, False, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("name", MODELS)
def test_windows_change_no_token_of_the_cuda_runner(
    name: str, max_repeat: int, extra: int, rounded: bool
) -> None:
    """Its cache is full of NaN, so that whatever is read before it is written shows."""
    config = small_config(depth=2, max_repeat=max_repeat, max_num_batched_tokens=48)
    spec, weights = MODELS[name]
    windows = windows_of(groups_of(config, spec))
    assert windows[:2] == (None, 12)
    config = replace(config, num_blocks=blocks_held(windows, config.block_size, 100) + extra)
    asked = requests(PLAIN + SPECIAL)
    for poisoned in (False, True):
        executor = PlainExecutor(config, spec, weights, rounded=rounded)
        assert outputs(executor, config, asked, poisoned=poisoned) == wanted(name)


def test_heads_of_layers_with_little_kv_share_the_places_of_blocks() -> None:
    """So that a block of the pool has as many places as the layers need, and none is half empty."""
    config = small_config()
    full, *others = groups_of(config, HEADED)
    assert (full.layers, full.parts, full.num_places) == ((1, 4), 2, 1)
    assert {group.parts for group in others} == {1}
    assert BlockTables.of([full, *others]).windows == (None, None, 12, 12, 30)
    size = block_bytes(HEADED, 4, torch.float32, [full, *others])
    assert size == 2 * 32 * 4 * 4  # keys and values of 32 numbers, of 4 tokens


@pytest.mark.interpreted
@pytest.mark.parametrize("kind", ["eager", "small batch", "heads"])
def test_the_kernels_read_the_tables_of_each_group(kind: str) -> None:
    spec, weights = replace(MANY, layers=MANY.layers[:3]), dict(MANY_WEIGHTS)
    if kind == "heads":
        order = (0, 1, 4, 2)  # two layers without a window, which share a place
        spec, weights = replace(HEADED, layers=tuple(HEADED.layers[i] for i in order)), {}
        for name, weight in HEADED_WEIGHTS.items():
            layer, *rest = name.removeprefix("layers.").split(".")
            if not name.startswith("layers."):
                weights[name] = weight
            elif int(layer) in order:
                weights[".".join(("layers", str(order.index(int(layer))), *rest))] = weight
    config = small_config(depth=2, max_repeat=2, num_blocks=60, block_size=16)
    config = replace(config, max_num_batched_tokens=48)
    assert set(windows_of(groups_of(config, spec))) == {None, 12, 30}
    asked = [replace(r, max_tokens=2) for r in requests(PLAIN, count=2, seed=11)]
    assert max(r.num_prompt for r in asked) > 30
    plain = replace(config, depth=1, max_repeat=1)
    expected = outputs(LocalExecutor(plain, spec, dict(weights)), plain, asked)
    executor = InterpretedExecutor(config, spec, weights)
    if kind == "small batch":
        from quire.executor.cuda.small_batch import SmallBatchPass

        decoding, model = executor.runner._decoding, executor.runner.model
        few_rows = SmallBatchPass.of(model, spec, torch.float32)
        assert few_rows is not None
        decoding._parts = replace(decoding._parts, few_rows=few_rows)
    assert outputs(executor, config, asked, poisoned=True) == expected
