"""Groups of layers with windows through the CUDA runner: tables, slots, prompts and steps."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

import tests.backends.triton.conftest  # noqa: F401 - makes the interpreter work, before any kernel
from quire.cache.groups import blocks_held
from quire.config import EngineConfig
from quire.executor.cpu.local import LocalExecutor
from quire.executor.executor import Executor
from quire.executor.memory import groups_of, windows_of
from quire.request import Request
from tests.executor.cuda.plain import PlainExecutor, answers
from tests.executor.cuda.test_interpreted import InterpretedExecutor
from tests.executor.cuda.test_runner import PLAIN, SPEC, SPECIAL, WEIGHTS, requests
from tests.executor.cuda.windowed import MANY, MANY_WEIGHTS
from tests.specs import small_config

# In the interpreter numpy does the arithmetic, and says so where a GPU goes on with infinity.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

WINDOWED = SPEC.with_windows(None, 12)


def outputs(
    executor: Executor, config: EngineConfig, asked: list[Request], *, poisoned: bool = False
) -> list[list[int]]:
    made = answers(executor, config, asked, poisoned=poisoned)
    return [one.output_ids.tolist() for one in made]


@cache
def wanted() -> list[list[int]]:
    """What the plain runner gives, in whatever room."""
    plain = small_config(max_num_batched_tokens=48, num_blocks=600)
    return outputs(LocalExecutor(plain, WINDOWED, dict(WEIGHTS)), plain, requests(PLAIN + SPECIAL))


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize(("max_repeat", "extra"), [(1, 60), (8, 0)])
def test_windows_change_no_token_of_the_cuda_runner(
    max_repeat: int, extra: int, rounded: bool
) -> None:
    """Its cache is full of NaN, so that whatever is read before it is written shows."""
    config = small_config(depth=2, max_repeat=max_repeat, max_num_batched_tokens=48)
    windows = windows_of(groups_of(config, WINDOWED))
    assert windows == (None, 12)
    config = replace(config, num_blocks=blocks_held(windows, config.block_size, 100) + extra)
    asked = requests(PLAIN + SPECIAL)
    for poisoned in (False, True):
        executor = PlainExecutor(config, WINDOWED, WEIGHTS, rounded=rounded)
        assert outputs(executor, config, asked, poisoned=poisoned) == wanted()


@pytest.mark.interpreted
@pytest.mark.parametrize("small_batch", [False, True])
def test_the_kernels_read_the_tables_of_each_group(small_batch: bool) -> None:
    spec, weights = replace(MANY, layers=MANY.layers[:3]), dict(MANY_WEIGHTS)
    config = small_config(depth=2, max_repeat=2, num_blocks=60, block_size=16)
    config = replace(config, max_num_batched_tokens=48)
    assert windows_of(groups_of(config, spec)) == (None, 12, 30)
    asked = [replace(r, max_tokens=2) for r in requests(PLAIN, count=2, seed=11)]
    assert max(r.num_prompt for r in asked) > 30
    plain = replace(config, depth=1, max_repeat=1)
    expected = outputs(LocalExecutor(plain, spec, dict(weights)), plain, asked)
    executor = InterpretedExecutor(config, spec, weights)
    if small_batch:
        from quire.executor.cuda.small_batch import SmallBatchPass

        decoding, model = executor.runner._decoding, executor.runner.model
        few_rows = SmallBatchPass.of(model, spec, torch.float32)
        assert few_rows is not None
        decoding._parts = replace(decoding._parts, few_rows=few_rows)
    assert outputs(executor, config, asked, poisoned=True) == expected
