"""`quire serve`: which key a start makes, keeps and shows; which origins it takes."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from quire.cli import exits
from quire.server.keys import open_keys
from quire.server.serve import Serving
from tests.cli.test_commands import run


@pytest.fixture
def comes_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is ready and then ended, without its engine."""

    def run_it(serving: Serving, on_ready: Callable[[], None]) -> None:
        on_ready()
        serving.socket.close()
        serving._stored.close()

    monkeypatch.setattr(Serving, "run", run_it)


def shown_key(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr()
    lines = (said.out + said.err).splitlines()
    return next(line.split(maxsplit=1)[1] for line in lines if line.startswith("key "))


def test_a_start_that_failed_leaves_no_key_that_nobody_saw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], comes_up: None
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert run("serve", "m", "--data", str(tmp_path), "--port", port) == exits.USAGE
    assert not (tmp_path / "keys").exists()
    capsys.readouterr()
    run("serve", "m", "--data", str(tmp_path), "--port", "0")
    key = shown_key(capsys)
    assert key.startswith("sk-quire-")
    keys, made = open_keys(tmp_path)
    assert keys.id_of(key) and not made


def test_a_key_is_shown_once_and_further_ones_leave_it_valid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], comes_up: None
) -> None:
    start = ("serve", "m", "--data", str(tmp_path), "--port", "0")
    run(*start)
    first = shown_key(capsys)
    run(*start)
    assert shown_key(capsys).startswith("the one made first")
    run(*start, "--new-key")
    second = shown_key(capsys)
    keys, _ = open_keys(tmp_path)
    assert len({keys.id_of(first), keys.id_of(second), None}) == 3


def test_a_server_may_have_more_connections_than_the_soft_limit(
    tmp_path: Path, comes_up: None
) -> None:
    kind = resource.RLIMIT_NOFILE
    soft, hard = resource.getrlimit(kind)
    try:
        resource.setrlimit(kind, (256, hard))
        run("serve", "m", "--data", str(tmp_path), "--port", "0")
        assert resource.getrlimit(kind) == (min(hard, 65_536), hard)
    finally:
        resource.setrlimit(kind, (soft, hard))


@pytest.mark.parametrize("origin", ["app.example", "*", "https://a.b/", "https://a.b/page", "null"])
def test_an_origin_that_no_browser_writes_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], origin: str
) -> None:
    start = ("serve", "m", "--data", str(tmp_path), "--port", "0")
    assert run(*start, "--allowed-origin", origin) == exits.USAGE
    assert "https://NAME" in " ".join(capsys.readouterr().err.split())
