"""An engine's process on a node of a Ray cluster, as the supervisor sees it.

There is one actor per replica, which Ray never restarts: that is decided here. The actor starts the
same process as a replica on this machine, and passes messages on. A thread makes one long call to
the actor after another, so that nothing here blocks.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from quire.base.launchers import without_launchers
from quire.base.sha256 import sha256_of
from quire.base.version import __version__
from quire.errors import InvalidOption, NotSupported
from quire.replicas.engine_process import EngineProcess
from quire.replicas.replica_set import ReplicasLost
from quire.replicas.wire import Message

SILENCE = 40.0  # seconds without an answer after which an actor that answered before is lost
CALL_SECONDS = 0.5  # the longest wait of one call
HEAD_SECONDS, HEAD_LOOKS = 3.0, 3  # between two checks of the head; failed checks until it is lost
_CONNECT_SECONDS = 5.0
_lost: list[str] = []  # addresses of heads that are lost


def connect(address: str) -> None:
    """Join the cluster; InvalidOption if there is none."""
    host, _, port = address.rpartition(":")
    if "://" in address or (address != "auto" and not (host and port.isdecimal())):
        raise InvalidOption(
            f"--ray {address}: give HOST:PORT of the head, or auto, on a machine of the cluster; "
            "clients over ray:// are not built, because results would go through them twice.",
            parameter="ray",
            value=address,
        )
    ray = _ray()
    if address != "auto":
        try:
            socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise _unreachable(address, error) from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _unreachable(address, error) from None
    head = str(ray.get_runtime_context().gcs_address)
    threading.Thread(target=_watch, args=(head,), name="quire-ray-head", daemon=True).start()


def _watch(head: str) -> None:
    """Notice when the head is lost. A minute later Ray ends this whole process, so the job must be
    stopped, with its results on disk, before that."""
    host, _, port = head.rpartition(":")
    failures = 0
    while failures < HEAD_LOOKS:
        time.sleep(HEAD_SECONDS)
        try:
            socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
            failures = 0
        except OSError:
            failures += 1
    _lost.append(head)


def head_is_lost() -> bool:
    """Whether the head of this process's cluster is lost."""
    return bool(_lost)


def cluster_gpus() -> float:
    return float(_ray().cluster_resources().get("GPU", 0.0))


def _unreachable(address: str, error: BaseException) -> InvalidOption:
    return InvalidOption(
        f"--ray {address}: there is no Ray cluster ({error}). Start one with `ray start --head`, "
        "and give HOST:PORT of its head.",
        parameter="ray",
        value=address,
    )


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise NotSupported("--ray needs Ray: pip install 'quire-llm[ray]'") from None
    return ray


class EngineRelay:
    """The actor: it starts the engine's process on its node and passes messages on."""

    def __init__(self, opening: Message, command: Sequence[str], version: str) -> None:
        self._said: list[str] = []
        self._out: list[Message] = []
        self._engine: EngineProcess | None = None
        if version != __version__:
            self._refuse(f"this node has quire {__version__}, and the driver has {version}")
            return
        self._engine = EngineProcess(
            opening,
            command=command,
            hear=self._said.append,
            environment=without_launchers(os.environ),
        )

    def _refuse(self, text: str) -> None:
        where = socket.gethostname()
        self._out.append(
            {"kind": "failed", "error_type": "usage", "error": f"node {where}: {text}"}
        )

    def exchange(self, messages: list[Message]) -> dict[str, Any]:
        """Pass these messages on, and return what came."""
        engine, found = self._engine, self._out
        self._out = []
        if engine is None:
            return {"messages": found, "said": [], "rows": [], "hung": False, "ended": True}
        for message in messages:
            engine.send(message)
        deadline = time.monotonic() + CALL_SECONDS
        while not found and not engine.ended and time.monotonic() < deadline:
            found += [_with_hashes(message) for message in engine.poll(CALL_SECONDS / 5)]
        said, self._said[:] = list(self._said), []
        rows, hung, ended = engine.board.rows(), engine.is_hung(), engine.ended
        code = engine.end() if ended else None
        if ended:
            self._engine = None
        return {
            "messages": found,
            "said": said,
            "rows": rows,
            "hung": hung,
            "ended": ended,
            "code": code,
        }


