"""What is found out about a machine, and that it is measured only once."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import pytest
import torch

from quire.base import cores
from quire.executor import probe


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QUIRE_HOME", str(tmp_path / "quire"))
    return tmp_path / "quire"


def timed(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> list[torch.dtype]:
    """Pretend each format takes so long, and record what is measured."""
    measured: list[torch.dtype] = []

    def fake(dtype: torch.dtype, size: tuple[int, int, int]) -> float:
        measured.append(dtype)
        return seconds[str(dtype).removeprefix("torch.")]

    monkeypatch.setattr(probe, "_seconds", fake)
    return measured


def test_the_facts_are_plausible() -> None:
    facts = probe.device_facts()
    assert facts.device == "cpu"
    assert 0 < facts.memory_free <= facts.memory_total
    assert 1 <= facts.num_cores <= (os.cpu_count() or 1)
    assert set(facts.fast_dtypes) <= {"bfloat16", "float16"}


def test_a_format_is_fast_if_it_beats_float32_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, float32=1.0, bfloat16=0.5, float16=0.4)
    assert probe.fast_dtypes() == ("float16", "bfloat16")


def test_a_format_that_gains_little_is_not_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, float32=1.0, bfloat16=0.9, float16=1.1)
    assert probe.fast_dtypes() == ()


def test_an_emulated_format_is_not_measured_at_length(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = timed(monkeypatch, float32=1.0, bfloat16=300.0, float16=0.5)
    assert probe.fast_dtypes() == ("float16",)
    assert measured.count(torch.bfloat16) == 1


def test_of_a_format_that_is_not_there_torch_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(dtype: torch.dtype, size: tuple[int, int, int]) -> float:
        if dtype == torch.bfloat16:
            warnings.warn("mkldnn_matmul failed, switching to BLAS gemm:...", stacklevel=1)
        return 1.0

    monkeypatch.setattr(probe, "_seconds", fake)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert probe.fast_dtypes() == ()
    assert said == []


def test_it_is_measured_once_and_kept_for_the_owner_alone(
    monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    measured = timed(monkeypatch, float32=1.0, bfloat16=0.5, float16=2.0)
    first = probe.fast_dtypes()
    count = len(measured)
    assert probe.fast_dtypes() == first == ("bfloat16",)
    assert len(measured) == count
    assert (home / "probe.json").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in home.iterdir()] == ["probe.json"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"KEY": "x"}', '{"KEY": ["int3"]}'])
def test_a_damaged_file_is_measured_over(
    monkeypatch: pytest.MonkeyPatch, home: Path, text: str
) -> None:
    timed(monkeypatch, float32=1.0, bfloat16=0.5, float16=2.0)
    home.mkdir()
    (home / "probe.json").write_text(text.replace("KEY", probe.machine_key()))
    assert probe.fast_dtypes() == ("bfloat16",)
    assert json.loads((home / "probe.json").read_text())[probe.machine_key()] == ["bfloat16"]


def test_a_home_that_cannot_be_written_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QUIRE_HOME", str(tmp_path / "file"))
    timed(monkeypatch, float32=1.0, bfloat16=0.5, float16=2.0)
    assert probe.fast_dtypes() == ("bfloat16",)


def test_omp_num_threads_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert probe.num_cores() == 1


def test_a_containers_limits_are_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    monkeypatch.setattr(cores, "QUOTA", tmp_path / "cpu.max")
    files = {
        "/sys/fs/cgroup/memory.max": str(1 << 20),
        "/sys/fs/cgroup/memory.current": str(900 << 10),
        "/sys/fs/cgroup/memory.stat": f"anon 5\ninactive_file {100 << 10}\n",
    }
    monkeypatch.setattr(probe, "_read", lambda path: files.get(path, ""))
    assert probe.num_cores() == 1
    assert probe.total_memory() == 1 << 20
    assert probe.available_memory() == (1 << 20) - (800 << 10)
