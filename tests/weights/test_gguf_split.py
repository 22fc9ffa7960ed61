"""A GGUF model in parts is the same model; parts that do not belong together are refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from quire.errors import CorruptModel, ModelNotFound, UnsupportedModel
from quire.weights.gguf_file import GgufFile
from quire.weights.gguf_split import part_names
from quire.weights.load import load_weights
from quire.weights.source import locate
from tests.weights.test_source import FakeHub, use
from tests.weights.tiny import tiny_model, write_gguf


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """A model in several files, the first of which has only metadata."""
    (tmp_path / "parts").mkdir()
    write_gguf(tiny_model("llama"), tmp_path / "parts" / "m.gguf", split=7)
    found = sorted((tmp_path / "parts").iterdir())
    assert len(found) >= 4
    return found


def test_a_model_in_parts_is_the_same_model(parts: list[Path], tmp_path: Path) -> None:
    whole = locate(write_gguf(tiny_model("llama"), tmp_path / "whole.gguf"))
    expected = load_weights(whole, whole.spec(), dtype=torch.float32, device="cpu")
    for given in (parts[0], parts[2], parts[0].parent):
        files = locate(given)
        assert files.spec() == whole.spec()
        found = load_weights(files, files.spec(), dtype=torch.float32, device="cpu")
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        norm = files.gguf.raw("output_norm.weight")
        assert norm.tobytes() == whole.gguf.raw("output_norm.weight").tobytes()


def test_a_missing_part_is_named(parts: list[Path]) -> None:
    for number in (0, 2):
        gone = parts[number].rename(parts[number].with_suffix(".away"))
        with pytest.raises(
            ModelNotFound, match=f"1 of its {len(parts)} parts.*{parts[number].name}"
        ):
            GgufFile(parts[1])
        gone.rename(parts[number])


def test_a_part_without_its_name_says_what_names_are(parts: list[Path]) -> None:
    lone = shutil.copy(parts[1], parts[1].parent / "other.gguf")
    with pytest.raises(UnsupportedModel, match=rf"one of {len(parts)} parts.*-00001-of-"):
        GgufFile(lone)


def test_parts_that_do_not_belong_together_are_refused(parts: list[Path]) -> None:
    shutil.copy(parts[1], parts[2])
    with pytest.raises(CorruptModel, match=r"says it is part 2 of .* it is part 3"):
        GgufFile(parts[0])


def test_a_tensor_in_two_parts_is_refused(parts: list[Path]) -> None:
    raw = parts[1].read_bytes()
    names = [name.encode() for name in GgufFile(parts[0]).tensors]
    inside = [name for name in names if name in raw]
    outside = [name for name in names if name not in raw]
    one, other = next((a, b) for a in inside for b in outside if len(a) == len(b))
    parts[1].write_bytes(raw.replace(one, other))
    with pytest.raises(CorruptModel, match=other.decode()):
        GgufFile(parts[0])


def test_a_part_that_is_a_link_to_elsewhere_is_refused(parts: list[Path], tmp_path: Path) -> None:
    parts[1].rename(tmp_path / "elsewhere.gguf")
    parts[1].symlink_to(tmp_path / "elsewhere.gguf")
    with pytest.raises(CorruptModel, match="outside of the model"):
        GgufFile(parts[0])


def test_every_part_is_fetched_from_the_hub(
    parts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    class PartsHub(FakeHub):
        fetched: list[str]

        def hf_hub_download(self, repo: str, file: str, **asked: object) -> str:
            self.fetched.append(file)
            return str(parts[0].parent / Path(file).name)

    hub = PartsHub(parts[0])
    hub.fetched = []
    use(hub, monkeypatch)
    files = locate(f"owner/name:q4/{parts[1].name}")
    assert files.path == parts[0]
    assert hub.fetched == [f"q4/{part.name}" for part in parts]


@pytest.mark.parametrize("name", ["m.gguf", "m-00004-of-00003.gguf", "m-00000-of-00003.gguf", "-"])
def test_other_names_stand_for_themselves(name: str) -> None:
    assert part_names(name) == [name]
