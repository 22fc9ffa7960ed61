"""Files that lie get a typed error, fast, in little memory, and nothing else is opened."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quire.errors import ModelError
from quire.weights.checkpoint import stored_tensors
from quire.weights.gguf_config import spec_from_gguf
from quire.weights.gguf_file import GgufFile
from quire.weights.source import locate
from tests.weights import hostile


def opened(paths: list[Path], *flags: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, *flags, "-m", "tests.weights.open_each"],
        input="\n".join(str(path) for path in paths),
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def gguf_files(cases: dict[str, bytes], folder: Path) -> list[Path]:
    paths = []
    for number, content in enumerate(cases.values()):
        paths.append(folder / f"{number}.gguf")
        paths[-1].write_bytes(content)
    return paths


def model_directories(cases: dict[str, bytes], folder: Path) -> list[Path]:
    paths = []
    for number, content in enumerate(cases.values()):
        paths.append(folder / f"model-{number}")
        paths[-1].mkdir()
        (paths[-1] / "model.safetensors").write_bytes(content)
    return paths


def check(cases: Any, paths: list[Path], error: str, *flags: str) -> None:
    for name, path, found in zip(cases, paths, opened(paths, *flags), strict=True):
        assert found["error"] == error, f"{name}: {found}"
        assert found["seconds"] < 1, name
        assert found["megabytes"] < 64, name
        assert len(found["message"]) < 1000, name
        outside = [o for o in found["opened"] if not o.startswith((str(path), sys.prefix))]
        assert not [o for o in outside if not o.endswith((".py", ".pyc"))], f"{name}: {outside}"


def test_there_are_enough_of_them() -> None:
    groups = (hostile.GGUF, hostile.GGUF_UNSUPPORTED, hostile.SAFETENSORS, hostile.DIRECTORIES)
    assert len(hostile.GGUF) >= 40
    assert len(hostile.SAFETENSORS) >= 30
    assert sum(len(group) for group in groups) >= 100


@pytest.mark.parametrize("flags", [(), ("-O",)], ids=["python", "python -O"])
def test_lying_gguf_files_are_refused(flags: tuple[str, ...], tmp_path: Path) -> None:
    check(hostile.GGUF, gguf_files(hostile.GGUF, tmp_path), "CorruptModel", *flags)


def test_gguf_files_of_other_kinds_are_unsupported(tmp_path: Path) -> None:
    cases = hostile.GGUF_UNSUPPORTED
    check(cases, gguf_files(cases, tmp_path), "UnsupportedModel")


@pytest.mark.parametrize("flags", [(), ("-O",)], ids=["python", "python -O"])
def test_lying_safetensors_headers_are_refused(flags: tuple[str, ...], tmp_path: Path) -> None:
    cases = hostile.SAFETENSORS
    check(cases, model_directories(cases, tmp_path), "CorruptModel", *flags)


def test_safetensors_of_unknown_dtypes_are_unsupported(tmp_path: Path) -> None:
    cases = hostile.SAFETENSORS_UNSUPPORTED
    check(cases, model_directories(cases, tmp_path), "UnsupportedModel")


def test_no_index_or_link_leads_out_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "secret.safetensors").write_bytes(hostile.safetensors_bytes(hostile.one()))
    paths = []
    for number, make in enumerate(hostile.DIRECTORIES.values()):
        paths.append(tmp_path / f"model-{number}")
        paths[-1].mkdir()
        make(paths[-1])
    check(hostile.DIRECTORIES, paths, "CorruptModel")


def test_the_files_the_lies_were_made_from_are_good(tmp_path: Path) -> None:
    """Otherwise every case above could be refused for a reason of its own making."""
    (tmp_path / "good.gguf").write_bytes(hostile.gguf_bytes())
    assert set(GgufFile(tmp_path / "good.gguf").tensors) == {"a", "b"}
    (tmp_path / "model.safetensors").write_bytes(hostile.safetensors_bytes(hostile.one()))
    assert set(stored_tensors(tmp_path)) == {"t"}


def test_a_gguf_cut_anywhere_is_corrupt(tmp_path: Path) -> None:
    whole = hostile.gguf_bytes()
    path = tmp_path / "cut.gguf"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError):
            GgufFile(path)


def test_a_safetensors_file_cut_anywhere_is_corrupt(tmp_path: Path) -> None:
    whole = hostile.safetensors_bytes(hostile.two((0, 4), (4, 16)))
    for length in range(len(whole)):
        (tmp_path / "model.safetensors").write_bytes(whole[:length])
        with pytest.raises(ModelError):
            stored_tensors(tmp_path)


def test_flipped_bytes_give_a_model_or_a_typed_error(tmp_path: Path, long_mode: bool) -> None:
    random_numbers = random.Random(5)
    whole = hostile.gguf_bytes()
    path = tmp_path / "flipped.gguf"
    refused = 0
    rounds = 100_000 if long_mode else 600
    for _ in range(rounds):
        flipped = bytearray(whole)
        for _ in range(random_numbers.randint(1, 4)):
            flipped[random_numbers.randrange(len(flipped))] = random_numbers.choice(
                [0, 1, 127, 128, 255, random_numbers.randrange(256)]
            )
        path.write_bytes(flipped)
        try:
            spec_from_gguf(GgufFile(path))
        except ModelError:
            refused += 1
    assert refused == rounds  # the good file has no token_embd.weight either


def test_a_hub_cache_with_its_links_is_read(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "0123").write_bytes(hostile.safetensors_bytes(hostile.one()))
    (snapshot / "model.safetensors").symlink_to("../../blobs/0123")
    assert set(stored_tensors(snapshot)) == {"t"}
    linked = tmp_path / "linked"
    linked.symlink_to(snapshot)
    assert set(stored_tensors(linked)) == {"t"}
    folder = snapshot / "0_Transformer"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to("../../../blobs/0123")
    assert set(stored_tensors(folder)) == {"t"}
    (tmp_path / "other").write_bytes(b"")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("../../../other")
    with pytest.raises(ModelError, match="outside of the model"):
        stored_tensors(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickled_weights_are_refused_with_the_way_out(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\x80\x02")
    with pytest.raises(ModelError, match=r"safetensors.*save_pretrained"):
        stored_tensors(tmp_path)


def test_weights_in_their_makers_format_alone_are_called_so(tmp_path: Path) -> None:
    (tmp_path / "consolidated.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="makers' own format"):
        stored_tensors(tmp_path)


def test_a_directory_without_weights_is_said_to_have_none(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model.safetensors"):
        stored_tensors(tmp_path)


def test_files_we_may_not_read_are_typed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.safetensors").write_bytes(hostile.safetensors_bytes(hostile.one()))
    (tmp_path / "m.gguf").write_bytes(hostile.gguf_bytes())
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ModelError, match="permission"):
        stored_tensors(tmp_path)
    with pytest.raises(ModelError, match="permission"):
        GgufFile(tmp_path / "m.gguf")
    for path in (tmp_path, tmp_path / "m.gguf", tmp_path / "no" / "owner/name"):
        with pytest.raises(ModelError, match="no permission to look into /"):
            locate(path)
