"""A disk that loses power: what a job does to its files is recorded, and every state that a cut
may leave can be made again.

The rules are harsher than any file system's: until its file was synced, a write may be there, be
missing, be cut anywhere or be zeros; until its directory was synced, a name may have appeared,
changed or gone, or not, each by itself.
"""

from __future__ import annotations

import builtins
import io
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quire.jobs.store import durable

Tree = dict[str, bytes | None]  # path below the root -> content; None is a directory
_FOLDER = -1  # the node of every directory
_BEGUN = range(-2, -1_000_000, -1)  # the nodes of files that were there before


@dataclass(frozen=True)
class Event:
    """Something that happened to a file (`node`), or to a name in a directory."""

    kind: str  # write, truncate, sync · set, unset, move, sync_names · mark
    node: int = 0
    at: int = 0
    data: bytes = b""
    path: str = ""
    to: str = ""
    mark: Any = None


@dataclass
class Recorder:
    """Writes go through to the real files below `root`, and are remembered."""

    root: Path
    begun: Tree = field(default_factory=dict)  # what was there before
    events: list[Event] = field(default_factory=list)
    _nodes: dict[tuple[int, int], int] = field(default_factory=dict)
    _open: dict[int, tuple[int, str]] = field(default_factory=dict)  # descriptor -> node, path

    def mark(self, what: Any) -> None:
        self.events.append(Event("mark", mark=what))

    def inside(self, path: Any) -> str | None:
        """The path below the root; None if it is elsewhere."""
        if isinstance(path, int):
            return None
        found = Path(os.path.abspath(os.fspath(path)))
        return str(found.relative_to(self.root)) if found.is_relative_to(self.root) else None

    def opened(self, number: int, path: str, *, is_new: bool) -> None:
        found = os.fstat(number)
        key = (found.st_dev, found.st_ino)
        if is_new:  # the system may give a number again that a removed file had
            self._nodes[key] = len(self.events) + 1
            self.events.append(Event("set", self._nodes[key], path=path))
        self._open[number] = self._nodes[key], path

    def opened_folder(self, number: int, path: str) -> None:
        self._open[number] = _FOLDER, path

    def closed(self, number: int) -> None:
        self._open.pop(number, None)

    def synced(self, number: int) -> None:
        if number in self._open:
            node, path = self._open[number]
            made = Event("sync_names", path=path) if node == _FOLDER else Event("sync", node)
            self.events.append(made)

    def begin(self) -> None:
        """Take note of what is there."""
        self.begun = read_tree(self.root)
        for node, path in zip(_BEGUN, self.begun, strict=False):
            found = os.stat(self.root / path)
            self._nodes[found.st_dev, found.st_ino] = node

    def node(self, number: int) -> int | None:
        found = self._open.get(number)
        return None if found is None else found[0]


class _Raw(io.RawIOBase):
    """What `open` returns for a file that is written: every write is a call of os.write."""

    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        return self._number

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return os.lseek(self._number, offset, whence)

    def write(self, data: Any) -> int:
        return os.write(self._number, data)

    def close(self) -> None:
        if not self.closed:
            os.close(self._number)
        super().close()


@contextmanager
def recording(root: Path) -> Iterator[Recorder]:
    recorder = Recorder(root.resolve())
    recorder.begin()
    with pytest.MonkeyPatch.context() as patch:
        calls = _Calls(recorder)
        for name in calls.NAMES:
            patch.setattr(os, name, getattr(calls, name))
        recorded = _open(recorder, builtins.open)
        patch.setattr(builtins, "open", recorded)
        patch.setattr(durable, "_NamedFile", partial(recorded, buffering=0))
        yield recorder


