"""Jobs with the real engine and the default model."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from quire.errors import InvalidOption, JobChanged
from quire.jobs.job import Job
from quire.jobs.store import store
from quire.jobs.store.journal import Journal
from tests.jobs.driving import (
    ENVIRONMENT,
    ROOT,
    journal_bytes,
    kill,
    read_lines,
    records,
    run,
    started,
    wait_until,
)

EXACT = ("--option", "batch_invariant=true", "--option", "quantization=none", "--option")
WORDS = ["river", "stone", "cloud", "paper", "music", "winter", "garden", "letter"]


def quire(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "quire", *map(str, arguments)]


def questions(path: Path, count: int) -> Path:
    rows = [{"text": f"{WORDS[i % 8]} and {WORDS[i // 8 % 8]} ({i})"} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_killed_run_goes_on_and_gives_the_same_bytes(
    tmp_path: Path, default_model: Path, long_mode: bool
) -> None:
    source = questions(tmp_path / "in.jsonl", 400 if long_mode else 24)
    rng, wanted = random.Random(1), 20 if long_mode else 1
    layers = () if long_mode else ("--option", 'hf_overrides={"num_hidden_layers": 5}')
    line = ("-p", "A line about {{ text }}", "--max-tokens", 6, "--quiet")
    fixed = ("-m", default_model, *layers, *line)
    drawn = ("--temperature", 1, "--seed", 3, *EXACT, "dtype=float32", "--option", "max_num_seqs=8")
    calm, stormy = tmp_path / "calm.jsonl", tmp_path / "stormy.jsonl"
    assert run(quire("run", source, "-o", calm, *fixed, *drawn)).returncode == 0
    job_dir = tmp_path / "stormy.jsonl.quire"
    for _ in range(wanted):
        before = journal_bytes(job_dir)
        with started(quire("run", source, "-o", stormy, *fixed, *drawn)) as process:
            wait_until(lambda: journal_bytes(job_dir) > before or process.poll() is not None, 120)  # noqa: B023
            time.sleep(rng.uniform(0, 1.5) if long_mode else 0)
            if process.poll() is not None:
                break
            kill(process)
    assert len(records(job_dir)) > 0
    assert run(quire("run", source, "-o", stormy, *fixed, *drawn)).returncode == 0
    rows = [f["row"] for f in records(job_dir)]
    assert len(rows) == len(set(rows))
    assert stormy.read_bytes() == calm.read_bytes()
    texts = [row["output"] for row in read_lines(calm)]
    assert len(set(texts)) > 10


def test_continuations_are_scored(tmp_path: Path, default_model: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows: list[dict[str, Any]] = [
        {"q": "The capital of France is", "c": [" Rome", " Paris", " cheese"]},
        {"q": "The capital of France is", "c": []},
        {"q": "The opposite of hot is", "c": [" cold", " Tuesday"]},
    ]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = Job(source, output, model=str(default_model), prompt="{{ q }}", continuations="c")
    report = job.run(progress=False)
    found = read_lines(output)
    assert [row["output"] for row in found] == [" Paris", None, " cold"]
    assert report.num_failed == 1 and found[1]["error_type"] == "invalid_prompt"
    assert len(found[0]["continuation_logprobs"]) == 3
    assert found[0]["continuation_greedy"] == [False, True, False]


def test_structured_answers_and_a_plan(tmp_path: Path, default_model: Path) -> None:
    source, output = questions(tmp_path / "in.jsonl", 4), tmp_path / "out.jsonl"
    options: dict[str, Any] = {"prompt": "Is {{ text }} good?", "choice": ["yes", "no"]}
    job = Job(source, output, model=str(default_model), **options)
    plan = job.plan()
    assert "4 in 1 file" in plan and "output tokens/s" in plan
    job.run(progress=False)
    rows = read_lines(output)
    assert {row["output"] for row in rows} <= {"yes", "no"}
    assert "choice_probs" not in rows[0]


def test_the_chances_of_choices_are_stored(tmp_path: Path, default_model: Path) -> None:
    source, output = questions(tmp_path / "in.jsonl", 3), tmp_path / "out.parquet"
    options: dict[str, Any] = {"prompt": "Is {{ text }} good?", "choice": ["yes", "no", "maybe so"]}
    Job(source, output, model=str(default_model), choice_probs=True, **options).run(progress=False)
    rows = list(store.read_rows(output))
    table = parquet.read_table(output).to_pylist()
    assert [dict(row["choice_probs"]) for row in table] == [row["choice_probs"] for row in rows]
    for row in rows:
        probs = row["choice_probs"]
        assert list(probs) == options["choice"]
        assert sum(probs.values()) == pytest.approx(1, abs=1e-4)
        assert probs[row["output"]] == max(probs.values())
    with pytest.raises(JobChanged, match="choice_probs"):
        Job(source, output, model=str(default_model), **options).run(progress=False)


def test_chances_need_choices(tmp_path: Path) -> None:
    source = questions(tmp_path / "in.jsonl", 1)
    with pytest.raises(InvalidOption, match="choice_probs goes with choice"):
        Job(source, tmp_path / "o.jsonl", model="m", prompt="{{ text }}", choice_probs=True)


@pytest.mark.long
def test_the_journal_costs_next_to_nothing(
    tmp_path: Path, default_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPU time inside the journal, beside the CPU time of the engine that it works for."""
    spent = [0.0, 0.0]

    def timed(name: str) -> None:
        real = getattr(Journal, name)

        def call(self: Journal, *args: Any) -> Any:
            cpu, wall = time.process_time(), time.monotonic()
            try:
                return real(self, *args)
            finally:
                spent[0] += time.process_time() - cpu
                spent[1] += time.monotonic() - wall

        monkeypatch.setattr(Journal, name, call)

    for name in ("append", "commit_if_due"):
        timed(name)
    source = questions(tmp_path / "in.jsonl", 256)
    job = Job(
        source,
        tmp_path / "out.jsonl",
        model=str(default_model),
        prompt="A line about {{ text }}",
        max_tokens=32,
        sampling={"ignore_eos": True},
    )
    before = os.times()
    report = job.run(progress=False)
    after = os.times()
    engine = after.children_user + after.children_system
    engine -= before.children_user + before.children_system
    print(
        f"{report.output_tokens} tokens in {report.seconds:.1f} s; engine {engine:.1f} s of CPU; "
        f"journal {spent[0]:.3f} s of CPU, {spent[1]:.3f} s on the clock beside the engine"
    )
    assert report.num_ok == 256
    assert spent[0] <= 0.01 * engine


@pytest.mark.long
def test_four_prompts_are_answered_six_seconds_after_the_process_began(
    tmp_path: Path, default_model: Path
) -> None:
    source = questions(tmp_path / "in.jsonl", 4)
    fixed = ("-m", default_model, "-p", "{{ text }}", "--max-tokens", 16, "--quiet")
    times = []
    for i in range(3):
        began = time.monotonic()
        subprocess.run(
            quire("run", source, "-o", tmp_path / f"{i}.jsonl", *fixed),
            cwd=ROOT,
            env=ENVIRONMENT,
            check=True,
        )
        times.append(time.monotonic() - began)
    print("seconds:", *(f"{seconds:.2f}" for seconds in times))
    assert min(times) <= 6.0
