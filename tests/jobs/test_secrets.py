"""Tokens are told to the engine and to nothing else: no file, no text, no process's arguments."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from quire.cli import main
from quire.errors import InvalidOption, JobStopped
from quire.jobs.job import Job
from quire.jobs.output.results import StoredRun
from quire.jobs.store import secrets
from quire.jobs.store.manifest import NAME, Manifest
from quire.jobs.supervise import starting, supervisor
from quire.replicas.wire import Message
from quire.report.card import card
from quire.report.page import write_report
from quire.weights.source import _Hub
from tests.jobs.driving import run, run_command, write_rows
from tests.jobs.instant import InstantEngine

TOKEN = "not-for-any-file"
COMMAND = ("quire", "run", "in.jsonl", "--option", f"hf_token={TOKEN}", "-o", "out.jsonl")


class Listening(InstantEngine):
    openings: list[Message] = []

    def __init__(self, opening: Message, **more: Any) -> None:
        self.openings.append(opening)
        super().__init__(opening, **more)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> type[Listening]:
    monkeypatch.setattr(starting, "EngineProcess", Listening)
    Listening.openings = []
    return Listening


def make(folder: Path, token: str | bool = TOKEN, **more: Any) -> Job:
    rows = write_rows(folder / "in.jsonl", 3)
    options = {"hf_token": token, "seed": 3}
    return Job(
        rows, folder / "out.jsonl", model="fake", prompt="{{ text }}", command=COMMAND,
        options=options, **more,
    )  # fmt: skip


def everything_below(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_a_token_reaches_the_engine_and_no_file(engine: type[Listening], tmp_path: Path) -> None:
    job = make(tmp_path)
    job.run(progress=False)
    assert engine.openings[0]["options"] == {"hf_token": TOKEN, "seed": 3}
    stored = StoredRun.open(tmp_path / "out.jsonl")
    write_report([stored], tmp_path / "out.html")
    (tmp_path / "card.md").write_text(card(stored, "me/it", num_rows=3, split="train"))
    assert b'"seed": 3' in everything_below(tmp_path)  # the other options are there
    assert TOKEN.encode() not in everything_below(tmp_path)
    assert TOKEN not in repr(job.options)


def test_another_token_is_the_same_job(engine: type[Listening], tmp_path: Path) -> None:
    make(tmp_path, "first-token").run(progress=False)
    (tmp_path / "out.jsonl").unlink()
    for token in ("second-token", True):
        make(tmp_path, token).run(progress=False)  # no JobChanged


def test_what_an_older_version_stored_is_not_read_back(
    engine: type[Listening], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path).run(progress=False)
    path = tmp_path / "out.jsonl.quire" / NAME
    old = json.loads(path.read_text())
    old["options"]["hf_token"], old["command"] = TOKEN, list(COMMAND)
    path.write_text(json.dumps(old))
    assert TOKEN not in repr(Manifest.load(path.parent))
    with pytest.raises(SystemExit):
        main(["show", str(tmp_path / "out.jsonl")])
    assert TOKEN not in capsys.readouterr().out
    make(tmp_path).run(progress=False)
    (tmp_path / "out.jsonl").unlink()
    make(tmp_path).run(progress=False)
    assert TOKEN.encode() not in path.read_bytes()


def test_a_stop_says_how_to_continue_without_the_token(
    engine: type[Listening], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(self: Any) -> None:
        raise JobStopped("stopped")

    monkeypatch.setattr(supervisor.Supervisor, "run", stop)
    with pytest.raises(JobStopped) as caught:
        make(tmp_path).run(progress=False)
    assert TOKEN not in str(caught.value)
    assert "with HF_TOKEN set to the token:\n  quire run in.jsonl -o out.jsonl" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (["quire", "--option", "hf_token=s3cr3t", "--seed", "1"], ["quire", "--seed", "1"]),
        (["quire", "--option=hf-token=s3cr3t"], ["quire"]),
        (["quire", "--judge-option", "hf_token=s3cr3t"], ["quire"]),
        (["quire", "--option", "seed=1"], ["quire", "--option", "seed=1"]),
        (["x.py", "--api-key", "s3cr3t", "-v"], ["x.py", "--api-key", "...", "-v"]),
        (["x.py", "--db_password=s3cr3t"], ["x.py", "--db_password=..."]),
        (["x.py", "OPENAI_API_KEY=s3cr3t"], ["x.py", "OPENAI_API_KEY=..."]),
        (["x.py", "https://me:s3cr3t@host/a"], ["x.py", "https://...@host/a"]),
        (["x.py", "hf_" + "a" * 34], ["x.py", "..."]),
        (["x.py", "--token"], ["x.py", "--token"]),
        (["quire", "--max-tokens", "6"], ["quire", "--max-tokens", "6"]),
        (["quire", "--param", "stop_token_ids=[1]"], ["quire", "--param", "stop_token_ids=[1]"]),
        (["quire", "-p", "Say {{ token }}"], ["quire", "-p", "Say {{ token }}"]),
    ],
)
def test_a_command_is_stored_without_its_secrets(given: list[str], stored: list[str]) -> None:
    assert list(secrets.described(given)) == stored


@pytest.mark.parametrize("name", ["model", "output"])
def test_an_address_with_a_password_is_refused_without_it(name: str, tmp_path: Path) -> None:
    given = {"model": "fake", "output": str(tmp_path / "out.jsonl")}
    given[name] = "https://me:s3cr3t@host/x.jsonl"
    rows = write_rows(tmp_path / "in.jsonl", 1)
    with pytest.raises(InvalidOption) as caught:
        Job(rows, given["output"], model=given["model"], prompt="{{ text }}")
    assert "s3cr3t" not in str(caught.value) and "here: 'https://...@host" in str(caught.value)


def test_an_error_of_the_hub_does_not_quote_the_token() -> None:
    """As HTTP clients do that refuse a header."""
    hub = _Hub(None, None, f"{TOKEN}\n")
    described = hub._explained("me/it", ValueError(f"Illegal header value b'Bearer {TOKEN}\\n'"))
    assert TOKEN not in described and "Illegal header value b'Bearer ...'" in described


def test_a_printed_config_has_no_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = str(write_rows(tmp_path / "in.jsonl", 1))
    line = ["run", rows, "-o", "o.jsonl", "-m", "m", "-p", "x", "--option", f"hf_token={TOKEN}"]
    monkeypatch.setattr(sys, "argv", ["quire", *line])
    with pytest.raises(SystemExit):
        main([*line, "--option", "seed=4", "--print-config"])
    printed = capsys.readouterr()
    assert TOKEN not in printed.out + printed.err
    assert "[options]\nseed = 4" in printed.out and "set HF_TOKEN instead" in printed.err


def test_the_files_of_a_job_are_for_their_owner_alone(tmp_path: Path) -> None:
    """With a real engine, so that every kind of file is there; the OUTPUT is the user's."""
    rows = write_rows(tmp_path / "in.jsonl", 80, lambda i: "x " * 5000 if i == 3 else f"row {i}")
    before = os.umask(0o022)
    try:
        done = run(run_command("-", tmp_path / "out.jsonl"), input=rows.read_text())
    finally:
        os.umask(before)
    assert done.returncode == 3, done.stderr
    home = tmp_path / "out.jsonl.quire"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in home.iterdir()}
    assert modes.keys() >= {"manifest.json", "lock", "results-00001.jsonl", "errors.jsonl"}
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "out.jsonl").stat().st_mode) == 0o644