def _open(recorder: Recorder, real: Callable[..., Any]) -> Callable[..., Any]:
    modes = {"wb": os.O_CREAT | os.O_TRUNC | os.O_WRONLY, "ab": os.O_CREAT | os.O_APPEND}

    def made(path: Any, mode: str = "r", buffering: int = -1, **more: Any) -> Any:
        if mode not in modes or recorder.inside(path) is None:
            return real(path, mode, buffering, **more)
        flags = modes[mode] | os.O_WRONLY | os.O_CLOEXEC
        raw = _Raw(more["opener"](path, flags) if "opener" in more else os.open(path, flags, 0o644))
        return raw if buffering == 0 else io.BufferedWriter(raw)

    return made


class _Calls:
    """Each call of `os` that changes files, with a note taken of it; nothing is really synced."""

    NAMES = (
        *("open", "close", "pwrite", "write", "ftruncate", "posix_fallocate", "fsync"),
        *("fdatasync", "replace", "unlink", "mkdir"),
    )

    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self._events = recorder, recorder.events
        self._real = {name: getattr(os, name) for name in self.NAMES}

    def _note(self, kind: str, number: int, at: int, data: bytes = b"") -> None:
        if (node := self._recorder.node(number)) is not None:
            self._events.append(Event(kind, node, at, data))

    def open(self, path: Any, flags: int, *more: Any, **named: Any) -> int:
        inside = None if named else self._recorder.inside(path)
        is_new = inside is not None and not os.path.exists(path)
        number: int = self._real["open"](path, flags, *more, **named)
        if inside is not None and os.path.isdir(path):
            self._recorder.opened_folder(number, inside)
        elif inside is not None and flags & (os.O_WRONLY | os.O_RDWR):
            self._recorder.opened(number, inside, is_new=is_new)
            if flags & os.O_TRUNC:
                self._note("truncate", number, 0)
        return number

    def close(self, number: int) -> None:
        self._recorder.closed(number)
        self._real["close"](number)

    def pwrite(self, number: int, data: Any, at: int) -> int:
        size: int = self._real["pwrite"](number, data, at)
        self._note("write", number, at, bytes(data)[:size])
        return size

    def write(self, number: int, data: Any) -> int:
        size: int = self._real["write"](number, data)
        if self._recorder.node(number) is not None:
            self._note("write", number, os.lseek(number, 0, os.SEEK_CUR) - size, bytes(data)[:size])
        return size

    def ftruncate(self, number: int, size: int) -> None:
        self._real["ftruncate"](number, size)
        self._note("truncate", number, size)

    def posix_fallocate(self, number: int, at: int, size: int) -> None:
        self._real["posix_fallocate"](number, at, size)
        self._note("write", number, at, bytes(size))

    def fsync(self, number: int) -> None:
        self._recorder.synced(number)

    fdatasync = fsync

    def replace(self, old: Any, new: Any) -> None:
        self._real["replace"](old, new)
        before, after = self._recorder.inside(old), self._recorder.inside(new)
        if before is not None and after is not None:
            self._events.append(Event("move", path=before, to=after))

    def unlink(self, path: Any, **named: Any) -> None:
        self._real["unlink"](path, **named)
        if not named and (inside := self._recorder.inside(path)) is not None:
            self._events.append(Event("unset", path=inside))

    def mkdir(self, path: Any, *more: Any, **named: Any) -> None:
        self._real["mkdir"](path, *more, **named)
        if (inside := self._recorder.inside(path)) is not None:
            self._events.append(Event("set", _FOLDER, path=inside))


