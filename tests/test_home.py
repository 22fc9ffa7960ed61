"""Who can put files where quire keeps its own, and that theirs are not taken for ours."""

from __future__ import annotations

import dataclasses
import grp
import json
import os
import pwd
from pathlib import Path

import pytest

from quire.base import home
from quire.base.home import add_entry, open_ours, read_entries, why_not_private
from quire.base.sha256 import sha256_of
from quire.executor.precompile import parent as compiling
from quire.weights import pull

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
STRANGER = 54321


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("QUIRE_HOME", str(folder))
    return folder


def test_a_folder_of_ones_own_is_private_also_before_it_is_there(private: Path) -> None:
    assert why_not_private(private) is None
    assert why_not_private(private / "not" / "yet") is None


@pytest.mark.parametrize("mode", [0o777, 0o702, 0o1777])
def test_a_folder_that_everybody_writes_to_is_not(mode: int, private: Path) -> None:
    private.chmod(mode)
    assert "can be written by everybody" in (why_not_private(private) or "")


def test_above_it_a_folder_like_tmp_is_fine_and_any_other_open_one_is_not(private: Path) -> None:
    (private / "below").mkdir()
    private.chmod(0o1777)
    assert why_not_private(private / "below") is None
    private.chmod(0o777)
    assert why_not_private(private / "below") is not None


def test_the_group_that_a_user_has_alone_may_write(
    private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private.chmod(0o770)
    name, group = pwd.getpwuid(os.getuid()).pw_name, private.stat().st_gid
    for gr_name, members, is_private in [
        (name, [], True),
        (name, [name], True),
        (name, [name, "other"], False),
        ("users", [], False),
    ]:
        found = grp.struct_group((gr_name, "x", group, members))
        monkeypatch.setattr(grp, "getgrgid", lambda number, found=found: found)
        assert (why_not_private(private) is None) == is_private, (gr_name, members)


@needs_root
def test_what_belongs_to_somebody_else_is_not_private(private: Path, tmp_path: Path) -> None:
    os.chown(private, STRANGER, STRANGER)
    assert why_not_private(private) == f"{private} belongs to another user ({STRANGER})"
    link = tmp_path / "link"
    link.symlink_to(private)
    assert why_not_private(link) is not None


@needs_root
def test_a_link_of_somebody_else_is_not_followed(private: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(private)
    assert why_not_private(link / "native") is None
    os.lchown(link, STRANGER, STRANGER)
    assert "belongs to another user" in (why_not_private(link / "native") or "")


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert why_not_private(tmp_path / "a" / "x") is not None


def test_only_files_of_ones_own_are_opened(private: Path) -> None:
    (private / "file").write_text("mine")
    with open_ours(private / "file") as file:
        assert file.read() == b"mine"
    (private / "link").symlink_to(private / "file")
    os.mkfifo(private / "pipe")
    for name in ("link", "pipe", "absent", "."):
        with pytest.raises(OSError):
            open_ours(private / name)
    (private / "file").chmod(0o602)
    with pytest.raises(PermissionError, match="can be written by everybody"):
        open_ours(private / "file")


def test_entries_are_kept_and_those_of_others_are_not_believed(private: Path) -> None:
    add_entry("probe.json", "a", 1)
    add_entry("probe.json", "b", 2)
    assert read_entries("probe.json") == {"a": 1, "b": 2}
    assert (private / "probe.json").stat().st_mode & 0o777 == 0o600
    (private / "probe.json").chmod(0o606)
    assert read_entries("probe.json") == {}
    for nonsense in ("[1]", "{", "[" * 100_000, json.dumps({"a": "x" * (2 << 20)})):
        (private / "probe.json").write_text(nonsense)
        (private / "probe.json").chmod(0o600)
        assert read_entries("probe.json") == {}


def test_keeping_writes_through_no_link(private: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (private / f"probe.{os.getpid()}").symlink_to(precious)
    (private / "probe.json").symlink_to(precious)
    add_entry("probe.json", "a", 1)
    assert precious.read_text() == "mine"
    assert read_entries("probe.json") == {"a": 1}


def test_a_model_that_others_may_have_put_there_is_hashed(
    private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alias = dataclasses.replace(pull.ALIASES["smollm2"], name="small", size=4)
    path = pull.path_of(alias)
    path.parent.mkdir()
    path.write_bytes(b"evil")
    assert pull.cached(alias) == path  # by its size: nobody else can have written it
    path.parent.chmod(0o777)
    assert pull.cached(alias) is None
    right = dataclasses.replace(alias, sha256=sha256_of(path))
    assert pull.cached(right) == path


def test_triton_loads_code_from_private_folders_alone(
    private: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    compiling.keep_triton_private()
    assert os.environ["TRITON_CACHE_DIR"] == str(cache)
    cache.chmod(0o777)
    compiling.keep_triton_private()
    assert os.environ["TRITON_CACHE_DIR"] == str(private / "triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    private.chmod(0o777)
    compiling.keep_triton_private()
    own = Path(os.environ["TRITON_CACHE_DIR"])
    assert own.is_dir() and home.why_not_private(own) is None
    own.rmdir()
