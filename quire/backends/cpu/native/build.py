"""Compiles the C sources, once per machine, into QUIRE_HOME.

The file's name has a hash of the sources, the flags and the compiler, so that a library is never
outdated, and a hash of its own bytes, so that a damaged one is made again. It is written to a
temporary name and then moved in one step: two processes that build at the same time both succeed,
and a reader finds a whole file or none. Only this user and root may be able to write to the folder
and all above it; and what is loaded is the open file that was checked.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from quire.base.home import open_ours, quire_home, why_not_private
from quire.base.notes import note

SOURCES = Path(__file__).parent / "src"
COMPILERS = ("cc", "gcc", "clang")
# Newer instruction sets are enabled function by function, so one library serves every processor of
# its kind. The compiler never reorders sums; a product and the sum it is added to are rounded once
# where the processor can.
FLAGS = (
    "-std=gnu11",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-w",
)
_HASH = 20  # hex digits of a hash
_MOST_BYTES = 64 << 20
SECONDS = 120.0  # then a compiler counts as hanging


class BuildFailed(Exception):
    """No library could be compiled; the message says why, in one line."""


@dataclass(frozen=True, slots=True)
class Built:
    """A library on disk. `seconds`: time of compiling, None if it was there. `file`: descriptor of
    the checked file; the file at `path` may be another one by now."""

    path: Path
    seconds: float | None
    file: int = field(default=-1, compare=False)


def built() -> Built:
    """The library for this machine, compiled if it is not there yet."""
    compiler = find_compiler()
    name = f"quire-{_key(compiler)}"
    if (why := why_not_private(folder())) is not None:
        return _built_aside(compiler, name, why)
    if (found := _found(folder(), name)) is not None:
        return found
    started = time.perf_counter()
    try:
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        path = _compile(compiler, folder(), name)
    except OSError as error:
        raise BuildFailed(f"{folder()} cannot be written: {error}") from error
    return Built(path, time.perf_counter() - started, _opened(path))


def _built_aside(compiler: Path, name: str, why: str) -> Built:
    """Compile for this process alone, in a temporary folder: others can write to the usual one."""
    note(
        f"{folder()} is not used for compiled kernels: {why}. They are compiled anew by every "
        "process; set QUIRE_HOME to a folder that only you can write to"
    )
    started = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(prefix="quire-native-") as room:
            if (unsafe := why_not_private(Path(room))) is not None:
                raise BuildFailed(f"no folder is safe to load code from: {why}, and {unsafe}")
            path = _compile(compiler, Path(room), name)
            return Built(path, time.perf_counter() - started, _opened(path))
    except OSError as error:
        raise BuildFailed(f"no temporary folder can be written: {error}") from error


def _found(where: Path, name: str) -> Built | None:
    """The library that was compiled before, if it is whole and only this user can write it."""
    for path in sorted(where.glob(f"{name}-*.so")):
        try:
            return Built(path, None, _opened(path))
        except BuildFailed:
            with suppress(OSError):
                path.unlink()
    return None


def _opened(path: Path) -> int:
    """The descriptor of the file, if this user owns it and it has the hash in its name."""
    try:
        with open_ours(path) as file:
            found = hashlib.sha256(file.read(_MOST_BYTES)).hexdigest()
            if found[:_HASH] != path.stem.rpartition("-")[2]:
                raise BuildFailed(f"{path} is not what was compiled")
            return os.dup(file.fileno())
    except OSError as error:
        raise BuildFailed(f"{path} cannot be used: {error}") from error


def folder() -> Path:
    return quire_home() / "native"


def find_compiler() -> Path:
    for name in COMPILERS:
        if found := shutil.which(name):
            return Path(found)
    raise BuildFailed(f"no C compiler is there (looked for {', '.join(COMPILERS)})")


def sources() -> list[Path]:
    return sorted(SOURCES.glob("*.c"))


def _key(compiler: Path) -> str:
    real = compiler.resolve()
    about = real.stat()
    parts = [platform.machine(), str(real), str(about.st_size), str(about.st_mtime_ns), *FLAGS]
    made = hashlib.sha256("\n".join(parts).encode())
    for path in sorted(SOURCES.iterdir()):
        if path.suffix in (".c", ".h"):
            made.update(path.name.encode() + b"\0" + path.read_bytes())
    return made.hexdigest()[:20]


def _compile(compiler: Path, where: Path, name: str) -> Path:
    """Compile all sources at the same time, link them, and move the library to its place."""
    note(f"compiling the CPU kernels into {where}, which takes up to a minute")
    with tempfile.TemporaryDirectory(dir=where, prefix=".making-") as room:
        objects = [Path(room) / f"{source.stem}.o" for source in sources()]
        commands = [
            [str(compiler), *FLAGS, "-c", str(source), "-o", str(made)]
            for source, made in zip(sources(), objects, strict=True)
        ]
        _run_all(commands)
        whole = Path(room) / "quire.so"
        link = [str(compiler), "-shared", "-o", str(whole), *map(str, objects), "-lm"]
        _run_all([link])
        whole.chmod(0o700)
        path = where / f"{name}-{hashlib.sha256(whole.read_bytes()).hexdigest()[:_HASH]}.so"
        whole.replace(path)
        return path


def _run_all(commands: list[list[str]]) -> None:
    """Run commands in parallel. The error is the first line of a failed command's output."""
    running = [
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for command in commands
    ]
    complaint = ""
    for process in running:
        try:
            said, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            complaint = complaint or f"{process.args!r} took over {SECONDS:.0f} s"
        if process.returncode:
            text = said.decode(errors="replace").strip()
            wrong = [line for line in text.splitlines() if "error" in line.lower()]
            complaint = complaint or (wrong or text.splitlines() or ["it said nothing"])[0]
    if complaint:
        raise BuildFailed(f"the C compiler failed: {complaint}")
