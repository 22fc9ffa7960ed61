"""What an actor of `quire run --ray` does on its node, without a cluster around it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quire.base.sha256 import sha256_of
from quire.base.version import __version__
from quire.replicas import ray_engine
from quire.replicas.ray_engine import EngineRelay, RayEngine, _with_hashes
from quire.replicas.replica_set import ReplicasLost
from quire.replicas.wire import Message
from tests.jobs import drive
from tests.jobs.driving import is_alive, wait_until


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


OPENING: Message = {"kind": "open", "job": "run", "model": "fake:rows=4", "options": {}}


class ActorDied(Exception):
    actor_init_failed = False


class OneNode:
    """As much of Ray as a replica asks for, with the real relay in this process: a call may be made
    to fail, or to take its time."""

    exceptions = SimpleNamespace(RayActorError=ActorDied)

    def __init__(self) -> None:
        self.fails: Callable[[], None] = lambda: None
        self.relay: EngineRelay | None = None
        self.asked: dict[str, Any] = {}
        self.killed = False

    def remote(self, kind: type[EngineRelay]) -> SimpleNamespace:
        def made(*arguments: Any) -> SimpleNamespace:
            self.relay = kind(*arguments)
            call = SimpleNamespace(remote=lambda messages: partial(self._call, messages))
            return SimpleNamespace(exchange=call)

        def options(**asked: Any) -> SimpleNamespace:
            self.asked = asked
            return SimpleNamespace(remote=made)

        return SimpleNamespace(options=options)

    def _call(self, messages: list[Message]) -> dict[str, Any]:
        self.fails()
        assert self.relay is not None
        return self.relay.exchange(messages)

    def get(self, call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        return call()

    def kill(self, actor: object, *, no_restart: bool) -> None:
        self.killed = no_restart
        if self.relay is not None and self.relay._engine is not None:
            self.relay._engine.end()


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[OneNode]:
    made = OneNode()
    monkeypatch.setitem(sys.modules, "ray", made)  # type: ignore[arg-type]
    monkeypatch.setattr(ray_engine, "CALL_SECONDS", 0.05)
    yield made
    assert wait_until(lambda: "quire-ray" not in {t.name for t in threading.enumerate()}, 10.0)
    if made.relay is not None and made.relay._engine is not None:
        made.relay._engine.end()


@pytest.fixture
def engine(node: OneNode) -> Iterator[RayEngine]:
    made = RayEngine(OPENING, command=drive.command(), hear=lambda line: None, num_gpus=2)
    yield made
    made.end()


def until(engine: RayEngine, kind: str | None) -> list[Message]:
    """What it says until a message of this kind comes; with None, until it ends."""
    said: list[Message] = []

    def heard() -> bool:
        said.extend(engine.poll(0.01))
        return engine.ended if kind is None else any(m["kind"] == kind for m in said)

    assert wait_until(heard, 60.0)
    return said


def test_an_engine_on_a_node_that_is_killed_says_so_and_its_place_is_not_lost(
    node: OneNode, engine: RayEngine
) -> None:
    assert until(engine, "ready")[-1]["capacity"] == 4
    engine.send({"kind": "rows", "rows": [{"row": 7, "prompt": "a"}]})
    [result] = [m for m in until(engine, "result") if m["kind"] == "result"]
    assert result["row"] == 7
    assert node.asked == {
        "num_gpus": 2, "num_cpus": 1, "max_restarts": 0, "max_task_retries": 0
    }  # fmt: skip
    assert node.relay is not None and node.relay._engine is not None
    pid = node.relay._engine.pid
    os.kill(pid, signal.SIGKILL)
    until(engine, None)
    assert (engine.end(), engine.place_lost, engine.is_hung()) == (-signal.SIGKILL, False, False)
    assert node.killed and not is_alive(pid)


@pytest.mark.parametrize("init_failed", [False, True])
def test_an_actor_that_is_gone_has_lost_its_place_unless_it_never_began(
    node: OneNode, engine: RayEngine, init_failed: bool
) -> None:
    until(engine, "ready")

    def fail() -> None:
        error = ActorDied("the node is gone")
        error.actor_init_failed = init_failed
        raise error

    node.fails = fail
    until(engine, None)
    assert engine.place_lost == (not init_failed) and engine.stderr_tail == "the node is gone"
    assert engine.end() == 1


def test_a_node_that_is_silent_is_given_up_and_leaves_no_file_open(
    node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "SILENCE", 0.3)
    before = set(os.listdir("/proc/self/fd"))
    engine = RayEngine(OPENING, command=drive.command(), hear=lambda line: None)
    assert not engine.is_hung()  # the cluster may have no place for it yet
    until(engine, "ready")
    node.fails = lambda: time.sleep(0.8)
    assert wait_until(lambda: bool(engine.poll(0.01)) or engine.is_hung(), 10.0)
    assert engine.place_lost and not engine.ended
    engine.end()
    assert engine.end() == 1  # twice is fine
    assert wait_until(lambda: set(os.listdir("/proc/self/fd")) <= before, 10.0)


def test_without_its_head_a_job_stops(engine: RayEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "_lost", ["10.0.0.1:6379"])
    with pytest.raises(ReplicasLost, match="10.0.0.1:6379, does not answer"):
        engine.poll(0.0)