class Disk:
    """Files and names as they are now, and as the disk is bound to remember them."""

    def __init__(self, found: Tree | None = None) -> None:
        self._safe: dict[int, bytes] = {}  # node -> what was synced
        self._loose: dict[int, list[Event]] = {}  # what was not, in order
        self._names: dict[str, int] = {}
        self._loose_names: list[Event] = []
        for node, (path, content) in zip(_BEGUN, (found or {}).items(), strict=False):
            self._names[path] = _FOLDER if content is None else node
            self._safe[node] = content or b""

    def take(self, event: Event) -> None:
        if event.kind == "mark":
            return
        if event.kind == "sync":
            self._safe[event.node] = self._content(event.node, _everything)
            self._loose[event.node] = []
        elif event.kind == "sync_names":
            there = [e for e in self._loose_names if _directory(e) == event.path]
            self._loose_names = [e for e in self._loose_names if e not in there]
            for each in there:
                _rename(self._names, each)
        elif event.kind in ("write", "truncate"):
            self._loose.setdefault(event.node, []).append(event)
        else:
            self._loose_names.append(event)

    def cut(self, how: Callable[[Event], Event | None]) -> Tree:
        """What is there after a power cut; `how` says what is left of what was not synced."""
        names = dict(self._names)
        for event in self._loose_names:
            if (left := how(event)) is not None:
                _rename(names, left)
        return {
            path: None if node == _FOLDER else self._content(node, how)
            for path, node in sorted(names.items())
            if all(str(parent) in names for parent in Path(path).parents if str(parent) != ".")
        }

    def _content(self, node: int, how: Callable[[Event], Event | None]) -> bytes:
        content = bytearray(self._safe.get(node, b""))
        for event in self._loose.get(node, ()):
            left = how(event)
            if left is None:
                continue
            if left.kind == "truncate":
                del content[left.at :]
                content.extend(bytes(left.at - len(content)))
            else:
                content.extend(bytes(max(0, left.at - len(content))))
                content[left.at : left.at + len(left.data)] = left.data
        return bytes(content)


def _directory(event: Event) -> str:
    return str(Path(event.path).parent)


def _rename(names: dict[str, int], event: Event) -> None:
    if event.kind == "set":
        names[event.path] = event.node
    elif event.kind == "unset":
        names.pop(event.path, None)
    elif event.path in names:
        names[event.to] = names.pop(event.path)


def _everything(event: Event) -> Event | None:
    return event


def _nothing(event: Event) -> Event | None:
    return None


def _names_only(event: Event) -> Event | None:
    return None if event.kind in ("write", "truncate") else event


def _data_only(event: Event) -> Event | None:
    return event if event.kind in ("write", "truncate") else None


def _zeros(event: Event) -> Event | None:
    if event.kind != "write":
        return event
    return Event("write", event.node, event.at, bytes(len(event.data)))


class _Some:
    """Each thing by itself: there, missing, cut, or zeros from some byte on."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def __call__(self, event: Event) -> Event | None:
        drawn = self._rng.random()
        if event.kind != "write":
            return event if drawn < 0.6 else None
        size = self._rng.randrange(len(event.data) + 1)
        if drawn < 0.3:
            return event
        if drawn < 0.5:
            return None
        rest = bytes(len(event.data) - size) if drawn < 0.7 else b""
        return Event("write", event.node, event.at, event.data[:size] + rest)


PLAIN = (_everything, _nothing, _names_only, _data_only, _zeros)


def states(recorder: Recorder, num_random: int) -> Iterator[tuple[Tree, list[Any], str]]:
    """After every event: each state that a cut there may leave, what was marked before it, and
    its name."""
    disk, marks = Disk(recorder.begun), list[Any]()
    for at, event in enumerate(recorder.events):
        disk.take(event)
        if event.kind == "mark":
            marks.append(event.mark)
        seen: list[Tree] = []
        drawn = (_Some(1000 * at + i) for i in range(num_random))
        for i, how in enumerate((*PLAIN, *drawn)):
            tree = disk.cut(how)
            if tree not in seen:
                seen.append(tree)
                yield tree, list(marks), f"event {at} ({event.kind} {event.path}), way {i}"


def whole(recorder: Recorder) -> Tree:
    """The files as they are when nothing is lost."""
    disk = Disk(recorder.begun)
    for event in recorder.events:
        disk.take(event)
    return disk.cut(_everything)


def read_tree(root: Path) -> Tree:
    found = sorted(root.rglob("*"))
    return {str(p.relative_to(root)): None if p.is_dir() else p.read_bytes() for p in found}


def write_tree(root: Path, tree: Tree) -> None:
    root.mkdir(parents=True)
    for path, content in tree.items():
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)
