"""Engines and commands that begin with their imports done: hundreds are started here, and importing
took most of what each of them costs.

`WarmPopen` is subprocess.Popen, but for `python -m MODULE` with one of the modules below: a process
that has imported all of it forks, and what it forks becomes a child of ours, with its pipes, its
group and a number to kill. A command has such a process of its own, for its engines.

A process of pytest-xdist forks them off itself, before it has collected anything: what they import
it would import anyway. Where it has none that begins with the same environment, one is started
(`python -m tests.warm`); the first Python of such a kind is started as ever, and so is one on a
terminal.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import inspect
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from tests.forked_off import Forked, Process, leave_behind

_ENGINES = (
    *("tests.server.fake_session", "quire.server.child.serving", "quire.server.child.writer"),
    *("quire.cli", "quire.jobs.job", "quire.jobs.join.worker", "quire.jobs.output.output"),
    *("csv", "pydantic.main", "zoneinfo"),
)
_MODELS = (
    *_ENGINES,
    *("torch", "quire.llm", "quire.executor.cpu.local", "quire.executor.ranks.gloo"),
    *("quire.session.cpu_weights", "quire.session.int8_default", "quire.session.rank_process"),
    *("quire.session.layerwise", "quire.session.workers", "quire.models.registry"),
    *("quire.jobs.child.embed", "quire.jobs.child.files", "quire.backends.cpu.native.library"),
)
# Where it costs nothing, what some models and most media are computed with.
_TRANSFORMERS = (
    *("quire.models.fallback.classes", "quire.models.fallback.weights"),
    *("quire.models.towers.build", "quire.models.towers.foreign", "transformers.modeling_utils"),
)
# By the module, the word with which it takes an engine without a model.
_ENGINE_OF = {"quire.jobs.child": "--engine", "quire.server.child": "--session"}
_COMMANDS = {
    "tests.jobs.drive": _ENGINES,
    "tests.jobs.join_drive": _ENGINES,
    "quire": _MODELS,
}
_WITH_A_MODEL = ("quire.session.rank", "quire.replicas.child")
# Python, or a library while it is imported, reads these once.
_READ_ONCE = ("PYTHON", "LD_", "OMP_", "OPENBLAS_", "TRITON_", "CUDA_", "HF_", "LC_", "LANG")
_ROOT = Path(__file__).resolve().parents[1]
_COLD_FIRST = os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0"
_NAME = "warm python"  # in /proc/PID/comm
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl
_ORDER = [*inspect.signature(subprocess.Popen._execute_child).parameters][1:]  # type: ignore[attr-defined]
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")

_Imports = tuple[str, ...]
_Way = tuple[_Imports, tuple[tuple[str, str], ...]]


class WarmPopen(subprocess.Popen[Any]):
    """A Popen that forks what is warm."""

    def _execute_child(self, *given: Any) -> None:
        asked = dict(zip(_ORDER, given, strict=True))
        imports = _imports_of(asked)
        parent = None if imports is None else _WarmParent.of(imports, _environment(asked))
        if parent is None:
            super()._execute_child(*given)  # type: ignore[misc]
            return
        try:
            self.pid = parent.fork(asked)
            self._child_created = True
        finally:
            self._close_pipe_fds(*(asked[name] for name in _PIPES))  # type: ignore[attr-defined]


def _files(asked: dict[str, Any]) -> list[int]:
    """Its stdin, stdout and stderr."""
    standard = zip(("p2cread", "c2pwrite", "errwrite"), range(3), strict=True)
    return [ours if asked[name] == -1 else asked[name] for name, ours in standard]


def _environment(asked: dict[str, Any]) -> dict[str, str]:
    return dict(os.environ if asked["env"] is None else asked["env"])


def _words(given: Any) -> list[str]:
    """Those behind `python -m`, or `python -P -m`; none for any other command."""
    python, *words = map(str, given) if isinstance(given, (list, tuple)) and given else [""]
    if words[:1] == ["-P"]:
        words = words[1:]
    return words[1:] if python == sys.executable and words[:1] == ["-m"] else []


def is_engine(command: Any) -> bool:
    return _words(command)[:1] in [[module] for module in _ENGINE_OF]


def _imports_of(asked: dict[str, Any]) -> _Imports | None:
    """What it would import, if it may begin warm."""
    module, *words = _words(asked["args"]) or [""]
    if any(asked[name] is not None for name in ("preexec_fn", "gid", "gids", "uid")):
        return None
    if any(map(os.isatty, _files(asked))):
        return None
    if module in _ENGINE_OF:
        return _ENGINES if _ENGINE_OF[module] in words else _MODELS
    return _MODELS if module in _WITH_A_MODEL else _COMMANDS.get(module)


class _WarmParent:
    """The process that forks, seen from here: one for each way in which a Python may begin."""

    _of: dict[_Way, _WarmParent | None] = {}
    _ahead: dict[_Way, _WarmParent] = {}  # those that were forked off this process
    _may_begin = True
    # Made beforehand: tests look for files that are opened and stay open.
    _pairs: list[tuple[socket.socket, socket.socket]] = []
    _one_at_a_time = threading.RLock()

    def __init__(self, channel: socket.socket, process: Process | None) -> None:
        self._channel, self._process = channel, process

    @classmethod
    def of(cls, imports: _Imports, environment: Mapping[str, str]) -> _WarmParent | None:
        """None for the first of its kind: a process for one is no gain, and one is to be cold; in
        one of the processes of a run, where there is one already."""
        way = _way(imports, environment)
        with cls._one_at_a_time:
            if way not in cls._of:
                cls._of[way] = None if _COLD_FIRST else cls._ahead.get(way)
            elif cls._of[way] is None and cls._may_begin:
                cls._of[way] = cls._ahead.get(way) or cls._begin(imports, environment)
            return cls._of[way]

    @classmethod
    def _begin(cls, imports: _Imports, environment: Mapping[str, str]) -> _WarmParent:
        ours, theirs = cls._pairs.pop() if cls._pairs else _pair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm", str(theirs.fileno()), *imports],
                cwd=_ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        return cls(ours, process)

    @classmethod
    def fork_off(cls, imports: _Imports) -> None:
        """One from this process, as it is now."""
        ours, theirs = _pair()
        pid = os.fork()
        if pid == 0:
            leave_behind(theirs.fileno())
            fork_for_others(imports, theirs)
        theirs.close()
        cls._ahead[_way(imports, os.environ)] = cls(ours, Forked(pid))

    @classmethod
    def take(cls, imports: _Imports, channel: socket.socket) -> None:
        """For engines of this process, the one at the other end and no other."""
        cls._may_begin, cls._ahead = False, {}
        cls._of = {_way(imports, os.environ): cls(channel, None)}

    @classmethod
    def prepare(cls) -> None:
        cls._pairs = [_pair() for _ in range(3)]

    @classmethod
    def end_all(cls) -> None:
        for end in (end for pair in cls._pairs for end in pair):
            end.close()
        for parent in {*filter(None, cls._of.values()), *cls._ahead.values()}:
            parent._channel.close()
            if parent._process is not None:
                parent._process.kill()
                parent._process.wait()
        cls._of.clear()
        cls._ahead.clear()

    def fork(self, asked: dict[str, Any]) -> int:
        about = {
            "words": _words(asked["args"]),
            "safe_path": "-P" in asked["args"],
            "environment": _environment(asked),
            "cwd": os.fspath(asked["cwd"] or os.getcwd()),
            "files": [0, 1, 2, *asked["pass_fds"]],
            "session": asked["start_new_session"],
            "group": asked["process_group"],
        }
        files = [*_files(asked), *asked["pass_fds"]]
        with self._one_at_a_time, ExitStack() as after:
            # What it forks has lost its own parent when we hear of it, and is our child then.
            _be_subreaper(True)
            after.callback(_be_subreaper, False)
            socket.send_fds(self._channel, [json.dumps(about).encode()], files)
            told = self._channel.recv(64)
        if not told:
            raise OSError("the process that forks others is gone")
        return int(told)


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _way(imports: _Imports, environment: Mapping[str, str]) -> _Way:
    read = {name: value for name, value in environment.items() if name.startswith(_READ_ONCE)}
    folders = dict.fromkeys(read.get("PYTHONPATH", "").split(os.pathsep))
    read["PYTHONPATH"] = os.pathsep.join(folder for folder in folders if folder != str(_ROOT))
    return imports, tuple(sorted(read.items()))


def _be_subreaper(on: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, int(on), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


@contextmanager
def warm_starts() -> Iterator[None]:
    """Within it, whatever may begin warm does."""
    _WarmParent.prepare()
    cold, subprocess.Popen = subprocess.Popen, WarmPopen  # type: ignore[misc]
    try:
        yield
    finally:
        subprocess.Popen = cold  # type: ignore[misc]
        _WarmParent.end_all()


def name_of(module: str) -> str:
    """What /proc/PID/comm says of a module that began warm: its last fifteen letters."""
    return module[-15:]


def is_warm_parent(pid: int) -> bool:
    """Whether this process is there to fork others."""
    return Path(f"/proc/{pid}/comm").read_text().strip() == _NAME


def _wait_for_work(channel: socket.socket) -> tuple[dict[str, Any], int, list[int]]:
    """Forks whenever it is asked to, and leaves when nobody can ask any more; returns in what was
    forked: what it is to be, where to tell its number, and the files that came along."""
    Path("/proc/self/comm").write_text(_NAME)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        data, files, _, _ = socket.recv_fds(channel, 1 << 20, 32)
        if not data:
            os._exit(0)
        told, tell = os.pipe()
        between = os.fork()
        if between == 0:
            if os.fork():
                os._exit(0)
            channel.close()
            os.close(told)
            return json.loads(data), tell, files
        for number in (tell, *files):
            os.close(number)
        pid = os.read(told, 64)
        os.close(told)
        os.waitpid(between, 0)
        channel.send(pid)


def _become(about: dict[str, Any], tell: int, given: list[int]) -> list[str]:
    """Group, files, folder and environment as asked; the words of the command."""
    if about["session"]:
        os.setsid()
    if about["group"] not in (None, -1):
        os.setpgid(0, about["group"])
    os.write(tell, str(os.getpid()).encode())
    os.close(tell)
    beyond = max(*given, *about["files"]) + 1
    aside = [os.dup2(number, beyond + place) for place, number in enumerate(given)]
    for number in given:
        os.close(number)
    for number, wanted in zip(aside, about["files"], strict=True):
        os.dup2(number, wanted)
        os.close(number)
    os.environ.clear()
    os.environ.update(about["environment"])
    os.chdir(about["cwd"])
    sys.path[:1] = [] if about["safe_path"] else [about["cwd"]]
    Path("/proc/self/comm").write_text(name_of(about["words"][0]))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return list(about["words"])


def _with_a_warm_parent(imports: _Imports) -> socket.socket | None:
    """Forks one for the engines of this process; in that one, what it is asked through."""
    ours, theirs = _pair()
    if os.fork():
        theirs.close()
        _WarmParent.take(imports, ours)
        subprocess.Popen = WarmPopen  # type: ignore[misc]
        return None
    ours.close()
    nothing = os.open(os.devnull, os.O_RDWR)  # its readers are to see the command end
    for number in range(3):
        os.dup2(nothing, number)
    os.close(nothing)
    return theirs


def fork_for_others(imports: _Imports, channel: socket.socket) -> NoReturn:
    """Until nobody asks any more; what is forked runs what it was asked for, and ends here."""
    gc.freeze()  # what looks for garbage would copy every page of it
    asked: socket.socket | None = channel
    while asked is not None:
        module, *words = _become(*_wait_for_work(asked))
        asked = _with_a_warm_parent(imports) if module in _COMMANDS else None
    sys.argv = [module, *words]
    code: object = None
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ending:
        code = ending.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        code = 1
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    _leave(code or 0)


def _leave(code: int) -> NoReturn:
    """As Python ends, but for taking all apart that was imported: half a second, with torch."""
    threading._shutdown()  # pools of threads are told to end, and waited for
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _import(modules: _Imports) -> None:
    for module in modules:
        import_module(module)


def fork_ahead() -> None:
    """For whatever begins with this environment, without a model and with one."""
    for imports, more in ((_ENGINES, ()), (_MODELS, _TRANSFORMERS)):
        _import((*imports, *more))
        _WarmParent.fork_off(imports)


def main() -> NoReturn:
    imports = tuple(sys.argv[2:])
    _import(imports)
    fork_for_others(imports, socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
