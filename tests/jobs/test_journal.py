"""The journal on a disk that cuts, flips, fills up and fails."""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.errors import JobLocked, JobStopped
from quire.jobs.store import journal as journal_module
from quire.jobs.store.journal import GROUP, GROUP_SECONDS, RESERVE, Journal
from quire.jobs.store.lock import JobLock
from quire.jobs.store.record import DamagedRecord, ResultRecord, decode, encode
from quire.jobs.store.segments import RecordReader, scan, segment_name


def record(row: int, *, epoch: int = 1, failed: bool = False, text: str = "") -> ResultRecord:
    answer = text or f"answer {row} — “quoted”\n\ud800 {'x' * (row % 7 * 40)}"
    if failed:
        return ResultRecord(row, f"0:{row}", "", epoch, error="bad", error_type="malformed_row")
    return ResultRecord(row, f"0:{row}", f"{row:032x}", epoch, (answer,), ("stop",), 5, 7)


@contextmanager
def opened(job_dir: Path, **options: Any) -> Iterator[Journal]:
    with (
        JobLock.take(job_dir) as lock,
        closing(Journal.open(job_dir, lock, **{"first_epoch": 1, **options})) as journal,
    ):
        yield journal


def rows_in(job_dir: Path) -> dict[int, ResultRecord]:
    found = scan(job_dir, first_epoch=1)
    with RecordReader(job_dir) as reader:
        return {r.row: r for r in (reader.read(p) for p in found.index.positions())}


def filled(job_dir: Path, count: int) -> bytes:
    job_dir.mkdir(exist_ok=True)
    with opened(job_dir) as journal:
        for row in range(count):
            journal.append(record(row))
    return (job_dir / segment_name(1)).read_bytes()


@given(
    text=st.text(st.characters(exclude_categories=())),
    row=st.integers(0, 2**40),
    key=st.text(st.characters(exclude_categories=()), max_size=20),
)
def test_a_record_comes_back_as_it_was(text: str, row: int, key: str) -> None:
    before = ResultRecord(row, key, "c", 3, (text, ""), ("stop", "length"), 1, 2, extra={"t": [1]})
    line = encode(before)
    assert line.count(b"\n") == 1 and line.isascii()
    assert decode(line) == before


def test_a_line_is_the_json_of_its_fields() -> None:
    made = ResultRecord(3, 'k"\x7f\ud800é', "c\\", 2, ("a\n", ""), ("stop", None), 5, 6)  # type: ignore[arg-type]
    fields = {"epoch": 2, "row": 3, "key": made.key, "content": "c\\", "outputs": ["a\n", ""]}
    fields |= {"finish_reasons": ["stop", None], "prompt_tokens": 5, "output_tokens": 6}
    wrong = replace(made, outputs=(), finish_reasons=(), error="\u2028", error_type="x")
    of_wrong = {**fields, "outputs": [], "finish_reasons": [], "error": "\u2028", "error_type": "x"}
    more = replace(made, extra={"t": [1.5, {"é": None}]})
    cases = [(made, fields), (wrong, of_wrong), (more, {**fields, "extra": more.extra})]
    for record_of, expected in cases:
        for job in (None, "id"):
            named = expected if job is None else {"job": job, **expected}
            body = json.dumps(named, separators=(",", ":"))[1:]
            assert encode(record_of, job) == b'{"crc":"%08x",%s\n' % (
                zlib.crc32(body.encode()),
                body.encode(),
            )


def test_every_single_bit_of_a_record_counts() -> None:
    line = encode(record(7))
    for at in range(len(line)):
        for bit in range(8):
            flipped = bytearray(line)
            flipped[at] ^= 1 << bit
            with pytest.raises(DamagedRecord):
                decode(bytes(flipped))


def test_a_journal_cut_at_every_byte_keeps_every_whole_record(
    tmp_path: Path, long_mode: bool
) -> None:
    count = 20 if long_mode else 6
    whole = filled(tmp_path / "whole", count)
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    job_dir = tmp_path / "cut"
    job_dir.mkdir()
    for size in range(len(whole) + 1):
        (job_dir / segment_name(1)).write_bytes(whole[:size])
        kept = sum(end <= size for end in ends)
        found = scan(job_dir, first_epoch=1)
        assert found.index.counts() == (kept, 0) and found.damages == ()
        assert found.ends[1] == (ends[kept - 1] if kept else 0)
        if size % 97 == 0:  # going on behind the cut gives the same journal again
            with opened(job_dir) as journal:
                assert (job_dir / segment_name(1)).stat().st_size == found.ends[1]
                for row in range(kept, count):
                    journal.append(record(row))
            assert (job_dir / segment_name(1)).read_bytes() == whole


