"""Groups of layers with windows on a real GPU: graphs, captured prompts, shared prefixes.

Plain functions: benchmarks/gpu.py runs them without pytest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quire.executor.cpu.local import LocalExecutor
from quire.request import Request
from tests.executor.cuda.plain import answers
from tests.executor.cuda.test_gpu import gpu_config, on_gpu, outputs, shared_requests
from tests.executor.cuda.test_runner import PLAIN, SPECIAL, requests
from tests.executor.cuda.windowed import MANY, MANY_WEIGHTS

pytestmark = pytest.mark.gpu


def long_requests(kinds: list[dict[str, object]]) -> list[Request]:
    """Prompts and answers of several windows."""
    return [replace(r, max_tokens=r.max_tokens + 40) for r in requests(kinds, count=16)]


def on_cpu(asked: list[Request]) -> list[list[int]]:
    config = gpu_config(device="cpu", depth=1, max_repeat=1, num_blocks=1024)
    return outputs(answers(LocalExecutor(config, MANY, dict(MANY_WEIGHTS)), config, asked))


@pytest.mark.parametrize("num_blocks", [512, 60])
def test_windows_give_the_tokens_of_the_cpu_engine(num_blocks: int) -> None:
    """With few blocks they change hands all the time, and sequences are preempted."""
    asked = long_requests(PLAIN + SPECIAL)
    wanted = on_cpu(asked)
    for eager, poisoned in ((False, False), (True, False), (False, True)):
        config = gpu_config(num_blocks=num_blocks, enforce_eager=eager)
        found = on_gpu(asked, config, MANY, MANY_WEIGHTS, poisoned=poisoned)
        assert outputs(found) == wanted


def test_windows_beside_shared_prefixes_change_no_token() -> None:
    """Layers that see everything read them once for all; those with a window each for itself."""
    kinds: list[dict[str, Any]] = [{"temperature": 0.0}, {"temperature": 1.0, "n": 3}]
    for params in kinds:
        asked = shared_requests(6, **params)
        config = gpu_config(max_num_batched_tokens=512, num_blocks=1024)
        grouped = on_gpu(asked, config, MANY, MANY_WEIGHTS, prefix_groups=True)
        alone = on_gpu(asked, config, MANY, MANY_WEIGHTS, prefix_groups=False)
        assert outputs(grouped) == outputs(alone) == on_cpu(asked)
