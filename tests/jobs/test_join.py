"""Workers that share a job on one disk: each row once, whoever is killed or sleeps meanwhile."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from quire.errors import InvalidOption, JobChanged, JobStopped
from quire.jobs.input.files import find_files, read_rows
from quire.jobs.input.rows import InputRow
from quire.jobs.job_setup import job_directory
from quire.jobs.join import claims as claiming
from quire.jobs.join.chunks import ChunkReader, Chunks
from quire.jobs.join.claims import Beat, Claims, Workers
from quire.jobs.join.merge import merge_output
from quire.jobs.join.setup import check_exclusive
from quire.jobs.store.lock import JobLock
from tests.jobs.driving import (
    SAMPLED,
    children_of,
    is_alive,
    run,
    run_command,
    started,
    undisturbed,
    wait_until,
    write_rows,
)
from tests.jobs.test_supervisor import make_job


def join_command(source: Path, output: Path, *more: object, model: str = "fake") -> list[str]:
    usual = run_command(source, output, *SAMPLED, *more, "--join", model=model)
    return [sys.executable, "-m", "tests.jobs.join_drive", *usual[3:]]


def num_done(job_dir: Path) -> int:
    return len(list(job_dir.glob("claims/*/*.done")))


def test_four_workers_one_killed_and_one_asleep(tmp_path: Path, long_mode: bool) -> None:
    """The output is that of one job, and of each row there is one line."""
    source = write_rows(tmp_path / "in.jsonl", 600 if long_mode else 350)
    calm, rng = undisturbed(tmp_path, source), random.Random(2)
    for round in range(20 if long_mode else 1):
        output = tmp_path / f"out-{round}.jsonl"
        job_dir = output.with_name(output.name + ".quire")
        command = join_command(source, output, model="fake:delay=0.02:rows=16")
        with ExitStack() as stack:
            workers = [stack.enter_context(started(command)) for _ in range(4)]
            assert wait_until(lambda: num_done(job_dir) >= 1)  # noqa: B023
            time.sleep(rng.uniform(0, 0.3))
            workers[0].kill()
            asleep = [workers[1].pid, *children_of(workers[1].pid)]
            for pid in asleep:
                os.kill(pid, signal.SIGSTOP)
            _, said = workers[2].communicate(timeout=120)
            assert workers[2].returncode == 0, said
            assert workers[3].wait(timeout=60) == 0
            for pid in asleep:
                os.kill(pid, signal.SIGCONT)
            _, said = workers[1].communicate(timeout=60)
            assert workers[1].returncode == 0, said
        assert output.read_bytes() == calm
        assert wait_until(lambda: not any(map(is_alive, asleep)))  # noqa: B023


def test_a_worker_alone_goes_on_after_a_kill_and_merging_can_be_killed(
    tmp_path: Path, long_mode: bool
) -> None:
    source = write_rows(tmp_path / "in.jsonl", 230)
    calm, output = undisturbed(tmp_path, source), tmp_path / "out.jsonl"
    job_dir = tmp_path / "out.jsonl.quire"
    command = join_command(source, output, model="fake:delay=0.02:rows=16")
    with started(command) as process:
        assert wait_until(lambda: num_done(job_dir) >= 1)
        process.kill()
    with pytest.raises(JobStopped, match="of . chunks are done|of 1. chunks are done"):
        merge_output(job_dir)
    done = run(command)
    assert done.returncode == 0, done.stderr
    [mine] = re.findall(r"230 of 230 rows answered, (\d+) of them now in [^:]* tok/s", done.stderr)
    assert 0 < int(mine) < 230
    assert output.read_bytes() == calm
    merge = [sys.executable, "-m", "tests.jobs.join_drive", "merge", str(output)]
    rng = random.Random(4)
    for _ in range(20 if long_mode else 2):
        output.unlink(missing_ok=True)
        for old in [*job_dir.glob("results-*"), *job_dir.glob("errors*")]:
            old.unlink()
        with started(merge) as process:
            time.sleep(rng.uniform(0.0, 1.0))
            process.kill()
        assert not output.exists() or output.read_bytes() == calm
    assert run(merge).returncode == 0
    assert output.read_bytes() == calm


def test_another_command_and_other_ways_are_refused(tmp_path: Path) -> None:
    source, output = write_rows(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    make_job(source, output, join=True).run(progress=False)
    with pytest.raises(JobChanged, match="seed: 0 -> 1"):
        make_job(source, output, join=True, seed=1).run(progress=False)
    with pytest.raises(JobChanged, match="join"):
        make_job(source, output).run(progress=False)
    with pytest.raises(InvalidOption, match="--join and shard do not go together"):
        make_job(source, output, join=True, shard="1/2").run(progress=False)
    make_job(source, tmp_path / "alone.jsonl").run(progress=False)
    with pytest.raises(JobChanged, match="without --join"):
        make_job(source, tmp_path / "alone.jsonl", join=True).run(progress=False)
    with pytest.raises(InvalidOption, match="no job of --join"):
        merge_output(tmp_path / "alone.jsonl.quire")


def test_a_joined_job_of_no_rows_and_with_bad_ones(tmp_path: Path) -> None:
    empty = write_rows(tmp_path / "empty.jsonl", 0)
    assert make_job(empty, tmp_path / "none.jsonl", join=True).run(progress=False).num_rows == 0
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "a"}\n\nno json\n{"text": "b"}\n')
    report = make_job(source, tmp_path / "out.jsonl", join=True).run(progress=False)
    assert (report.num_ok, report.num_failed) == (2, 1)
    where = make_job(source, tmp_path / "w.jsonl", join=True, where="text == 'b'")
    assert where.run(progress=False).num_rows == 2  # the bad row counts, as in any job


def test_chunks_hold_every_row_of_every_kind_of_file(tmp_path: Path) -> None:
    lines = tmp_path / "a.jsonl"
    lines.write_bytes(b"\xef\xbb\xbf" + b'{"n": 0}\n\n{"n": 1}\nbad\n' + b'{"n": 3}\n' * 5)
    table = tmp_path / "b.csv"
    table.write_text("n\n" + "".join(f"{i}\n" for i in range(7)))
    subprocess.run(["gzip", "-k", str(lines)], check=True)
    files = find_files([str(lines), str(table), str(lines) + ".gz"])
    Chunks.cut(files, None, 3).save(tmp_path)
    chunks, reader = Chunks.load(tmp_path), ChunkReader(files)

    def shape(row: InputRow) -> tuple[object, ...]:
        return row.number, row.key, row.values, str(row.error)

    expected = [shape(row) for row in read_rows(files)]
    assert [shape(r) for i in range(len(chunks)) for r in reader.rows(chunks[i])] == expected
    backwards = [[shape(r) for r in reader.rows(chunks[i])] for i in reversed(range(len(chunks)))]
    assert [each for rows in reversed(backwards) for each in rows] == expected
    assert all(chunks.of_row(chunks[i].first) == i for i in range(len(chunks)))
    limited = Chunks.cut(files, 10, 3)
    assert sum(limited[i].count for i in range(len(limited))) == 10


def test_the_last_rows_are_in_finer_chunks(tmp_path: Path) -> None:
    chunks = Chunks.cut(find_files([str(write_rows(tmp_path / "a.jsonl", 1000))]), None, 80)
    counts = [chunks[i].count for i in range(len(chunks))]
    assert counts[:10] == [80] * 10 and set(counts[-12:]) == {10} and sum(counts) == 1000


def test_one_worker_has_a_chunk_and_a_silent_one_loses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    workers = Workers(tmp_path, clock=lambda: now[0])
    first, second = (Claims(tmp_path, name, 3, workers) for name in ("w1", "w2"))
    assert [first.take(), second.take(), first.take(), second.take()] == [0, 1, 2, None]
    beat = tmp_path / "workers" / "w1" / "beat"
    beat.parent.mkdir(parents=True)
    beat.write_text("1")
    assert second.take_over() is None
    now[0] = claiming.LEASE_SECONDS - 20
    beat.write_text("2")
    assert second.take_over() is None
    now[0] += claiming.LEASE_SECONDS + 1
    first.finish(0, 7)
    assert second.take_over() == (2, ["w1"])
    assert first.counts() == {0: 7}
    assert list(first.open_numbers()) == [1, 2]
    assert json.loads((tmp_path / "claims/000000/002.1").read_text().strip('"w \n')) == 2


def test_a_worker_that_died_under_the_same_kernel_is_seen_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers, home = Workers(tmp_path, clock=lambda: 0.0), tmp_path / "workers" / "w1"
    home.mkdir(parents=True)
    lock, beat = JobLock.take(home), Beat(home)
    beat.end()
    assert not workers.is_dead("w1")
    lock.release()
    assert workers.is_dead("w1")
    monkeypatch.setattr(claiming, "boot_id", lambda: b"another-kernel")  # its locks may be unseen
    assert not workers.is_dead("w1")
    monkeypatch.setattr(claiming, "boot_id", lambda: b"")  # none of both says
    assert not workers.is_dead("w1")


def test_a_claim_has_its_name_when_its_content_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut would else leave an empty file that names no worker, for good."""
    synced, fsync, link = set[int](), os.fsync, os.link

    def noted(number: int) -> None:
        synced.add(os.fstat(number).st_ino)
        fsync(number)

    def linked(aside: Path, path: Path) -> None:
        assert os.stat(aside).st_ino in synced and os.stat(aside).st_size
        link(aside, path)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "link", linked)
    claims = Claims(tmp_path, "a", 1, Workers(tmp_path))
    assert claims.take() == 0
    claims.finish(0, 7)
    assert claims.counts() == {0: 7}


