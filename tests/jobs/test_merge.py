"""Random histories of workers' journals: merged, each row is there once, and it is the right one;
a worker that comes later does what is missing, and nothing else."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.errors import JobStopped
from quire.jobs.job import Job
from quire.jobs.join import claims, merge, setup, worker
from quire.jobs.join.claims import CLAIMS, WORKERS, Claims
from quire.jobs.join.merge import merge_output
from quire.jobs.store.journal import Journal
from quire.jobs.store.lock import JobLock
from quire.jobs.store.manifest import NAME, Manifest
from quire.jobs.store.record import ResultRecord
from quire.jobs.store.segments import RecordReader, scan
from tests.jobs.driving import read_lines, records, write_rows
from tests.jobs.test_supervisor import make_job

ROWS, IN_CHUNK = 60, 16  # the last eighth is cut finer


def id_of(home: Path) -> str | None:
    """Of the job, in whose directory or below this is."""
    found = next(each for each in (home, *home.parents) if (each / NAME).exists())
    return Manifest.load(found).id


class Joined:
    """A joined job that was done, and what its worker recorded."""

    def __init__(self, job: Job, job_dir: Path, output: Path) -> None:
        self.job, self.job_dir, self.output = job, job_dir, output
        self.calm = output.read_bytes()
        [self.home] = (job_dir / WORKERS).iterdir()
        found = scan(self.home, first_epoch=1, job=id_of(self.home)).index
        with RecordReader(self.home) as reader:
            self.answers = {r.row: r for r in map(reader.read, found.positions())}

    def begin_again(self, histories: dict[str, list[ResultRecord]]) -> None:
        """As if these workers had written this, and nothing had been merged."""
        for old in [*self.job_dir.glob("results-*"), *self.job_dir.glob("errors*"), self.output]:
            old.unlink(missing_ok=True)
        shutil.rmtree(self.job_dir / WORKERS)
        (self.job_dir / WORKERS).mkdir()
        for name, history in sorted(histories.items(), reverse=True):
            write(self.job_dir / WORKERS / name, history)


def write(home: Path, history: list[ResultRecord]) -> None:
    home.mkdir(exist_ok=True)
    lock = JobLock.take(home)
    journal = Journal.open(home, lock, first_epoch=1, job=id_of(home))
    for record in history:
        journal.append(replace(record, epoch=lock.epoch))
    journal.close()
    lock.release()


@pytest.fixture
def joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Joined]:
    monkeypatch.setattr(setup, "ROWS", IN_CHUNK)
    monkeypatch.setattr(claims, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(claims, "LEASE_SECONDS", 0.3)
    for room in (setup, worker):
        monkeypatch.setattr(room, "LOOK_SECONDS", 0.05)
    source, output = write_rows(tmp_path / "in.jsonl", ROWS), tmp_path / "out.jsonl"
    job = make_job(source, output, "fake:delay=0.005:rows=8", join=True)
    job.run(progress=False)
    yield Joined(job, tmp_path / "out.jsonl.quire", output)


def rows_on(home: Path) -> list[int]:
    return list(scan(home, first_epoch=1, job=id_of(home)).index.rows())


def failed(record: ResultRecord) -> ResultRecord:
    return replace(record, outputs=(), finish_reasons=(), error="bad", error_type="engine_crash")


def kept(histories: dict[str, list[ResultRecord]], row: int) -> ResultRecord | None:
    """What the rule says of a row: an answer before a failure, the first worker by name, and the
    last that this one wrote."""
    for is_failed in (False, True):
        for name in sorted(histories):
            mine = [r for r in histories[name] if r.row == row and r.failed == is_failed]
            if mine:
                return mine[-1]
    return None


class Killed(Exception):
    pass


def test_merging_keeps_each_row_once_whenever_it_is_killed(
    joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(8):
        rng = random.Random(seed)
        histories: dict[str, list[ResultRecord]] = {"w0": [], "w1": [], "w2": []}
        for row in rng.sample(range(ROWS), ROWS):
            for name in rng.sample(sorted(histories), rng.choice([1, 1, 2, 3])):
                said = replace(joined.answers[row], outputs=(f"{row} of {name} {rng.random()}",))
                histories[name].append(failed(said) if rng.random() < 0.3 else said)
                if rng.random() < 0.1:
                    histories[name].append(replace(said, outputs=(f"{row} again",)))
        joined.begin_again(histories)
        left = rng.randint(0, ROWS)

        def append(self: Journal, record: ResultRecord, real: Any = Journal.append) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return real(self, record)

        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(Journal, "append", append)
            merge_output(joined.job_dir)
            raise Killed  # it needed fewer
        assert not joined.output.exists() or left >= 0
        report = merge_output(joined.job_dir)
        expected = [kept(histories, row) for row in range(ROWS)]
        lines = read_lines(joined.output)
        for line, record in zip(lines, expected, strict=True):
            assert record is not None
            assert (line["output"] if not record.failed else line["error"]) == (
                record.outputs[0] if not record.failed else "bad"
            ), seed
        num_failed = sum(record is not None and record.failed for record in expected)
        assert (report.num_rows, report.num_failed) == (ROWS, num_failed)
        assert Manifest.load(joined.job_dir).num_failed == num_failed
        written = [fields["row"] for fields in records(joined.job_dir)]
        assert sorted(written) == list(range(ROWS)), "what was merged before is merged again"
        if seed % 4 == 0:  # one that slept meanwhile puts in what the others could not answer
            write(joined.job_dir / WORKERS / "w9", list(joined.answers.values()))
            merge_output(joined.job_dir)
            answers = [
                joined.answers[r].outputs[0] for r, e in enumerate(expected) if e and e.failed
            ]
            found = read_lines(joined.output)
            assert [found[r]["output"] for r, e in enumerate(expected) if e and e.failed] == answers
            assert not any(line["error"] for line in found)


@pytest.mark.parametrize("seed", range(3))
def test_a_worker_does_what_dead_ones_left_and_nothing_else(
    joined: Joined, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, job_dir = random.Random(seed), joined.job_dir
    had: dict[str, list[ResultRecord]] = {"dead-0": [], "dead-1": []}
    folder = job_dir / CLAIMS / "000000"
    chunks = merge.Chunks.load(job_dir)
    open_rows, done_rows = set[int](), set[int]()
    for number in range(len(chunks)):
        chunk, owner = chunks[number], rng.choice(sorted(had))
        mine = [joined.answers[chunk.first + i] for i in range(chunk.count)]
        (folder / f"{number:03}.0").write_text(owner + "\n")
        if rng.random() < 0.4:
            had[owner] += mine
            done_rows.update(record.row for record in mine)
            continue
        (folder / f"{number:03}.done").unlink()
        part = rng.sample(mine, rng.randint(0, len(mine)))
        had[owner] += part
        open_rows.update(record.row for record in mine if record not in part)
        if rng.random() < 0.3:  # nobody has begun it
            (folder / f"{number:03}.0").unlink()
            had[owner] = [record for record in had[owner] if record not in part]
            open_rows.update(record.row for record in part)
    joined.begin_again(had)
    Manifest.load(job_dir).changed(status="running", num_rows=None).save(job_dir)
    with pytest.raises(JobStopped, match=f"of {len(chunks)} chunks are done"):
        merge_output(job_dir)
    early: list[int] = []

    def finish(self: Claims, number: int, num_rows: int, real: Any = Claims.finish) -> None:
        on_disk = {r for home in (job_dir / WORKERS).iterdir() for r in rows_on(home)}
        first = chunks[number].first
        if not on_disk.issuperset(range(first, first + chunks[number].count)):
            early.append(number)
        real(self, number, num_rows)

    monkeypatch.setattr(Claims, "finish", finish)
    report = joined.job.run(progress=False)
    assert not early, "a chunk is done when all its rows are on disk"
    assert (report.num_rows, report.num_failed) == (ROWS, 0)
    assert joined.output.read_bytes() == joined.calm
    homes = [home for home in (job_dir / WORKERS).iterdir() if home.name not in had]
    answered = [row for home in homes for row in rows_on(home)]
    assert sorted(answered) == sorted(open_rows)
    assert len(list(folder.glob("*.done"))) == len(chunks)
    counts = [int((folder / f"{n:03}.done").read_text()) for n in range(len(chunks))]
    assert counts == [chunks[n].count for n in range(len(chunks))]
