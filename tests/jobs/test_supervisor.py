"""Engines that crash, hang, run out of luck or never start: the job goes on, or says why not."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from quire.errors import Interrupted, JobStopped, ModelError
from quire.jobs.job import Job
from quire.jobs.store.store import read_results
from quire.jobs.supervise import supervisor
from quire.replicas import board, engine_process, feeder
from quire.replicas.board import Phase
from tests.jobs import drive
from tests.jobs.driving import (
    ROOT,
    children_of,
    is_alive,
    journal_bytes,
    read_lines,
    rows_on_board,
    run,
    run_command,
    started,
    wait_until,
    write_rows,
)


def make_job(source: Path, output: Path, model: str = "fake", **options: object) -> Job:
    job = Job(source, output, model=model, prompt="Say {{ text }}", max_tokens=6, **options)
    job._engine_command = drive.command()
    return job


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    """What becomes of 64 rows when nothing happens."""
    folder = tmp_path_factory.mktemp("calm")
    source = write_rows(folder / "in.jsonl", 64)
    make_job(source, folder / "out.jsonl").run(progress=False)
    return read_lines(folder / "out.jsonl")


def test_killing_the_engine_again_and_again_costs_nothing(tmp_path: Path, long_mode: bool) -> None:
    wanted, rng = 100 if long_mode else 3, random.Random(3)
    source = write_rows(tmp_path / "in.jsonl", 9000 if long_mode else 200)
    calm, output = tmp_path / "calm.jsonl", tmp_path / "out.jsonl"
    assert run(run_command(source, calm)).returncode == 0
    job_dir, num_kills = tmp_path / "out.jsonl.quire", 0
    model = "fake:delay=0.004" if long_mode else "fake:delay=0.03:rows=16"
    arguments = run_command(source, output, model=model)
    with started(arguments) as process:
        while num_kills < wanted and process.poll() is None:
            before = journal_bytes(job_dir)
            wait_until(lambda: journal_bytes(job_dir) > before or process.poll() is not None)  # noqa: B023
            time.sleep(rng.uniform(0, 0.05))
            for engine in children_of(process.pid):
                os.kill(engine, signal.SIGKILL)
                num_kills += 1
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
    print(f"{num_kills} engines killed")
    assert num_kills >= wanted
    assert read_lines(output) == read_lines(calm)


def test_a_row_that_is_alone_outlives_kills_of_the_engine(tmp_path: Path) -> None:
    source, output = write_rows(tmp_path / "in.jsonl", 1), tmp_path / "out.jsonl"
    with started(run_command(source, output, model="fake:delay=0.5")) as process:
        for _ in range(4):
            assert wait_until(lambda: any(map(rows_on_board, children_of(process.pid))))
            for engine in children_of(process.pid):
                os.kill(engine, signal.SIGKILL)
                assert wait_until(lambda: engine not in children_of(process.pid))  # noqa: B023
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0 and said.count("with 1 rows running") == 4, said
    assert [row["error"] for row in read_lines(output)] == [None]


@pytest.mark.parametrize("word", ["<crash>", "<nan>"])
def test_a_row_that_breaks_the_engine_is_found_and_the_others_finish(
    tmp_path: Path, word: str, calm: list[dict[str, object]], long_mode: bool
) -> None:
    places = range(0, 64, 3) if long_mode else (41,)
    for place in places:
        text = [f"row {i}" for i in range(64)]
        text[place] = f"row {word}"
        source = write_rows(tmp_path / f"{place}.jsonl", 64, text.__getitem__)
        output = tmp_path / f"out-{place}.jsonl"
        report = make_job(source, output).run(progress=False)
        found = read_lines(output)
        assert report.num_failed == 1
        assert found[place]["error_type"] == ("engine_crash" if word == "<crash>" else "nan_logits")
        assert report.num_restarts <= (8 if word == "<crash>" else 0)
        others = [row for i, row in enumerate(found) if i != place]
        assert others == [row for i, row in enumerate(calm) if i != place]


def test_two_rows_that_break_the_engine_are_both_found(tmp_path: Path) -> None:
    text = [f"row {i} {'<crash>' if i in (1, 4) else ''}" for i in range(6)]
    source = write_rows(tmp_path / "in.jsonl", 6, text.__getitem__)
    report = make_job(source, tmp_path / "out.jsonl").run(progress=False)
    failed = [row["text"] for row in read_lines(tmp_path / "out.jsonl") if row["error"]]
    assert failed == [text[1], text[4]] and report.num_ok == 4


def test_a_hang_is_noticed_and_its_row_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "SILENCE", 1.5)
    text = [f"row {i} {'<hang>' if i == 2 else ''}" for i in range(4)]
    source = write_rows(tmp_path / "in.jsonl", 4, text.__getitem__)
    make_job(source, tmp_path / "out.jsonl").run(progress=False)
    found = read_lines(tmp_path / "out.jsonl")
    assert [row["error_type"] for row in found] == [None, None, "engine_hang", None]


def test_loading_may_take_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "SILENCE", 0.2)
    source = write_rows(tmp_path / "in.jsonl", 2)
    report = make_job(source, tmp_path / "out.jsonl", "fake:load=1.5").run(progress=False)
    assert report.num_restarts == 0 and report.num_ok == 2


def test_an_engine_that_can_do_nothing_is_given_up_and_blames_no_row(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", 12, lambda i: "<crash>")
    job = make_job(source, tmp_path / "out.jsonl")
    with pytest.raises(JobStopped, match="no row's fault"):
        job.run(progress=False)
    assert list(read_results(tmp_path / "out.jsonl.quire")) == []
    assert not (tmp_path / "out.jsonl").exists()


def test_a_job_of_one_row_that_breaks_the_engine_still_ends(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", 1, lambda i: "<crash>")
    report = make_job(source, tmp_path / "out.jsonl").run(progress=False)
    assert (report.num_ok, report.num_failed) == (0, 1)


def test_an_engine_that_dies_while_it_loads_is_given_up_with_its_last_words(
    tmp_path: Path,
) -> None:
    source = write_rows(tmp_path / "in.jsonl", 2)
    job = make_job(source, tmp_path / "out.jsonl")
    job._engine_command = drive.command("tests.jobs.test_supervisor:no_such_factory")
    with pytest.raises(JobStopped, match="no_such_factory"):
        job.run(progress=False)


def test_a_model_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", 2)
    job = Job(source, tmp_path / "out.jsonl", model="no/such/model/here", prompt="{{ text }}")
    with pytest.raises(ModelError, match="no/such/model/here"):
        job.run(progress=False)


def test_ctrl_c_stops_cleanly_and_the_same_command_goes_on(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", 160)
    calm, output = tmp_path / "calm.jsonl", tmp_path / "out.jsonl"
    assert run(run_command(source, calm)).returncode == 0
    arguments = run_command(source, output, model="fake:delay=0.02:rows=16")
    job_dir, codes = tmp_path / "out.jsonl.quire", []
    for number in (signal.SIGINT, signal.SIGTERM):
        before = journal_bytes(job_dir)
        with started(arguments) as process:
            assert wait_until(lambda before=before: journal_bytes(job_dir) > before)  # type: ignore[misc]
            engines = children_of(process.pid)
            process.send_signal(number)
            _, said = process.communicate(timeout=60)
            codes.append(process.returncode)
            assert "To continue:" in said and "quire run" in said and "Traceback" not in said
        assert wait_until(lambda engines=engines: not any(map(is_alive, engines)))  # type: ignore[misc]
    assert codes == [75, 75]
    assert not output.exists()
    assert run(arguments).returncode == 0
    assert read_lines(output) == read_lines(calm)


def test_a_second_ctrl_c_leaves_now(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", 4)
    with started(run_command(source, tmp_path / "out.jsonl", model="fake:load=30")) as process:
        assert wait_until(lambda: (tmp_path / "out.jsonl.quire" / "errors.jsonl").exists())
        [engine] = children_of(process.pid)
        process.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode in (75, 130)
        assert ("To continue" if process.returncode == 75 else "same command continues") in said
    assert wait_until(lambda: not is_alive(engine))


def test_interrupted_in_python_is_a_keyboard_interrupt(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", 4)
    job = make_job(source, tmp_path / "out.jsonl", "fake:load=30")
    handler = signal.getsignal(signal.SIGINT)  # a shell in the background has it ignored

    def interrupt() -> None:
        wait_until(lambda: (tmp_path / "out.jsonl.quire" / "errors.jsonl").exists())
        os.kill(os.getpid(), signal.SIGINT)

    soon = threading.Thread(target=interrupt)
    soon.start()
    with pytest.raises(Interrupted, match="rows are on disk"):
        job.run(progress=False)
    soon.join()
    assert signal.getsignal(signal.SIGINT) is handler


def test_rows_in_flight_are_bounded_by_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeder, "IN_FLIGHT_BYTES", 2000)
    source = write_rows(tmp_path / "in.jsonl", 60, lambda i: "x" * 300)
    assert make_job(source, tmp_path / "out.jsonl").run(progress=False).num_ok == 60


def test_a_long_step_that_gets_somewhere_is_no_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of three seconds, where two and a half without a move are too long."""
    monkeypatch.setattr(board, "SILENCE", 2.5)
    source = write_rows(tmp_path / "in.jsonl", 2)
    job = Job(
        source, tmp_path / "o.jsonl", model="fake:layers=25", prompt="{{ text }}", max_tokens=1
    )
    job._engine_command = drive.command()
    report = job.run(progress=False)
    assert (report.num_ok, report.num_restarts) == (2, 0)


