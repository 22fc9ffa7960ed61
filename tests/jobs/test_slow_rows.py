"""Rows and templates that take their time: the supervisor hears, syncs and goes on meanwhile."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from quire.errors import JobStopped
from quire.jobs.input.rows import BadRow
from quire.jobs.job import Job
from quire.jobs.output import output as job_output
from quire.jobs.supervise.evaluation_limit import EvaluationLimit
from quire.jobs.supervise.rows_ahead import MOST_ITEMS, RowsAhead
from tests.jobs.driving import command, read_lines, records, run, started, wait_until, write_rows
from tests.jobs.instant import InstantEngine

# Two lists of a row's own, every item of one compared with every one of the other: for ever, as
# far as a job is concerned.
ENDLESS = "much | select('in', more) | list | length == 0"
# True of no row, after a while; of all rows of the test after a minute or more.
SLOW = " + ".join(["(much | map('string') | join | length)"] * 10) + " < 0"


def test_a_slow_condition_does_not_make_the_supervisor_deaf(tmp_path: Path) -> None:
    """What was answered is on disk and SIGTERM is heard, while no further row is ever found."""
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    much = json.dumps([0] * 50_000)
    with open(source, "w") as file:
        file.write('{"text": "first", "much": []}\n')
        file.writelines(f'{{"text": "slow", "much": {much}}}\n' for _ in range(200))
    usual = ("run", source, "-m", "fake", "-p", "{{ text }}", "-o", output, "-q")
    arguments = command(*usual, "--where", f"text == 'first' or {SLOW}")
    with started(arguments) as process:
        job_dir = tmp_path / "out.jsonl.quire"
        assert wait_until(lambda: any(record["row"] == 0 for record in records(job_dir)))
        process.send_signal(signal.SIGTERM)
        assert process.wait(25) == 75


@pytest.mark.parametrize(
    "options",
    [("-p", "{{ text }}", "--where", ENDLESS), ("-p", f"{{{{ text }}}} {{{{ {ENDLESS} }}}}")],
)
def test_a_row_that_comes_to_no_end_costs_itself(tmp_path: Path, options: tuple[str, ...]) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    with open(source, "w") as file:
        for number in range(12):
            size = 100_000 * (number == 7)
            row = {"text": f"row {number}", "much": [0] * size, "more": ["x"] * size}
            file.write(json.dumps(row) + "\n")
    done = run(command("run", source, "-m", "fake", *options, "-o", output, "-q"))
    assert done.returncode == 3, done.stderr
    kinds = [row["error_type"] for row in read_lines(output)]
    assert kinds == [None] * 7 + ["template_error"] + [None] * 4


def test_an_evaluation_in_time_is_left_alone_and_one_that_is_not_ends() -> None:
    limit = EvaluationLimit(0.05)
    made: list[object] = []

    def evaluate() -> None:
        for number in range(2000):
            made.append(limit.allow(lambda number=number: number))  # type: ignore[misc]
        try:
            limit.allow(lambda: [None for _ in iter(int, 1)])
        except BadRow as error:
            made.append(error.kind)
        made.append(limit.allow(lambda: "after"))

    thread = threading.Thread(target=evaluate)
    thread.start()
    while thread.is_alive():
        limit.look()
    assert made == [*range(2000), "template_error", "after"]


def test_an_evaluation_that_is_ended_too_late_leaves_nothing_behind() -> None:
    """Whatever moment it is ended at, the thread goes on as if nothing had been, or is told."""
    limit, described = EvaluationLimit(3600), [0, 0]

    def evaluate() -> None:
        for _ in range(3000):
            try:
                described[limit.allow(lambda: 0)] += 1
            except BadRow:
                described[1] += 1

    thread = threading.Thread(target=evaluate)
    thread.start()
    while thread.is_alive():
        limit.look(at_once=True)
    assert sum(described) == 3000


def test_an_evaluation_that_swallows_its_end_is_told_again() -> None:
    """As happens where the end falls into a finaliser or into what the collector calls."""
    limit, ends = EvaluationLimit(0.05), list[str]()

    def endless() -> None:
        while True:
            try:
                [None for _ in iter(int, 1)]
            except BaseException as error:
                ends.append(type(error).__name__)
                if len(ends) == 2:
                    raise

    def evaluate() -> None:
        with pytest.raises(BadRow):
            limit.allow(endless)
        ends.append("over")

    thread = threading.Thread(target=evaluate, daemon=True)
    thread.start()
    while thread.is_alive():
        limit.look()
    assert ends == ["_Overdue", "_Overdue", "over"]


def test_rows_made_ahead_are_few_in_order_and_end_with_their_error() -> None:
    began: list[int] = []

    def rows() -> Generator[int]:
        for number in range(5000):
            began.append(number)
            yield number
        raise OSError("the disk is gone")

    ahead = RowsAhead(rows(), EvaluationLimit())
    assert wait_until(lambda: len(began) == MOST_ITEMS)
    time.sleep(0.05)
    assert len(began) == MOST_ITEMS
    found: list[int] = []
    with pytest.raises(OSError, match="the disk is gone"):
        found.extend(ahead.wait())
    assert found == list(range(5000))
    assert list(ahead) == []


def test_whoever_closes_early_is_not_kept_waiting() -> None:
    closed: list[bool] = []

    def rows() -> Generator[int]:
        try:
            yield limit.allow(lambda: sum(1 for _ in iter(int, 1)))
        finally:
            closed.append(True)

    limit = EvaluationLimit(3600)
    ahead = RowsAhead(rows(), limit)
    assert next(ahead) is None
    began = time.monotonic()
    ahead.close()
    ahead.close()
    assert closed and time.monotonic() - began < 20


def test_a_signal_while_the_output_is_written_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.jobs.supervise.starting.EngineProcess", InstantEngine)
    source, output = write_rows(tmp_path / "in.jsonl", 20), tmp_path / "out.jsonl"
    real = job_output.json_line

    def signalled(row: dict[str, object]) -> bytes:
        if row["text"] == "row 7":
            os.kill(os.getpid(), signal.SIGTERM)
        return real(row)

    job = Job(source, output, model="m", prompt="{{ text }}")
    monkeypatch.setattr(job_output, "json_line", signalled)
    with pytest.raises(JobStopped, match="20 rows are on disk"):
        job.run(progress=False)
    assert not output.exists() and not list(tmp_path.glob("*.partial"))
    monkeypatch.setattr(job_output, "json_line", real)
    assert job.run(progress=False).num_rows == len(read_lines(output)) == 20
