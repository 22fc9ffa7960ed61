"""Rows whose continuations are scored: answered one by one, durable as they finish."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from quire.jobs.job import Job
from quire.jobs.store import store
from tests.jobs import drive
from tests.jobs.driving import (
    children_of,
    command,
    read_lines,
    records,
    started,
    wait_until,
)


def questions(path: Path, count: int, **odd: Any) -> Path:
    """`odd` maps r7 to another row number 7."""
    rows: list[Any] = [
        {"q": f"question {i} of a few", "c": [f" {i}", " no", f" what was {i}?"]}
        for i in range(count)
    ]
    for name, row in odd.items():
        rows[int(name[1:])] = row
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def scoring(source: Path, output: Path, model: str) -> list[str]:
    fixed = ("-p", "{{ q }}", "--continuations", "c", "--quiet")
    return command("run", source, "-o", output, "-m", model, *fixed)


def score(source: Path, output: Path, model: str = "fake", **options: Any) -> Any:
    job = Job(source, output, model=model, prompt="{{ q }}", continuations="c", **options)
    job._engine_command = drive.command()
    return job.run(progress=False)


def test_the_metrics_tell_what_was_scored(tmp_path: Path) -> None:
    source, output = questions(tmp_path / "in.jsonl", 30), tmp_path / "out.jsonl"
    report = score(source, output, "fake:delay=0.25:rows=4")
    found = list(store.read_metrics(output))
    assert len(found) >= 2 and found[-1]["finished"] == 30
    assert 0 < found[0]["finished"] < 30
    assert any(one["running"] > 0 for one in found[:-1])  # at one moment none may run
    assert found[-1]["output_tokens"] == report.output_tokens > 0
    assert found[-1]["prompt_tokens"] == report.prompt_tokens > 0
    queue, first, total = next(iter(store.read_results(output))).extra["timings"]
    assert first is None and 0 <= queue <= total


def test_a_bad_row_costs_itself_and_one_that_crashes_is_found(tmp_path: Path) -> None:
    bad = {
        "r0": {"q": "x", "c": ["good", ""]},
        "r2": {"q": "x", "c": "no list"},
        "r3": {"q": "x" * 600, "c": ["too long"]},
        "r4": {"q": "<crash>", "c": [" a", " b"]},
        "r5": {"q": "", "c": ["an empty context is the end of a text"]},
    }
    source, output = questions(tmp_path / "in.jsonl", 8, **bad), tmp_path / "out.jsonl"
    report = score(source, output)
    found = read_lines(output)
    wrong = {i: row["error_type"] for i, row in enumerate(found) if row["error"]}
    assert wrong == {
        0: "invalid_prompt",
        2: "malformed_row",
        3: "prompt_too_long",
        4: "engine_crash",
    }
    assert report.num_restarts <= 5
    score(questions(tmp_path / "calm.jsonl", 8), tmp_path / "calm-out.jsonl")
    calm = read_lines(tmp_path / "calm-out.jsonl")
    same = [i for i in range(8) if f"r{i}" not in bad]
    assert all(found[i] == calm[i] for i in same)


def test_rows_are_on_disk_as_they_end_and_killing_the_engine_costs_nothing(tmp_path: Path) -> None:
    source, output = questions(tmp_path / "in.jsonl", 80), tmp_path / "out.jsonl"
    job_dir, on_disk = tmp_path / "out.jsonl.quire", 0
    with started(scoring(source, output, "fake:delay=0.08:rows=4")) as process:
        for _ in range(2):
            assert wait_until(lambda: len(records(job_dir)) > on_disk, 30)  # noqa: B023
            on_disk = len(records(job_dir))
            assert process.poll() is None and on_disk < 70, "kept until the end"
            for engine in children_of(process.pid):
                os.kill(engine, signal.SIGKILL)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
    score(source, tmp_path / "calm.jsonl")
    assert output.read_bytes() == (tmp_path / "calm.jsonl").read_bytes()


def test_the_plan_is_measured(tmp_path: Path) -> None:
    source = questions(tmp_path / "in.jsonl", 40)
    job = Job(
        source, tmp_path / "o.jsonl", model="fake:delay=0.01", prompt="{{ q }}", continuations="c"
    )
    job._engine_command = drive.command()
    plan = job.plan()
    assert "40 contexts with 120 continuations" in plan
    assert "tokens/s" in plan and "to compute" in plan
