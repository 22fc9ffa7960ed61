"""Where replicas run: shares of GPUs and cores, in every form that they are named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quire.base.launchers import without_launchers
from quire.errors import InvalidOption
from quire.replicas.places import Place, number_of_gpus, places, visible_gpus

ROOT = Path(__file__).resolve().parents[2]


def masks(found: tuple[Place, ...]) -> list[str]:
    return [place.environment["CUDA_VISIBLE_DEVICES"] for place in found]


def made(
    replicas: int | None, gpus: str | None, visible: str | None, count: int = 4, ranks: int = 1
) -> tuple[Place, ...]:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    options = {"tensor_parallel_size": ranks}
    return places(replicas, gpus, options, environment=environment, count_gpus=lambda: count)


@pytest.mark.parametrize(
    ("visible", "count", "found"),
    [
        (None, 2, ("0", "1")),
        ("3,1", 2, ("3", "1")),
        ("", 0, ()),
        ("-1", 0, ()),
        ("0,-1,2", 1, ("0",)),
        ("GPU-aa,GPU-bb", 2, ("GPU-aa", "GPU-bb")),
        ("MIG-aa,MIG-bb", 1, ("MIG-aa", "MIG-bb")),
        ("0,1,9", 2, ("0", "1")),
    ],
)
def test_the_gpus_that_may_be_used(visible: str | None, count: int, found: tuple[str, ...]) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert visible_gpus(environment, count) == found


def test_each_replica_gets_its_share() -> None:
    assert masks(made(None, "all", "GPU-a,GPU-b", 2)) == ["GPU-a", "GPU-b"]
    assert masks(made(None, "0,2", "4,5,6", 3)) == ["4", "6"]
    assert masks(made(2, None, None)) == ["0", "1"]
    assert masks(made(2, "all", None, ranks=2)) == ["0,1", "2,3"]
    assert masks(made(None, "all", None, ranks=2)) == ["0,1", "2,3"]


@pytest.mark.parametrize(
    ("replicas", "gpus", "count", "ranks", "words"),
    [
        (5, None, 4, 1, "5 x 1 GPUs are 5, and there are 4"),
        (2, None, 2, 2, "2 x 2 GPUs are 4, and there are 2"),
        (None, "0,7", 4, 1, "4 GPUs may be used here .*0 to 3"),
        (None, "1,1", 4, 1, "names a GPU twice"),
        (None, "a", 4, 1, "all, or numbers"),
        (None, "all", 0, 1, "no GPU here"),
        (1, "0,1,2", 4, 1, "names 3 GPUs, and 1 replicas of 1 use 1"),
        (None, "all", 1, 2, "1 x 2 GPUs are 2, and there are 1"),
        (1000, None, 0, 1, "the most on one machine"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(
    replicas: int | None, gpus: str | None, count: int, ranks: int, words: str
) -> None:
    with pytest.raises(InvalidOption, match=words):
        made(replicas, gpus, None, count, ranks)


def test_replicas_without_gpus_share_cores_and_memory() -> None:
    found = places(2, None, {"device": "cpu"}, environment={}, count_gpus=lambda: 8)
    assert len(found) == 2 and int(found[0].environment["OMP_NUM_THREADS"]) >= 1
    assert 0 < found[0].options["kv_cache_memory_bytes"] <= 2 << 30
    [kept] = {p.environment["OMP_NUM_THREADS"] for p in places(2, None, {"device": "cpu"},
        environment={"OMP_NUM_THREADS": "3"})}  # fmt: skip
    assert kept == "3"
    sized = places(2, None, {"device": "cpu", "kv_cache_memory_bytes": 5}, environment={})
    assert sized[0].options == {}


def test_what_launchers_leave_is_not_for_engines() -> None:
    left = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "VLLM_X"]
    assert without_launchers({**dict.fromkeys(left, "1"), "PATH": "/bin"}) == {"PATH": "/bin"}
    assert set(made(None, None, None)[0].environment) == set()


def test_counting_gpus_opens_none_in_this_process() -> None:
    before = set(os.listdir("/proc/self/fd"))
    assert number_of_gpus() >= 0
    assert set(os.listdir("/proc/self/fd")) == before


def test_what_a_python_prints_when_it_starts_hides_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import ctypes, sys\n"
        "class Driver:\n"
        "    def __init__(self, name): pass\n"
        "    def cuInit(self, flags): return 0\n"
        "    def cuDeviceGetCount(self, count): count._obj.value = 3\n"
        "ctypes.CDLL = Driver\n"
        "sys.stdout.write('ready\\nby 1')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert number_of_gpus() == 3


def test_the_feeder_s_room_needs_no_torch() -> None:
    code = (
        "import quire.replicas.replica_set, quire.replicas.places, sys;"
        "assert 'torch' not in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
