"""What an actor of `quire run --ray` does on its node, without a cluster around it."""

from __future__ import annotations

from pathlib import Path

from quire.base.sha256 import sha256_of
from quire.base.version import __version__
from quire.replicas.ray_engine import EngineRelay, _with_hashes


def test_a_node_with_another_version_is_refused_by_both_numbers() -> None:
    said = EngineRelay({"kind": "open"}, ["false"], "0.0.1").exchange([{"kind": "rows"}])
    [failed] = said["messages"]
    assert said["ended"] and failed["kind"] == "failed" and failed["error_type"] == "usage"
    assert f"has quire {__version__}, and the driver has 0.0.1" in failed["error"]


def test_files_of_a_node_are_known_by_what_they_hold(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode())
    stamps = [{"path": str(tmp_path / name), "size": 1, "stamp": ""} for name in ("a", "b")]
    ready = {"kind": "ready", "model_files": stamps[:1], "tokenizer_files": stamps[1:]}
    found = _with_hashes(ready)
    for name, file in (("model_files", "a"), ("tokenizer_files", "b")):
        assert [each["sha256"] for each in found[name]] == [sha256_of(tmp_path / file)]
    assert "sha256" not in stamps[0] and _with_hashes({"kind": "metrics"}) == {"kind": "metrics"}
