"""A job whose files a disk, an editor or a copy spoiled: it goes on to the same bytes, or says in a
typed error which file is in its way."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire.cli.show import _listed
from quire.errors import CorruptJob, JobChanged
from quire.jobs.job import Job
from quire.jobs.store import journal
from quire.jobs.supervise import starting
from tests.jobs.driving import write_rows
from tests.jobs.instant import InstantEngine
from tests.jobs.test_foreign_journal import line, signed

FIRST, SECOND, LAST, ERRORS = *(f"results-0000{i}.jsonl" for i in (1, 2, 5)), "errors.jsonl"
Bytes = Callable[[bytes], bytes]


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "EngineProcess", InstantEngine)
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 1500)
    monkeypatch.setattr(journal, "GROUP", 4)


def run(folder: Path) -> Any:
    job = Job(folder / "in.jsonl", folder / "out.jsonl", model="fake", prompt="{{ text }}")
    return job.run(progress=False)


@pytest.fixture
def stopped(tmp_path: Path) -> tuple[Path, bytes]:
    """A job without its output, and what that was."""
    with open(write_rows(tmp_path / "in.jsonl", 40), "a") as source:
        source.write("no json\n")
    run(tmp_path)
    output, home = tmp_path / "out.jsonl", tmp_path / "out.jsonl.quire"
    written = output.read_bytes()
    output.unlink()
    assert {FIRST, SECOND, LAST, ERRORS} <= {path.name for path in home.iterdir()}
    return tmp_path, written


def halved(data: bytes) -> bytes:
    return data[: len(data) // 2]


def far_row(data: bytes) -> bytes:
    return line(job=json.loads(data.splitlines()[0])["job"], row=5000, key="0:5000")


EDITS: dict[str, tuple[str, Bytes]] = {
    "cut": (FIRST, halved),
    "one byte": (FIRST, lambda data: data[:1]),
    "the end is cut": (LAST, lambda data: data[:-3]),
    "empty": (SECOND, lambda data: b""),
    "a line twice": (FIRST, lambda data: data[: data.index(b"\n") + 1] + data),
    "all twice": (SECOND, lambda data: data * 2),
    "a row that there is none of": (SECOND, lambda data: data + far_row(data)),
    "zeros inside": (FIRST, lambda data: halved(data) + bytes(90) + data[len(data) // 2 + 90 :]),
    "zeros behind": (LAST, lambda data: data + bytes(4096)),
    "zeros alone": (SECOND, lambda data: bytes(len(data))),
    "a wrong checksum": (FIRST, lambda data: data.replace(b'"crc":"', b'"crc":"f', 1)),
    "UTF-16": (FIRST, lambda data: data.decode().encode("utf-16")),
    "EBCDIC": (FIRST, lambda data: data.decode().encode("cp500")),
    "a mark of UTF-8": (FIRST, lambda data: b"\xef\xbb\xbf" + data),
    "ends of Windows": (FIRST, lambda data: data.replace(b"\n", b"\r\n")),
    "ends of old Macs": (FIRST, lambda data: data.replace(b"\n", b"\r")),
    "a byte of Latin-1": (SECOND, lambda data: data.replace(b"row", b"r\xf6w", 1)),
    "gzip": (FIRST, gzip.compress),
    "another order": (FIRST, lambda data: b"".join(data.splitlines(keepends=True)[::-1])),
    "two lines in one": (FIRST, lambda data: data.replace(b"\n", b"", 1)),
    "empty lines": (FIRST, lambda data: data.replace(b"\n", b"\n\n\n")),
    "records of a later version": (LAST, lambda data: signed(b'"v":9,"rows":[1]}') * 3 + data),
    "no lock": ("lock", lambda data: b"\xff\0[[["),
    "a lock of 2^50": ("lock", lambda data: b'{"host":"x","pid":1,"epoch":%d}' % 2**50),
    "a lock of minus 5": ("lock", lambda data: b'{"host":"x","pid":1,"epoch":-5}'),
    "a lock without end": ("lock", lambda data: b'{"host":"x","pid":1,"epoch":1e400}'),
    "failures read as answers": (ERRORS, lambda data: data * 2),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_job_goes_on_to_the_same_bytes(name: str, stopped: tuple[Path, bytes]) -> None:
    (folder, written), (file, edit) = stopped, EDITS[name]
    path = folder / "out.jsonl.quire" / file
    path.write_bytes(edit(path.read_bytes()))
    if file == "lock":
        path.with_name(FIRST).unlink()  # so that something is written in its epoch
    for _ in range(2):  # and it is whole then
        assert run(folder).num_rows == 41
        assert (folder / "out.jsonl").read_bytes() == written
        (folder / "out.jsonl").unlink()


def bared(home: Path) -> None:
    """Of all but what the job is."""
    for path in home.iterdir():
        if path.name != "manifest.json":
            path.unlink()


def test_files_that_are_gone_copied_or_swapped_change_nothing(stopped: tuple[Path, bytes]) -> None:
    folder, written = stopped
    home = folder / "out.jsonl.quire"
    harms: list[Callable[[], Any]] = [
        lambda: shutil.copy(home / FIRST, home / "results-00090.jsonl"),
        lambda: shutil.copy(home / FIRST, home / "results-00000.jsonl"),
        lambda: (home / SECOND).rename(home / "results-00000099.jsonl"),
        *((home / name).unlink for name in (FIRST, LAST, ERRORS)),
        lambda: [path.write_bytes(b"") for path in home.glob("results-*")],
        lambda: bared(home),
    ]
    for harm in harms:
        harm()
        run(folder)
        assert (folder / "out.jsonl").read_bytes() == written
        (folder / "out.jsonl").unlink()


KINDS = ("folder", "pipe", "link to itself")
PLANTED = [(name, kind) for name in ("lock", FIRST, LAST, ERRORS) for kind in KINDS]
PLANTED += [("reserve", "folder"), ("manifest.json", "folder"), ("manifest.json", "pipe")]


@pytest.mark.parametrize(("name", "kind"), PLANTED)
def test_what_is_no_file_is_named(name: str, kind: str, stopped: tuple[Path, bytes]) -> None:
    path = stopped[0] / "out.jsonl.quire" / name
    path.unlink(missing_ok=True)
    plant = {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path)}
    plant.get(kind, lambda: path.symlink_to(path.name))()
    with pytest.raises(CorruptJob, match=f"{name} is (a folder|a link|no regular file)"):
        run(stopped[0])


def test_a_folder_where_the_output_is_written_aside_is_named(stopped: tuple[Path, bytes]) -> None:
    aside = stopped[0] / "out.jsonl.partial"
    aside.mkdir()
    with pytest.raises(CorruptJob, match=r"out.jsonl.partial is a folder"):
        run(stopped[0])
    aside.rmdir()
    run(stopped[0])
    assert (stopped[0] / "out.jsonl").read_bytes() == stopped[1]


@pytest.mark.parametrize("name", [FIRST, LAST, ERRORS])
def test_records_of_another_job_are_named_and_left(name: str, stopped: tuple[Path, bytes]) -> None:
    folder, written = stopped
    other, home = folder / "other", folder / "out.jsonl.quire"
    other.mkdir()
    shutil.copy(folder / "in.jsonl", other)
    run(other)
    theirs = (other / "out.jsonl.quire" / name).read_bytes()
    (home / name).write_bytes(theirs)
    with pytest.raises(CorruptJob, match=f"{name} holds a record of another job, at byte 0"):
        run(folder)
    assert (home / name).read_bytes() == theirs
    assert _listed(home)["status"] == "damaged"
    (home / name).rename(folder / "away")
    run(folder)
    assert (folder / "out.jsonl").read_bytes() == written


def test_a_job_from_before_ids_goes_on(stopped: tuple[Path, bytes]) -> None:
    folder, written = stopped
    home = folder / "out.jsonl.quire"
    for path in (home / ERRORS, *home.glob("results-*")):
        found = [json.loads(each) for each in path.read_bytes().splitlines()]
        path.write_bytes(
            b"".join(line(**{**each, "job": "absent", "crc": "absent"}) for each in found)
        )
    manifest = json.loads((home / "manifest.json").read_text())
    del manifest["id"], manifest["output_file"]
    (home / "manifest.json").write_text(json.dumps({**manifest, "output_bytes": len(written)}))
    (home / SECOND).unlink()
    for _ in range(2):
        assert run(folder).num_rows == 41
        assert (folder / "out.jsonl").read_bytes() == written
        (folder / "out.jsonl").unlink()


def test_a_manifest_of_a_newer_quire_is_called_so(stopped: tuple[Path, bytes]) -> None:
    path = stopped[0] / "out.jsonl.quire" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "depth": 3, "version": "7.0"}))
    with pytest.raises(CorruptJob, match=r"does not know: 'depth'. A newer one .* '7.0'\): go on"):
        run(stopped[0])


@pytest.mark.parametrize(
    "edit", [halved, lambda data: b"", lambda data: data * 2, lambda data: bytes(len(data))]
)
def test_an_output_that_was_spoiled_is_not_taken_for_whole(
    edit: Bytes, stopped: tuple[Path, bytes]
) -> None:
    folder, written = stopped
    output = folder / "out.jsonl"
    run(folder)
    assert run(folder).num_before == 41
    output.write_bytes(edit(written))
    with pytest.raises(JobChanged, match=f"this finished job wrote .{len(written)} bytes, sha256"):
        run(folder)
    output.unlink()
    run(folder)
    assert output.read_bytes() == written
    manifest = folder / "out.jsonl.quire" / "manifest.json"
    older = {**json.loads(manifest.read_text()), "output_file": None}  # that did not say
    manifest.write_text(json.dumps(older))
    assert run(folder).num_before == 41
