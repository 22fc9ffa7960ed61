"""The plug is pulled after every single call that changes a file, and everything that was not
synced is lost, torn, zeroed or reordered: the same command goes on, asks for no acknowledged row
again, and the output has the bytes that it has without a cut."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from quire.errors import InvalidOption, JobChanged
from quire.jobs.job import Job
from quire.jobs.store import journal as journal_module
from quire.jobs.store.journal import Journal
from tests.jobs.driving import write_rows
from tests.jobs.instant import InstantEngine
from tests.jobs.power import Recorder, Tree, read_tree, recording, states, whole, write_tree

ROWS = 40


@pytest.fixture(autouse=True)
def instant(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Groups of five rows and segments of a few groups, answered at once."""
    monkeypatch.setattr("quire.jobs.supervise.starting.EngineProcess", InstantEngine)
    monkeypatch.setattr(journal_module, "GROUP", 5)
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 2000)
    monkeypatch.setattr(journal_module, "RESERVE_BYTES", 512)
    yield


def text_of(row: int) -> str:
    return f"bad row {row}" if row % 7 == 3 else f"row {row}"


def job(source: Path, home: Path, **options: Any) -> Job:
    output = home / f"out.{options.pop('ending', 'jsonl')}"
    return Job(source, output, model="m", prompt="{{ text }}", command=["quire"], **options)


def recorded(home: Path, make: Callable[[], Job]) -> Recorder:
    """The run of a job; every commit marks the rows that were acknowledged by then."""
    with recording(home) as recorder, pytest.MonkeyPatch.context() as patch:
        real = Journal.commit

        def commit(self: Journal) -> None:
            real(self)
            recorder.mark({row for row in range(ROWS) if row in self.index})

        patch.setattr(Journal, "commit", commit)
        make().run(progress=False)
        recorder.mark("finished")
    assert whole(recorder) == read_tree(home), "the recorder has missed something"
    return recorder


class Replay:
    """Puts states on disk to go on from: in the long mode all of them, else a part."""

    def __init__(self, home: Path, *, every: int, num_random: int) -> None:
        self.home, self._every, self._num_random = home, every, num_random
        self.num_states = 0

    def states(self, recorder: Recorder) -> Iterator[tuple[Tree, list[Any], str]]:
        for tree, marks, where in islice(states(recorder, self._num_random), 0, None, self._every):
            shutil.rmtree(self.home, ignore_errors=True)
            write_tree(self.home, tree)
            InstantEngine.asked.clear()
            self.num_states += 1
            yield tree, marks, where
        print(f"{self.num_states} states after {len(recorder.events)} events")


@pytest.fixture
def replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long_mode: bool) -> Replay:
    for name in ("fsync", "fdatasync"):  # of what is thrown away at once
        monkeypatch.setattr(os, name, lambda number: None)
    home = tmp_path / "cut"
    return (
        Replay(home, every=1, num_random=12) if long_mode else Replay(home, every=5, num_random=1)
    )


def acknowledged(marks: list[Any]) -> set[int]:
    rows = [mark for mark in marks if isinstance(mark, set)]
    return rows[-1] if rows else set()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_cut_anywhere_loses_nothing(
    tmp_path: Path, home: Path, replay: Replay, ending: str
) -> None:
    source = write_rows(tmp_path / "in.jsonl", ROWS, text_of)
    recorder = recorded(home, lambda: job(source, home, ending=ending))
    calm = (home / f"out.{ending}").read_bytes()
    assert len(list(home.glob("*.quire/results-*"))) >= 3, "no segment was rolled"
    for tree, marks, where in replay.states(recorder):
        found = tree.get(f"out.{ending}")
        assert found in (None, calm), f"half an output after {where}"
        assert found == calm or "finished" not in marks, f"no output after {where}"
        job(source, replay.home, ending=ending).run(progress=False)
        assert (replay.home / f"out.{ending}").read_bytes() == calm, where
        assert not acknowledged(marks) & set(InstantEngine.asked), where


def test_a_cut_while_it_recovers_from_a_cut(tmp_path: Path, home: Path, replay: Replay) -> None:
    source = write_rows(tmp_path / "in.jsonl", ROWS, text_of)
    first = recorded(home, lambda: job(source, home))
    calm = (home / "out.jsonl").read_bytes()
    torn = [tree for tree, marks, _ in states(first, 1) if 10 <= len(acknowledged(marks)) < ROWS]
    for i, begun in enumerate(random.Random(2).sample(torn, 3)):
        again = tmp_path / f"again-{i}"
        write_tree(again, begun)
        recorder = recorded(again, lambda: job(source, again))  # noqa: B023
        for _, marks, where in replay.states(recorder):
            job(source, replay.home).run(progress=False)
            assert (replay.home / "out.jsonl").read_bytes() == calm, where
            assert not acknowledged(marks) & set(InstantEngine.asked), where


@pytest.mark.parametrize("option", ["overwrite", "reuse"])
def test_a_cut_while_a_job_becomes_another_mixes_nothing(
    tmp_path: Path, home: Path, replay: Replay, option: str
) -> None:
    """The input changed. The same command gives the new output, and one that does not know of the
    change gives it too or refuses; never are rows of the old job among those of the new."""
    source = write_rows(tmp_path / "in.jsonl", ROWS, text_of)
    job(source, home).run(progress=False)
    write_rows(source, ROWS, lambda i: text_of(i) if i % 2 else f"new {i}")
    recorder = recorded(home, lambda: job(source, home, **{option: True}))
    calm = (home / "out.jsonl").read_bytes()
    assert calm.count(b'"new ') == ROWS // 2
    for tree, _, where in replay.states(recorder):
        job(source, replay.home, **{option: True}).run(progress=False)
        assert (replay.home / "out.jsonl").read_bytes() == calm, where
        shutil.rmtree(replay.home)
        write_tree(replay.home, tree)
        try:
            job(source, replay.home).run(progress=False)
        except (InvalidOption, JobChanged) as refused:
            assert "--overwrite" in str(refused), where
        else:
            assert (replay.home / "out.jsonl").read_bytes() == calm, where
