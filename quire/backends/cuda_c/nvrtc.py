"""Compiles CUDA C++ to machine code by NVRTC, and keeps it beside Triton's cache.

A file's name is a hash of the source, the options and the compiler, so a file is never outdated.
Its first bytes are a hash of the rest: a damaged file is made again. It is written to a temporary
name and moved in one step, so that two processes may compile at the same time.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from quire.errors import NotSupported

_DIGEST = 32  # bytes
_PARTS = re.compile("builtins|alt")  # libraries beside it that are not the compiler


class NoCudaC(NotSupported):
    """Kernels in CUDA C++ are not available here; the message says why. Everything with such a
    kernel can also be computed in another way."""


def machine_code(source: str, options: tuple[str, ...]) -> bytes:
    """The cubin of a source, compiled if it is not kept yet."""
    nvrtc = _library()
    key = "\0".join((source, *options, *_version(nvrtc)))
    path = _folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.cubin"
    if (found := _read(path)) is not None:
        return found
    made = _compile(nvrtc, source, options)
    with suppress(OSError):  # without a writable folder the next start compiles again
        _write(path, made)
    return made


def _folder() -> Path:
    import triton

    return Path(triton.knobs.cache.dir) / "quire-cuda"


def _read(path: Path) -> bytes | None:
    try:
        held = path.read_bytes()
    except OSError:
        return None
    digest, made = held[:_DIGEST], held[_DIGEST:]
    return made if hashlib.sha256(made).digest() == digest else None


def _write(path: Path, made: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(file, "wb") as out:
            out.write(hashlib.sha256(made).digest() + made)
        os.replace(name, path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


@cache
def _library() -> ctypes.CDLL:
    for name in _places():
        with suppress(OSError):
            # It loads its other half by name, which works once that is loaded.
            if os.sep in name:
                for half in sorted(Path(name).parent.glob("libnvrtc-builtins.so*")):
                    ctypes.CDLL(str(half))
            return ctypes.CDLL(name)
    raise NoCudaC("libnvrtc, CUDA's compiler as a library, is not installed: torch brings it along")


def _places() -> Iterator[str]:
    """Its paths in torch's wheels, newest first, then the system's."""
    for folder in map(Path, sys.path):
        for inside in ("nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "torch/lib"):
            found = (folder / inside).glob("libnvrtc[.-]*so*")
            yield from (str(one) for one in sorted(found) if not _PARTS.search(one.name))
    yield from ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")


def _version(nvrtc: ctypes.CDLL) -> tuple[str, ...]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return str(major.value), str(minor.value), str(nvrtc._name)


def _compile(nvrtc: ctypes.CDLL, source: str, options: tuple[str, ...]) -> bytes:
    program = ctypes.c_void_p()
    _check(
        nvrtc,
        nvrtc.nvrtcCreateProgram(
            *(ctypes.byref(program), source.encode(), b"quire.cu", 0, None, None)
        ),
    )
    try:
        given = (ctypes.c_char_p * len(options))(*(one.encode() for one in options))
        if nvrtc.nvrtcCompileProgram(program, len(options), given):
            log = _text(nvrtc, program, "ProgramLog").decode(errors="replace").strip("\0\n ")
            raise NoCudaC(f"a kernel does not compile with {' '.join(options)}: {log}")
        return _text(nvrtc, program, "CUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    out = ctypes.create_string_buffer(size.value)
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, out))
    return out.raw


def _check(nvrtc: ctypes.CDLL, failed: int) -> None:
    if failed:
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise NoCudaC(f"NVRTC: {nvrtc.nvrtcGetErrorString(failed).decode()}")
