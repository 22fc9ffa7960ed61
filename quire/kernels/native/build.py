"""Compiling the C sources, once per machine: into QUIRE_HOME, under a name that says from what.

The name holds a hash of the sources, the flags and the compiler, so that a library is never
older than what it was made from. It is written beside its place and moved there in one step:
two processes that build at once both succeed, and whoever loads finds all of it or nothing.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from quire.home import quire_home

SOURCES = Path(__file__).parent / "src"
COMPILERS = ("cc", "gcc", "clang")
# Instruction sets beyond the machine's least common ones are asked for function by function, so
# one library serves every processor of its kind. Sums are never reordered by the compiler;
# a product and the sum it goes into are one rounding wherever the processor can.
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
SECONDS = 120.0  # after which a compiler is taken to hang


class BuildFailed(Exception):
    """No library could be made here; the message says why, in one line."""


@dataclass(frozen=True, slots=True)
class Built:
    """A library on disk; `seconds` is what making it took, or None if it was there."""

    path: Path
    seconds: float | None


def built() -> Built:
    """The library of these sources for this machine, compiled if it is not there yet."""
    compiler = find_compiler()
    path = folder() / f"quire-{_key(compiler)}.so"
    if path.is_file() and _is_ours(path):
        return Built(path, None)
    started = time.perf_counter()
    try:
        _compile(compiler, path)
    except OSError as error:
        raise BuildFailed(f"{path.parent} cannot be written: {error}") from error
    return Built(path, time.perf_counter() - started)


def folder() -> Path:
    return quire_home() / "native"


def find_compiler() -> Path:
    """The first C compiler on the path."""
    for name in COMPILERS:
        if found := shutil.which(name):
            return Path(found)
    raise BuildFailed(f"no C compiler is there (looked for {', '.join(COMPILERS)})")


def sources() -> list[Path]:
    """Every C file of the library."""
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


def _is_ours(path: Path) -> bool:
    """Whether nobody but this user (or root) can have written the file: it will be run."""
    about = path.stat()
    return about.st_uid in (os.getuid(), 0) and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _compile(compiler: Path, path: Path) -> None:
    """All sources at the same time, then the library of them, moved to `path`."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".making-") as room:
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
        whole.replace(path)


def _run_all(commands: list[list[str]]) -> None:
    """Run commands side by side; the first line of what one complained about is the error."""
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
