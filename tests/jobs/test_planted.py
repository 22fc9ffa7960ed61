"""Files that somebody left where a job writes, and names that mean two things: what lies
elsewhere stays as it was."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from quire.errors import CorruptJob, InvalidOption
from quire.jobs import job_setup
from quire.jobs.job import Job
from quire.jobs.output.results import StoredRun
from quire.jobs.store.durable import replacing
from quire.jobs.store.lock import JobLock, holder
from quire.jobs.store.place import job_dir_of
from quire.jobs.supervise import starting
from quire.report.export import export_file
from quire.report.page import write_report
from tests.jobs.driving import write_rows
from tests.jobs.instant import InstantEngine
from tests.jobs.stored import stored_job

PRECIOUS = b"somebody's own words\n" * 100


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "EngineProcess", InstantEngine)


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "elsewhere" / "precious.txt"
    path.parent.mkdir()
    path.write_bytes(PRECIOUS)
    return path


def job(source: Any, output: Path, **options: Any) -> Job:
    return Job(source, output, **{"model": "fake", "prompt": "{{ text }}", **options})


def run(source: Any, output: Path, **options: Any) -> None:
    job(source, output, **options).run(progress=False)


@pytest.mark.parametrize("kind", ["link", "hard link"])
@pytest.mark.parametrize(
    "name", ["lock", "results-00001.jsonl", "errors.jsonl", "reserve", "manifest.json.partial"]
)
def test_a_link_among_the_files_of_a_job_is_not_written_through(
    name: str, kind: str, tmp_path: Path, precious: Path
) -> None:
    source, output = write_rows(tmp_path / "in.jsonl", 5), tmp_path / "out.jsonl"
    run(source, output)
    planted = tmp_path / "out.jsonl.quire" / name
    planted.unlink(missing_ok=True)
    (planted.symlink_to if kind == "link" else planted.hardlink_to)(precious)
    output.unlink()
    if name.endswith(".partial"):
        run(source, output)
    else:
        with pytest.raises(CorruptJob, match="a job writes only into plain files of its own"):
            run(source, output)
    assert precious.read_bytes() == PRECIOUS


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "stale"])
def test_what_lies_where_the_output_is_written_aside_is_replaced(
    kind: str, tmp_path: Path, precious: Path
) -> None:
    source, output = write_rows(tmp_path / "in.jsonl", 5), tmp_path / "out.jsonl"
    aside = tmp_path / "out.jsonl.partial"
    plant = {
        "link": lambda: aside.symlink_to(precious),
        "hard link": lambda: aside.hardlink_to(precious),
        "pipe": lambda: os.mkfifo(aside),
        "stale": lambda: aside.write_bytes(b"what a kill left"),
    }
    plant[kind]()
    run(source, output)
    assert precious.read_bytes() == PRECIOUS
    assert len(output.read_text().splitlines()) == 5 and not os.path.lexists(aside)


def test_an_output_that_is_a_link_is_replaced_and_not_followed(
    tmp_path: Path, precious: Path
) -> None:
    output = tmp_path / "out.jsonl"
    source, gone = write_rows(tmp_path / "in.jsonl", 2), tmp_path / "gone"
    for target in (precious, gone):
        output.symlink_to(target)
        with pytest.raises(InvalidOption, match="out.jsonl exists"):
            run(source, output)
        run(source, output, overwrite=True)
        assert not output.is_symlink() and not gone.exists()
        shutil.rmtree(tmp_path / "out.jsonl.quire")
        output.unlink()
    assert precious.read_bytes() == PRECIOUS


def test_two_writers_of_one_file_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    with replacing(path) as first:
        first.write(b"first")
        refused = pytest.raises(BlockingIOError, match="another process is writing it")
        with refused, replacing(path) as second:
            second.write(b"second")
    assert path.read_bytes() == b"first"


def test_a_file_that_was_swapped_while_it_was_written_does_not_take_the_name(
    tmp_path: Path, precious: Path
) -> None:
    path = tmp_path / "out.csv"
    with pytest.raises(FileNotFoundError, match="taken away"), replacing(path) as file:
        file.write(b"ours")
        (tmp_path / "out.csv.partial").unlink()
        (tmp_path / "out.csv.partial").symlink_to(precious)
    assert not path.exists() and precious.read_bytes() == PRECIOUS


def test_a_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out.jsonl.quire").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidOption, match="name the directory itself with --job"):
        run(write_rows(tmp_path / "in.jsonl", 2), tmp_path / "out.jsonl")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_one_output_has_one_job(tmp_path: Path) -> None:
    source, output = write_rows(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    run(source, output, job=str(tmp_path / "first"))
    before = output.read_bytes()
    for given in ({"job": str(tmp_path / "second")}, {}):
        for overwrite in (False, True):
            with pytest.raises(InvalidOption, match="is the OUTPUT of another job, in .*first"):
                run(source, output, prompt="other {{ text }}", overwrite=overwrite, **given)
    assert output.read_bytes() == before
    assert job_dir_of(output) == tmp_path / "first"
    assert StoredRun.open(output).manifest is not None
    run(source, output, job=str(tmp_path / "first"))  # goes on


def test_a_job_elsewhere_does_not_take_the_output_of_the_one_beside_it(tmp_path: Path) -> None:
    source, output = write_rows(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    run(source, output)
    with pytest.raises(InvalidOption, match="is the OUTPUT of another job"):
        run(source, output, job=str(tmp_path / "second"), overwrite=True)


def test_a_second_job_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    """Before either has an output."""
    source, output = write_rows(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    refused: list[BaseException] = []

    def rows() -> Any:
        yield {"text": "a"}

    class Meanwhile(InstantEngine):
        def poll(self, timeout: float) -> Any:
            if not refused:
                refused.append(RuntimeError("not refused"))
                thread = threading.Thread(target=second)
                thread.start()
                thread.join()
            return super().poll(timeout)

    def second() -> None:
        try:
            run(source, output, job=str(tmp_path / "second"))
        except InvalidOption as error:
            refused[0] = error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(starting, "EngineProcess", Meanwhile)
        run(rows(), output, job=str(tmp_path / "first"))
    assert "is the OUTPUT of another job" in str(refused[0])


def test_a_file_that_names_a_job_leads_to_no_other(tmp_path: Path) -> None:
    mine = stored_job(tmp_path / "mine", [{"question": "q"}], ["a"])
    foreign = tmp_path / "foreign.jsonl"
    foreign.write_text("{}")
    pointer = tmp_path / "foreign.jsonl.quire"
    pointer.write_text(json.dumps({"job": str(mine) + ".quire"}))
    with pytest.raises(InvalidOption, match="there is no job at"):
        job_dir_of(foreign)
    for nonsense in ("", "[]", '{"job": 5}', "[" * 100_000, "x" * 100_000):
        pointer.write_text(nonsense)
        with pytest.raises(InvalidOption, match="there is no job at"):
            job_dir_of(foreign)


def test_a_stale_claim_does_not_keep_an_output_for_ever(tmp_path: Path) -> None:
    source, output = write_rows(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    run(source, output, job=str(tmp_path / "first"))
    for path in (tmp_path / "first").iterdir():
        path.unlink()
    (tmp_path / "first").rmdir()
    run(source, output, overwrite=True)
    assert (tmp_path / "out.jsonl.quire" / "manifest.json").is_file()


@pytest.mark.parametrize("option", ["input", "glob", "few_shot", "schema", "partial", "errors"])
def test_nothing_that_a_job_reads_is_written_over(option: str, tmp_path: Path) -> None:
    source = write_rows(tmp_path / "in.jsonl", 3)
    output, read = tmp_path / "out.jsonl", tmp_path / "out.jsonl"
    given: dict[str, Any] = {}
    if option == "partial":
        read = tmp_path / "out.jsonl.partial"
    elif option == "errors":
        read, given = tmp_path / "out.errors.jsonl", {"batch": True, "prompt": None}
    if option == "schema":
        read.write_text('{"type": "object"}')
    else:
        write_rows(read, 2, lambda i: f"answer {i}")
    before = read.read_bytes()
    if option in ("few_shot", "schema"):
        given |= {option: str(read), "few_shot_answer": "text"}
    elif option == "glob":
        source = tmp_path / "*.jsonl"
    else:
        source = read
    if option == "partial":
        given["format"] = "jsonl"
    with pytest.raises(InvalidOption, match="is read by this job, and would be written over"):
        run(source, output, overwrite=True, **given)
    assert read.read_bytes() == before


def test_beginning_again_spares_what_no_job_made_and_what_it_reads(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "manifest.json").write_text('{"manifest_version": 3}')  # a browser's, say
    (project / "thesis.tex").write_text("years of work")
    (project / "notes").mkdir()
    source, output = write_rows(tmp_path / "in.jsonl", 2), tmp_path / "out.jsonl"
    run(source, output, job=str(project), overwrite=True)
    assert (project / "thesis.tex").read_text() == "years of work" and (project / "notes").is_dir()
    spooled = write_rows(project / "input.jsonl", 2)
    with pytest.raises(InvalidOption, match="which --overwrite removes"):
        run(spooled, output, job=str(project), overwrite=True)
    assert spooled.exists()


def test_beginning_again_removes_a_link_and_not_what_it_leads_to(
    tmp_path: Path, precious: Path
) -> None:
    source, output = write_rows(tmp_path / "in.jsonl", 2), tmp_path / "out.jsonl"
    run(source, output)
    (tmp_path / "out.jsonl.quire" / "scores").symlink_to(precious.parent)
    (tmp_path / "out.jsonl.quire" / "results-00002.jsonl").symlink_to(precious)
    run(source, output, overwrite=True)
    assert precious.read_bytes() == PRECIOUS


def test_an_output_is_no_file_of_a_job(tmp_path: Path) -> None:
    done = stored_job(tmp_path, [{"question": "q"}], ["a"])
    inside = Path(f"{done}.quire")
    for name in ("results-00001.jsonl", "manifest.json", "scores.json"):
        with pytest.raises(InvalidOption, match="is one of the files that the job in"):
            run(write_rows(tmp_path / "in.jsonl", 2), inside / name, overwrite=True)


def test_reports_and_exports_spare_what_the_run_is_made_of(tmp_path: Path) -> None:
    output = stored_job(tmp_path, [{"question": "q"}], ["a"])
    output.write_text("the answers\n")
    stored = StoredRun.open(output)
    assert stored.manifest is not None
    source = Path(stored.manifest.inputs[0].path)
    (tmp_path / "link.csv").symlink_to(source)
    job_file = Path(f"{output}.quire") / "results-00001.jsonl"
    for target in (source, output, job_file):
        before = target.read_bytes()
        with pytest.raises(InvalidOption, match="give another name"):
            write_report([stored], target, overwrite=True)
        with pytest.raises(InvalidOption, match="give another name"):
            export_file(stored, target, overwrite=True)
        assert target.read_bytes() == before
    with pytest.raises(InvalidOption, match="give another name"):
        export_file(stored, tmp_path / "link.csv", overwrite=True)


def test_a_report_replaces_a_report_and_asks_before_anything_else(tmp_path: Path) -> None:
    stored = StoredRun.open(stored_job(tmp_path, [{"question": "q"}], ["a"]))
    page, other = tmp_path / "page.html", tmp_path / "other.html"
    write_report([stored], page)
    write_report([stored], page)
    other.write_text("<html>a page of somebody's own</html>")
    with pytest.raises(InvalidOption, match="is no report; --overwrite replaces it"):
        write_report([stored], other)
    assert "somebody's own" in other.read_text()
    write_report([stored], other, overwrite=True)


def test_a_pipe_in_place_of_the_lock_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lock")
    assert holder(tmp_path) is None
    with pytest.raises(CorruptJob, match="is no regular file"):
        JobLock.take(tmp_path)


def test_names_of_a_job_s_files_are_known() -> None:
    for name in ("lock", "results-00001.jsonl", "input.arrow", "manifest.json.partial"):
        assert job_setup.is_own_file(name)
    for name in ("results.jsonl", "input", "thesis.tex", "manifest.json.bak", "lockfile"):
        assert not job_setup.is_own_file(name)