def test_what_costs_nothing_is_acknowledged_in_larger_groups(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        for row in range(2 * GROUP):
            assert journal.index.counts() == (0, 0)
            journal.append(record(row, failed=True), group=2 * GROUP)
        assert journal.index.counts() == (0, 2 * GROUP)


def test_no_flipped_bit_makes_a_wrong_row(tmp_path: Path, long_mode: bool) -> None:
    count = 20 if long_mode else 6
    whole = filled(tmp_path, count)
    path, truth = tmp_path / segment_name(1), rows_in(tmp_path)
    for at in range(len(whole)):
        for bit in range(8) if long_mode else (at % 8,):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << bit
            path.write_bytes(flipped)
            found = scan(tmp_path, first_epoch=1)
            ok, failed = found.index.counts()
            assert failed == 0 and count - 2 <= ok < count
            is_tail = found.ends[1] < len(whole)
            assert found.damages or is_tail, "damage was neither told nor cut off"
            if bit == at % 8 and at % 16 == 0:
                assert rows_in(tmp_path).items() <= truth.items()


def test_damage_in_the_middle_is_told_and_its_row_done_again(tmp_path: Path) -> None:
    whole = bytearray(filled(tmp_path, 10))
    at = whole.index(b"answer 4")
    whole[at] ^= 1
    (tmp_path / segment_name(1)).write_bytes(whole)
    with opened(tmp_path) as journal:
        [damage] = journal.damages
        assert damage.start < at < damage.end
        assert [row for row in range(10) if row not in journal.index] == [4]
        journal.append(record(4))
    assert rows_in(tmp_path) == {row: record(row) for row in range(10)}


def test_nothing_is_acknowledged_before_it_is_synced(tmp_path: Path) -> None:
    now = [0.0]
    with opened(tmp_path, clock=lambda: now[0]) as journal:
        journal.append(record(0))
        assert 0 not in journal.index and journal.seconds_left == GROUP_SECONDS
        journal.commit_if_due()
        assert 0 not in journal.index
        now[0] = GROUP_SECONDS
        journal.commit_if_due()
        assert 0 in journal.index and journal.seconds_left is None
        for row in range(1, GROUP):
            journal.append(record(row))
        assert 1 not in journal.index
        journal.append(record(GROUP))
        assert all(row in journal.index for row in range(GROUP + 1))
        journal.append(record(GROUP + 1))
        now[0] += GROUP_SECONDS / 2
        journal.append(record(GROUP + 2))
        assert journal.seconds_left == GROUP_SECONDS / 2  # as long as the oldest has


def test_every_replica_has_a_group_of_its_own(tmp_path: Path) -> None:
    with opened(tmp_path, num_replicas=2) as journal:
        for row in range(2 * GROUP - 1):
            journal.append(record(row, failed=row == 3))
        assert journal.index.counts() == (0, 0)
        journal.append(record(2 * GROUP - 1))
        assert journal.index.counts() == (2 * GROUP - 1, 1)
    with opened(tmp_path) as journal:  # failures are there still, and stay
        assert journal.index.failed(3)
        journal.append(record(5, failed=True))
    assert scan(tmp_path, first_epoch=1).index.failed(3)


def test_a_success_wins_over_a_failure_and_the_later_one_over_the_earlier(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.append(record(0, failed=True))
        journal.append(record(1, text="first"))
        journal.append(record(1, text="second"))
        journal.append(record(2, text="good"))
        journal.append(record(2, failed=True))
        journal.commit()
        journal.append(record(0, text="at last"))
        journal.commit()
        journal.append(record(2, failed=True))
        journal.commit()
        assert not journal.index.failed(2)  # as whoever opens it next will say
    found = rows_in(tmp_path)
    assert [found[row].outputs for row in range(3)] == [("at last",), ("second",), ("good",)]
    with opened(tmp_path, retry=True) as journal:
        assert all(row in journal.index for row in range(3))


def test_segments_are_rolled_and_read_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 4096)
    filled(tmp_path, 300)
    assert (tmp_path / segment_name(3)).exists()
    assert rows_in(tmp_path) == {row: record(row) for row in range(300)}
    with opened(tmp_path) as journal:
        journal.append(record(300))
    assert len(rows_in(tmp_path)) == 301


@pytest.mark.parametrize(("error", "said"), [(errno.ENOSPC, "full"), (errno.EIO, "every finished")])
def test_a_disk_without_room_for_a_further_file_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, said: str
) -> None:
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 4096)
    real = journal_module.open_own

    def failing(path: Path, flags: int) -> int:
        if path.name == segment_name(2):
            raise OSError(error, os.strerror(error))
        return real(path, flags)

    monkeypatch.setattr(journal_module, "open_own", failing)
    with pytest.raises((JobStopped, OSError), match=said), opened(tmp_path) as journal:
        for row in range(300):
            journal.append(record(row))
    monkeypatch.undo()
    assert sorted(rows_in(tmp_path)) == list(range(GROUP))


