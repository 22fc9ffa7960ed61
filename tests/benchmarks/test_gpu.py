"""The parts of gpu.py that can run without a GPU do, on next to nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import gpu, gpu_start, shapes, workloads
from benchmarks.gpu_profile import summary
from benchmarks.harness import Budget, Line, run_parts
from tests.benchmarks.test_offline import TINY

CPU = {"device": "cpu", "dtype": "float32", "kv_cache_memory_bytes": 8 << 20}


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    monkeypatch.setattr(shapes, "MODELS", tmp_path)
    monkeypatch.setattr(gpu, "MODELS", {"small": "tiny"})
    build = workloads.build
    monkeypatch.setattr(workloads, "build", lambda name, scale=0.05: build(name, scale))


def test_a_table_says_what_was_run_and_where_the_host_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu.table("small", Budget(60, tmp_path), dict(CPU), ["small_mixed", "small_fewshot"])
    printed = capsys.readouterr().out
    assert "tiny small_mixed" in printed and "tiny small_fewshot" in printed
    assert "host: schedule" in printed and "of the limit" in printed
    rows = json.loads((tmp_path / "small.json").read_text())["rows"]
    assert [row["runs"] for row in rows] == [2, 2]
    assert all(row["ratio"] is None and row["seconds"] > 0 for row in rows)


def test_a_workload_that_fails_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure = gpu.measure

    def failing(llm: object, name: str, *rest: object) -> object:
        if name == "small_mixed":
            raise RuntimeError("on purpose")
        return measure(llm, name, *rest)

    monkeypatch.setattr(gpu, "measure", failing)
    gpu.table("small", Budget(60, tmp_path), dict(CPU), ["small_mixed", "small_fewshot"])
    captured = capsys.readouterr()
    assert "on purpose" in captured.err and "tiny small_fewshot" in captured.out


def test_what_no_time_is_left_for_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu.table("small", Budget(0, tmp_path), dict(CPU), ["small_mixed"])
    assert "small_mixed: not run" in capsys.readouterr().out


def test_a_part_that_fails_leaves_the_others_and_time_ends_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing() -> Iterator[Line]:
        yield {"us": 1}
        raise RuntimeError("on purpose")

    def whole() -> Iterator[Line]:
        yield from ({"us": number} for number in (2, 3))

    parts = {"failing": failing, "whole": whole}
    run_parts(parts, list(parts), Budget(60, tmp_path), "found")
    assert "on purpose" in capsys.readouterr().err
    found = json.loads((tmp_path / "found.json").read_text())
    assert found == {"failing": [{"us": 1}], "whole": [{"us": 2}, {"us": 3}]}
    run_parts(parts, ["whole"], Budget(0, tmp_path), "late")
    assert "whole: 0 lines" in capsys.readouterr().out and not (tmp_path / "late.json").exists()


def test_a_start_is_told_as_the_process_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_start, "START", "print('ready')")
    gpu_start.start(Budget(60, tmp_path), ["tiny"], {})
    assert capsys.readouterr().out.count("ready") == 3
    assert len(json.loads((tmp_path / "start.json").read_text())) == 3
    monkeypatch.setattr(gpu_start, "START", "print('half way'); raise SystemError('broken')")
    gpu_start.start(Budget(60, tmp_path), ["tiny"], {})
    printed = capsys.readouterr().out
    assert "half way" in printed and "broken" in printed


def test_a_process_that_does_not_end_is_ended(tmp_path: Path) -> None:
    said = gpu_start._run(["-c", "import time; time.sleep(60)"], str(tmp_path), 0.5)
    assert said == "not over after 0 s"


def test_a_profile_tells_busy_time_and_gaps(capsys: pytest.CaptureFixture[str]) -> None:
    times = [("a", 0, 10), ("b", 12, 22), ("a", 24, 40)]
    events = [
        SimpleNamespace(
            name=name,
            device_type=SimpleNamespace(name="CUDA"),
            time_range=SimpleNamespace(start=start, end=end),
        )
        for name, start, end in times
    ]
    found = summary(SimpleNamespace(events=lambda: events), 2, "steps")
    assert found["us_per_step"] == 20 and found["busy"] == 36 / 40
    assert (found["gap_us"], found["longest_gap_us"]) == (2, 2)
    assert found["kernels"][0] == ("a", 13.0, 1.0)
    assert "busy 90.0%" in capsys.readouterr().out


@pytest.mark.long
def test_the_stages_of_a_start_are_timed(tmp_path: Path) -> None:
    with shapes.opened("tiny", **CPU) as shape:
        words = [gpu_start.__file__, shape.path, "--child", json.dumps(shape.options), "0"]
        said = gpu_start._run(words, str(tmp_path), 60)
    assert "import quire" in said and "import torch" in said and "generate again" in said
