"""The workloads are the same for everyone, for ever: figures are compared over years."""

from __future__ import annotations

import hashlib
import json

import pytest

from benchmarks import workloads

FROZEN = {
    "mixed": "6a428576692b7cc9",
    "prefill": "193840ab8c24125a",
    "decode": "559558392240605c",
    "fewshot": "9778060b737d2a57",
    "subjects": "fd1b2e57ccde0eed",
    "samples": "44d9137321f7de66",
    "tail": "e0b1381d76fa0363",
    "nucleus": "65fa7d207a9b132f",
    "small_mixed": "0d2ca717168ee326",
    "small_fewshot": "933d12fdbbccf798",
}


@pytest.mark.parametrize("name", FROZEN)
def test_a_workload_never_changes(name: str) -> None:
    items = [[i.prompt, i.max_tokens, i.n, i.sampling] for i in workloads.build(name)]
    assert hashlib.sha256(json.dumps(items).encode()).hexdigest()[:16] == FROZEN[name]


def test_every_workload_is_frozen() -> None:
    assert set(FROZEN) == set(workloads.WORKLOADS)


def test_a_scaled_workload_is_its_beginning() -> None:
    whole, part = workloads.build("small_mixed"), workloads.build("small_mixed", 0.25)
    assert part == whole[:16]
    assert workloads.build("small_mixed", 1e-9) == whole[:1]


def test_totals_count_every_sample() -> None:
    items = [workloads.Item([1, 2, 3], 5, n=2), workloads.Item([4], 7)]
    assert workloads.totals(items) == (4, 17)