def _with_hashes(message: Message) -> Message:
    """Add hashes to the facts about files: inodes of another node mean nothing here."""
    if message["kind"] != "ready":
        return message
    kept = dict(message)
    for name in ("model_files", "tokenizer_files"):
        if name in kept:
            kept[name] = hashed(kept[name])
    return kept


class _Rows:
    """The rows that the engine's board showed last."""

    def __init__(self) -> None:
        self.shown: list[int] = []

    def rows(self) -> list[int]:
        return self.shown


class RayEngine:
    """One process of an engine on the cluster."""

    def __init__(
        self,
        opening: Message,
        *,
        command: Sequence[str],
        hear: Callable[[str], None],
        num_gpus: float = 0,
    ) -> None:
        self.board = _Rows()
        self.ended = self.place_lost = False  # place_lost: the actor is gone, or does not answer
        self.killed = True  # unknown here: the counts of another machine's kernel cannot be read
        self._hear = hear
        self._stderr_tail: list[str] = []
        self._code = 1
        self._outgoing: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._incoming: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._closing = False
        self._heard: float | None = None  # when the actor last answered
        self._hung = False
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._actor: Any = None
        self._needs = {"num_gpus": num_gpus, "num_cpus": 1}
        arguments = (opening, list(command), __version__)
        threading.Thread(target=self._talk, args=arguments, name="quire-ray", daemon=True).start()

    def _talk(self, *arguments: Any) -> None:
        try:
            self._hold_calls(*arguments)
        finally:
            os.close(self._write_end)

    def _hold_calls(self, *arguments: Any) -> None:
        """Make one call after another, until the actor or this engine ends."""
        ray = _ray()
        options = {**self._needs, "max_restarts": 0, "max_task_retries": 0}
        while not self._closing:
            messages: list[Message] = []
            with suppress(queue.Empty):
                while True:
                    messages.append(self._outgoing.get_nowait())
            try:
                if self._actor is None:
                    self._actor = ray.remote(EngineRelay).options(**options).remote(*arguments)
                answer = ray.get(self._actor.exchange.remote(messages))
            except Exception as error:  # for any error of Ray this replica is gone
                answer = {"messages": [], "said": [str(error)], "ended": True, "code": 1}
                # If the actor could not be made, the place is not lost: starting it failed.
                is_actors = isinstance(error, ray.exceptions.RayActorError)
                self.place_lost = is_actors and not getattr(error, "actor_init_failed", False)
            self._incoming.put(answer)
            with suppress(OSError):
                os.write(self._write_end, b".")
            if answer["ended"]:
                return

    def fileno(self) -> int:
        return self._read_end

    def send(self, message: Message) -> None:
        self._outgoing.put(message)

    def poll(self, timeout: float) -> list[Message]:
        if _lost:
            raise ReplicasLost(f"the head of the Ray cluster, {_lost[-1]}, does not answer")
        messages: list[Message] = []
        with suppress(BlockingIOError):
            os.read(self._read_end, 1 << 12)
        try:
            answer = self._incoming.get(timeout > 0, timeout or None)
            while True:
                messages += self._take(answer)
                answer = self._incoming.get_nowait()
        except queue.Empty:
            return messages

    def _take(self, answer: dict[str, Any]) -> list[Message]:
        self._heard = time.monotonic()
        self._hung = bool(answer.get("hung"))
        self.board.shown = answer.get("rows", self.board.shown)
        for line in answer["said"]:
            self._stderr_tail = [*self._stderr_tail[-19:], line]
            if not answer["ended"]:
                self._hear(line)
        if answer["ended"]:
            self.ended, self._code = True, answer.get("code") or 1
        found: list[Message] = answer["messages"]
        return found

    def is_hung(self) -> bool:
        """Whether its engine does not move, or the actor does not answer."""
        if self._heard is not None and time.monotonic() - self._heard > SILENCE:
            self.place_lost = True
        return self._hung or self.place_lost

    def end(self) -> int:
        if not self._closing:
            self._closing = True
            os.close(self._read_end)
            with suppress(Exception):  # Ray may be gone with its cluster
                if self._actor is not None and not _lost:
                    _ray().kill(self._actor, no_restart=True)
        return self._code

    @property
    def stderr_tail(self) -> str:
        return "\n".join(self._stderr_tail)


def hashed(files: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**each, "sha256": each.get("sha256") or sha256_of(Path(each["path"]))} for each in files
    ]
