"""An executor on a GPU that sleeps, and one that gets other weights: plain functions again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from quire.config import EngineConfig
from quire.executor.cuda.executor import CudaExecutor
from quire.executor.executor import ExecutorFacts
from quire.weights.load import dummy_weights
from quire.weights.names import weights_of
from tests.executor.cuda.plain import answers
from tests.executor.cuda.test_gpu import gpu_config, outputs
from tests.executor.cuda.test_runner import PLAIN, SPEC, WEIGHTS, requests

pytestmark = pytest.mark.gpu

OTHERS = {
    name: w * 10 if w.dim() == 2 else w * 1.5
    for name, w in dummy_weights(SPEC, dtype=torch.float32, device="cpu", seed=7).items()
}
MODES: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
}


def hf_named(weights: dict[str, Tensor]) -> list[tuple[str, Tensor]]:
    """Under the names, and in the pieces, of a checkpoint."""
    named = []
    for weight in weights_of(SPEC):
        parts = weights[weight.name].split([part.rows for part in weight.parts])
        named += [(part.hf, piece) for part, piece in zip(weight.parts, parts, strict=True)]
    return named


def held(weights: dict[str, Tensor], config: EngineConfig) -> Any:
    """On the GPU as the config wants them."""
    dtype = getattr(torch, config.dtype)
    return {name: w.to("cuda", dtype) for name, w in weights.items()}


@dataclass
class Started:
    """An executor that was started, for one engine after the other."""

    inner: CudaExecutor
    facts: ExecutorFacts

    def start(self) -> ExecutorFacts:
        return self.facts

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def started(weights: dict[str, Tensor], config: EngineConfig) -> Started:
    executor = CudaExecutor(
        config, SPEC, held(weights, config), read_again=lambda: held(weights, config)
    )
    return Started(executor, executor.start())


def run(executor: Any, config: EngineConfig) -> list[list[int]]:
    """Many rows, and few: these have passes of their own."""
    many = outputs(answers(executor, config, requests(PLAIN, count=24)))
    return many + outputs(answers(executor, config, requests(PLAIN[:1], count=2)))


@pytest.mark.parametrize("mode", list(MODES))
def test_other_weights_are_read_by_what_was_captured(mode: str) -> None:
    config = gpu_config(**MODES[mode])
    old, fresh = started(WEIGHTS, config), started(OTHERS, config)
    try:
        before, expected = run(old, config), run(fresh, config)
        captured = dict(old.inner._runner.graphs._graphs)  # type: ignore[union-attr]
        old.load_weights(hf_named(OTHERS))
        assert run(old, config) == expected != before
        kept = old.inner._runner.graphs._graphs  # type: ignore[union-attr]
        assert captured and all(kept[key] is graph for key, graph in captured.items())
    finally:
        old.close()
        fresh.close()


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("keep_weights", [True, False])
def test_a_sleep_frees_the_gpu_and_changes_no_token(mode: str, keep_weights: bool) -> None:
    config = gpu_config(**MODES[mode], num_blocks=4096)
    executor = started(WEIGHTS, config)
    try:
        expected = run(executor, config)
        cache = executor.inner._runner.cache.nbytes  # type: ignore[union-attr]
        matrices = sum(w.numel() for w in WEIGHTS.values() if w.dim() == 2)
        awake = torch.cuda.memory_allocated()
        executor.sleep(keep_weights=keep_weights)
        executor.sleep(keep_weights=keep_weights)
        asleep = torch.cuda.memory_allocated()
        assert awake - asleep >= cache + matrices
        executor.wake_up("weights")
        assert torch.cuda.memory_allocated() - asleep < cache
        executor.wake_up("kv_cache")
        assert run(executor, config) == expected
        executor.load_weights(hf_named(OTHERS))
        assert run(executor, config) != expected
    finally:
        executor.close()
