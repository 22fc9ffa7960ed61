"""Several engines for one job: the same bytes as one, whatever is killed meanwhile."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from quire.errors import InvalidOption
from quire.jobs.supervise.starting import with_whole_paths
from quire.replicas import board
from tests.jobs.driving import (
    SAMPLED,
    children_of,
    command,
    is_alive,
    journal_bytes,
    read_lines,
    run,
    run_command,
    started,
    undisturbed,
    wait_until,
    write_rows,
)
from tests.jobs.test_supervisor import make_job

LONG = pytest.mark.long


@pytest.mark.parametrize("count", [*(pytest.param(n, marks=LONG) for n in (0, 1, 2, 300)), 60])
def test_three_replicas_write_the_bytes_of_one(tmp_path: Path, count: int) -> None:
    source = write_rows(tmp_path / "in.jsonl", count)
    calm = undisturbed(tmp_path, source)
    output = tmp_path / "out.jsonl"
    done = run(run_command(source, output, *SAMPLED, "--replicas", 3, model="fake:rows=8"))
    assert done.returncode == 0, done.stderr
    assert output.read_bytes() == calm


def test_killing_replicas_again_and_again_costs_nothing(tmp_path: Path, long_mode: bool) -> None:
    """One of them at a time, sometimes while it loads, and now and then all of them."""
    wanted, rng = 50 if long_mode else 6, random.Random(11)
    source = write_rows(tmp_path / "in.jsonl", 12_000 if long_mode else 900)
    calm = undisturbed(tmp_path, source)
    output, job_dir = tmp_path / "out.jsonl", tmp_path / "out.jsonl.quire"
    model = "fake:delay=0.008:rows=32" if long_mode else "fake:delay=0.03:rows=8"
    arguments = run_command(source, output, *SAMPLED, "--replicas", 3, model=model)
    num_kills, rounds, seen = 0, 0, set[int]()
    with started(arguments) as process:
        while num_kills < wanted and process.poll() is None:
            before = journal_bytes(job_dir)
            wait_until(lambda: journal_bytes(job_dir) > before or process.poll() is not None)  # noqa: B023
            time.sleep(rng.uniform(0, 0.1))
            engines = children_of(process.pid)
            # Now and then one that loads, or all; but a replica that dies three times while it
            # loads is given up, as it should be.
            old = [engine for engine in engines if engine in seen]
            some = engines if rounds % 4 == 1 else old if rounds % 4 == 3 else old[:1]
            rounds += 1
            seen.update(engines)
            for engine in rng.sample(some, len(some) if rounds % 8 == 4 else min(1, len(some))):
                os.kill(engine, signal.SIGKILL)
                num_kills += 1
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
    print(f"{num_kills} replicas killed")
    assert num_kills >= wanted
    assert output.read_bytes() == calm
    assert wait_until(lambda: not any(map(is_alive, seen)))


def test_killing_the_supervisor_of_replicas_leaves_no_engine(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", 150)
    calm, output = undisturbed(tmp_path, source), tmp_path / "out.jsonl"
    model = "fake:delay=0.05:rows=16"  # more than a second, if nobody kills it
    arguments = run_command(source, output, *SAMPLED, "--replicas", 2, model=model)
    with started(arguments) as process:
        assert wait_until(lambda: journal_bytes(tmp_path / "out.jsonl.quire") > 0)
        engines = children_of(process.pid)
        assert len(engines) == 2
        process.kill()
    assert wait_until(lambda: not any(map(is_alive, engines)))
    assert run(arguments).returncode == 0
    assert output.read_bytes() == calm


@pytest.mark.parametrize("word", ["<crash>", pytest.param("<nan>", marks=LONG)])
def test_a_row_that_breaks_engines_is_found_and_the_others_finish(
    tmp_path: Path, word: str
) -> None:
    text = [f"row {i}" for i in range(60)]
    text[27] = f"row {word}"
    source = write_rows(tmp_path / "in.jsonl", 60, text.__getitem__)
    job = make_job(source, tmp_path / "out.jsonl", "fake:rows=4", replicas=2)
    report = job.run(progress=False)
    found = read_lines(tmp_path / "out.jsonl")
    assert [row["text"] for row in found if row["error"]] == [text[27]]
    assert report.num_failed == 1 and report.num_restarts <= 10


@pytest.mark.long
def test_a_replica_that_stands_still_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "SILENCE", 1.5)
    text = [f"row {i} {'<hang>' if i == 20 else ''}" for i in range(40)]
    source = write_rows(tmp_path / "in.jsonl", 40, text.__getitem__)
    make_job(source, tmp_path / "out.jsonl", "fake:rows=4", replicas=2).run(progress=False)
    found = read_lines(tmp_path / "out.jsonl")
    assert {row["error_type"] for row in found} == {None, "engine_hang"}
    assert [i for i, row in enumerate(found) if row["error"]] == [20]


def test_more_gpus_than_there_are_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    source = write_rows(tmp_path / "in.jsonl", 2)
    with pytest.raises(InvalidOption, match="no GPU here"):
        make_job(source, tmp_path / "out.jsonl", gpus="0,1").run(progress=False)
    assert not (tmp_path / "out.jsonl.quire").exists()
    with pytest.raises(InvalidOption, match="replicas is a whole number of at least 1"):
        make_job(source, tmp_path / "out.jsonl", replicas=0)


def test_replicas_with_other_model_files_are_refused_by_name(tmp_path: Path) -> None:
    source, output = write_rows(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    given = ("-o", output, "-m", "fake", "-p", "{{ text }}", "--quiet", "--replicas", 2)
    done = run(command("run", source, *given, engine="tests.jobs.fake_engine:OtherFiles"))
    assert done.returncode == 2
    assert "model_files: /m/model.safetensors is not what it was" in done.stderr


def test_paths_are_those_of_the_command_wherever_its_engines_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cluster a model or adapter of this folder would else be fetched from the Hub."""
    for name in ("models/mine", "adapters/nice", "tokens", "cpu"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    options = {"tokenizer": "tokens", "chat_template": "{{ messages }}", "device": "cpu"}
    adapters = {"nice": "adapters/nice", "other": "owner/other"}
    made = with_whole_paths({"model": "models/mine", "options": options, "lora": adapters})
    assert made["model"] == str(tmp_path / "models/mine")
    assert made["options"] == {**options, "tokenizer": str(tmp_path / "tokens")}
    assert made["lora"] == {"nice": str(tmp_path / "adapters/nice"), "other": "owner/other"}