def test_a_claim_whose_answer_was_lost_is_still_a_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS asks again where an answer does not come, and then finds the name that it made itself:
    the chunk would belong to a worker that does not know of it."""
    link = os.link

    def linked(aside: Path, path: Path) -> None:
        link(aside, path)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))

    monkeypatch.setattr(os, "link", linked)
    first, second = (Claims(tmp_path, name, 2, Workers(tmp_path)) for name in ("w1", "w2"))
    assert [first.take(), second.take(), first.take()] == [0, 1, None]
    assert not first._claim(1, 0)  # it is the other's


def test_a_worker_that_cannot_begin_lets_go_of_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*given: object) -> None:
        raise OSError("no such disk")

    monkeypatch.setattr("quire.jobs.join.worker.make_work", failing)
    job = make_job(write_rows(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl", join=True)
    with pytest.raises(OSError, match="no such disk"):
        job.run(progress=False)
    held = [os.path.realpath(number) for number in Path("/proc/self/fd").iterdir()]
    assert not [path for path in held if path.startswith(str(tmp_path))]
    assert "quire-beat" not in {thread.name for thread in threading.enumerate()}
    [home] = (tmp_path / "out.jsonl.quire" / "workers").iterdir()
    JobLock.take(home).release()


def test_a_worker_killed_while_it_tried_the_disk_leaves_a_job_that_goes_on(tmp_path: Path) -> None:
    source, output = write_rows(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    job_dir = tmp_path / "out.jsonl.quire"
    job_dir.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *given, **how: None)
        check_exclusive(job_dir)
    assert len(list(job_dir.iterdir())) == 2
    assert job_directory(make_job(source, output, join=True).options) == job_dir


def test_a_disk_without_exclusive_create_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*given: object) -> None:
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    source = write_rows(tmp_path / "in.jsonl", 2)
    with pytest.raises(InvalidOption, match="needs a disk on which"):
        make_job(source, tmp_path / "out.jsonl", join=True).run(progress=False)