def test_an_epoch_never_comes_twice(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.append(record(0, epoch=41))
        journal.append(record(1, epoch=40))
    (tmp_path / "lock").write_bytes(b"")  # as a power cut may leave it
    lock = JobLock.take(tmp_path)
    assert lock.epoch == 1
    journal = Journal.open(tmp_path, lock, first_epoch=1)
    assert lock.epoch == 42
    journal.close()
    lock.release()


class FailingCalls:
    """Makes the n-th of some calls fail, as a disk would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nth: int, error: int | None) -> None:
        self.left, self.error, self.fired = nth, error, False
        for name in ("pwrite", "fdatasync", "ftruncate", "fsync"):
            monkeypatch.setattr(os, name, self._failing(getattr(os, name)))

    def _failing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any) -> Any:
            self.left -= 1
            if self.left != 0:
                return call(*args)
            self.fired = True
            if self.error is not None:
                raise OSError(self.error, os.strerror(self.error))
            if call.__name__ == "pwrite":  # a short write: half of it
                return call(args[0], bytes(args[1])[: max(1, len(args[1]) // 2)], args[2])
            return call(*args)

        return made


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT, None])
def test_a_call_that_fails_loses_nothing_that_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int | None, long_mode: bool
) -> None:
    total = 500
    for nth in range(1, 60 if long_mode else 12):
        job_dir = tmp_path / str(nth)
        job_dir.mkdir()
        acknowledged: set[int] = set()
        with monkeypatch.context() as patch:
            failing = FailingCalls(patch, nth, error)
            try:
                with opened(job_dir) as journal:
                    for row in range(total):
                        journal.append(record(row, failed=row % 10 == 9))
                        if row % GROUP == 0:
                            acknowledged = {r for r in range(row) if r in journal.index}
            except (JobStopped, OSError) as stopped:
                assert failing.fired
                full = error in (errno.ENOSPC, errno.EDQUOT)
                if isinstance(stopped, JobStopped):
                    assert full and "full" in str(stopped)
                else:
                    assert stopped.errno == error
            else:
                assert error is None or not failing.fired or len(rows_in(job_dir)) == total
        assert acknowledged <= rows_in(job_dir).keys()
        with opened(job_dir) as journal:
            for row in range(total):
                if row not in journal.index:
                    journal.append(record(row, failed=row % 10 == 9))
        assert len(rows_in(job_dir)) == total


def test_a_full_disk_still_takes_the_last_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite

    def full(file: int, data: Any, at: int) -> int:
        if (tmp_path / RESERVE).exists() and at > 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, data, at)

    with pytest.raises(JobStopped, match="No finished row was lost"), opened(tmp_path) as journal:
        assert (tmp_path / RESERVE).stat().st_size > 0
        for row in range(GROUP):
            journal.append(record(row))
        monkeypatch.setattr(os, "pwrite", full)
        for row in range(GROUP, 2 * GROUP):
            journal.append(record(row))
    monkeypatch.undo()
    assert len(rows_in(tmp_path)) == 2 * GROUP


def test_an_error_says_from_which_row_on_results_are_uncertain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def broken(file: int) -> None:
        asked.append(file)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(OSError, match="2 rows from 7 on"), opened(tmp_path) as journal:
        monkeypatch.setattr(os, "fdatasync", broken)
        journal.append(record(7))
        journal.append(record(8))
        journal.commit()
    assert len(asked) == 1  # nothing more is written behind what may or may not be there


def test_a_writer_whose_lock_was_taken_away_writes_nothing_more(tmp_path: Path) -> None:
    lock = JobLock.take(tmp_path)
    journal = Journal.open(tmp_path, lock, first_epoch=1)
    journal.append(record(0))
    (tmp_path / "lock").unlink()
    other = JobLock.take(tmp_path)
    with pytest.raises(JobLocked, match="removed"):
        journal.commit()
    assert rows_in(tmp_path) == {}
    other.release()
    with pytest.raises(JobLocked):
        journal.close()


@settings(max_examples=40)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(0, 30)),
            st.tuples(st.just("fail"), st.integers(0, 30)),
            st.tuples(st.just("commit"), st.just(0)),
            st.tuples(st.just("crash"), st.integers(0, 400)),
        ),
        max_size=30,
    )
)
def test_whatever_happens_the_acknowledged_rows_are_there(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, int]]
) -> None:
    """A crash may leave any part of what was written but not yet synced."""
    job_dir = tmp_path_factory.mktemp("journal")
    acknowledged: set[int] = set()
    lock = JobLock.take(job_dir)
    journal = Journal.open(job_dir, lock, first_epoch=1)
    for what, number in events:
        if what == "append":
            journal.append(record(number))
        elif what == "fail":
            journal.append(record(number, failed=True))
        elif what == "commit":
            journal.commit()
            acknowledged |= {row for row in range(31) if row in journal.index}
        else:
            lines = b"".join(line for _, line in journal._results.pending)
            with open(job_dir / segment_name(1), "ab") as file:
                file.write(lines[:number])
            lock.release()
            lock = JobLock.take(job_dir)
            journal = Journal.open(job_dir, lock, first_epoch=1)
            assert {row for row in range(31) if row in journal.index} >= acknowledged
    lock.release()


def test_a_lock_that_was_lost_begins_in_an_epoch_that_is_read(tmp_path: Path) -> None:
    """A job that changed is of a later epoch than records that are not there any more."""
    with opened(tmp_path, first_epoch=3) as journal:
        journal.append(record(0, epoch=journal._lock.epoch))
    assert scan(tmp_path, first_epoch=3).index.counts() == (1, 0)