def test_silence_while_nobody_listened_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "SILENCE", 0.2)
    waits = (sys.executable, "-c", "import sys; sys.stdin.buffer.read()")
    engine = engine_process.EngineProcess({"kind": "open"}, command=waits, hear=print)
    try:
        engine.board.move(Phase.WORKING)
        time.sleep(0.3)
        engine.poll(0)
        assert engine.is_hung()
        monkeypatch.setattr(engine_process, "ABSENCE", 0.1)
        time.sleep(0.2)  # as if we had been stopped
        engine.poll(0)
        assert not engine.is_hung()

        def is_hung() -> bool:
            engine.poll(0)
            return engine.is_hung()

        assert wait_until(is_hung, step=0.02)
    finally:
        engine.end()


def limited(arguments: list[str], gigabytes: int) -> list[str]:
    """The command with so much address space for each of its processes: a real limit, at which
    the system refuses memory."""
    code = (
        "import os, resource, sys; limit = int(sys.argv[1]) << 30;"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit));"
        "os.execv(sys.argv[2], sys.argv[2:])"
    )
    return [sys.executable, "-c", code, str(gigabytes), *arguments]


def test_an_engine_that_runs_out_of_memory_is_given_less_and_the_job_finishes(
    tmp_path: Path,
) -> None:
    source = write_rows(tmp_path / "in.jsonl", 150)
    calm, output = tmp_path / "calm.jsonl", tmp_path / "out.jsonl"
    assert run(run_command(source, calm)).returncode == 0
    done = run(limited(run_command(source, output, model="fake:hunger=1000"), 40))
    assert done.returncode == 0, done.stderr
    assert "ran out of memory" in done.stderr and "Traceback" not in done.stderr
    assert "going on with 32 rows at once" in done.stderr
    assert read_lines(output) == read_lines(calm)


def test_a_row_that_alone_takes_all_memory_fails_alone(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", 4, lambda i: "<huge>" if i == 2 else f"row {i}")
    output = tmp_path / "out.jsonl"
    done = run(limited(run_command(source, output, model="fake:hunger=100"), 16))
    assert done.returncode == 3, done.stderr
    failed = {i: r["error_type"] for i, r in enumerate(read_lines(output)) if r["error"]}
    assert failed == {2: "out_of_memory"}


def test_nothing_in_quire_asks_for_another_engine() -> None:
    """The child's --engine is for tests alone."""
    package = Path(supervisor.__file__).parents[2]
    users = [p for p in package.rglob("*.py") if '"--engine"' in p.read_text(encoding="utf-8")]
    assert [path.parent.name + "/" + path.name for path in users] == ["child/__main__.py"]


@pytest.mark.parametrize(
    "printing", ["print('ready to serve'); print(1)", "print(end='hi', flush=True)"]
)
def test_a_python_that_prints_when_it_starts_is_no_broken_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printing: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(printing)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{tmp_path}")
    report = make_job(write_rows(tmp_path / "in.jsonl", 3), tmp_path / "o.jsonl").run(
        progress=False
    )
    assert (report.num_ok, report.num_restarts) == (3, 0)
