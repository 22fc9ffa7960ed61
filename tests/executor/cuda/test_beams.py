"""Searches through the CUDA runner, over plain torch on a CPU: same beams as the plain runner's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from quire.cache.pool import BlockPool
from quire.engine import Engine
from quire.executor.cpu.local import LocalExecutor
from quire.executor.executor import Executor
from quire.sampling_params import BeamSearchParams
from quire.scheduler.beams import search_lead
from quire.scheduler.limits import Limits
from quire.scheduler.scheduler import Scheduler
from quire.scheduler.sequence import Sequence
from tests.executor.cuda.plain import PlainExecutor
from tests.executor.cuda.test_runner import PLAIN, SPEC, WEIGHTS, requests
from tests.executor.harness import told
from tests.specs import small_config

WIDTHS = (2, 4, 3)


def run(executor: Executor, depth: int, block_size: int = 4, num_rows: int = 16) -> list[Sequence]:
    """Searches and samples, by turns, after an engine ran them."""
    facts = executor.start()
    pool = BlockPool(facts.num_blocks, block_size=block_size)
    limits = Limits(num_rows, 48, max_repeat=4)
    engine = Engine(Scheduler(pool, limits), executor, depth=depth)
    found = []
    for order, request in enumerate(requests(PLAIN, count=12)):
        if order % 2:
            samples = [Sequence(request, i, order) for i in range(request.params.n)]
        else:
            params = BeamSearchParams(WIDTHS[order % 3], request.max_tokens)
            samples = [search_lead(replace(request, search=params), params, order)]
        engine.add(samples)
        found += samples
    while not engine.idle:
        engine.step()
    assert pool.num_free == pool.num_blocks
    return found


def check_equal(found: list[Sequence], expected: list[Sequence], *, atol: float) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.output_ids.tolist() == theirs.output_ids.tolist()
        assert (ours.group is None) == (theirs.group is None)
        if ours.group is None or theirs.group is None:
            continue
        assert len(ours.group.answers) == ours.group.width
        for a, b in zip(ours.group.answers, theirs.group.answers, strict=True):
            assert a.output_ids.tolist() == b.output_ids.tolist()
            assert a.finish_reason == b.finish_reason
            assert np.allclose(told(a.logprobs)[1], told(b.logprobs)[1], atol=atol)


def test_the_cuda_runner_finds_the_same_beams() -> None:
    """Also where beams take turns, so that a row goes back to a position it had."""
    config = small_config(max_repeat=4, num_blocks=400)
    local = run(LocalExecutor(config, SPEC, dict(WEIGHTS)), depth=1)
    for depth, num_rows in ((1, 16), (2, 16), (1, 1), (2, 3)):
        plain = run(PlainExecutor(config, SPEC, WEIGHTS), depth, num_rows=num_rows)
        check_equal(plain, local, atol=1e-4)


@pytest.mark.gpu
def test_a_gpu_finds_the_same_beams() -> None:
    from quire.executor.cuda.executor import CudaExecutor

    fields = {"device": "cuda", "block_size": 16, "num_blocks": 400, "max_repeat": 4}
    config = small_config(**fields)
    weights = {name: weight.cuda() for name, weight in WEIGHTS.items()}
    executor = CudaExecutor(config, SPEC, weights)
    try:
        found = run(executor, depth=2, block_size=16)
    finally:
        executor.close()
    plain = replace(config, device="cpu")
    expected = run(LocalExecutor(plain, SPEC, dict(WEIGHTS)), depth=1, block_size=16)
    check_equal(found, expected, atol=1e-3)
