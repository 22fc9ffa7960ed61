"""The native library: found or compiled once per process, and using torch's threads.

`library()` is None without a compiler or if it failed; callers then use torch. The reason is noted
once, and `quire doctor` shows it again.
"""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from quire.backends.cpu.native.build import BuildFailed, Built, built
from quire.backends.cpu.native.header import declare
from quire.base.notes import note

ABI = 6
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # as in quire.h

NEON, NEON_DOT, NEON_I8MM = 1 << 0, 1 << 1, 1 << 2
AVX2, AVX512, AVX512_VNNI, AVX_VNNI, AMX_INT8 = 1 << 3, 1 << 4, 1 << 5, 1 << 6, 1 << 7
AMX_BF16 = 1 << 8
NAMES = {
    NEON: "NEON",
    NEON_DOT: "dot products",
    NEON_I8MM: "int8 matrices",
    AVX2: "AVX2",
    AVX512: "AVX-512",
    AVX512_VNNI: "VNNI",
    AVX_VNNI: "AVX-VNNI",
    AMX_INT8: "AMX",
    AMX_BF16: "AMX bfloat16",
}


@dataclass(frozen=True, slots=True)
class Loaded:
    """The result of loading: the library, or why there is none."""

    library: ctypes.CDLL | None
    text: str  # one line about it
    name: str = "torch"  # names what computes; the same in every process


def library() -> ctypes.CDLL | None:
    """The native library; compiled and loaded by the first call of a process."""
    return loaded().library


@functools.cache
def loaded() -> Loaded:
    """The result of loading, which stays the same while the process lives."""
    try:
        made = built()
        found = _open(made)
    except BuildFailed as error:
        note(f"no native CPU kernels: {error}; torch computes instead, more slowly")
        return Loaded(None, f"torch only: {error}")
    threads = "torch's threads" if _join_threads(found) else "one thread: torch's were not found"
    sets = ", ".join(feature_names(found.quire_features())) or "plain C"
    return Loaded(found, f"native ({sets}; {threads})", made.path.stem)


def feature_names(features: int) -> list[str]:
    return [name for bit, name in NAMES.items() if features & bit]


def _load(made: Built) -> ctypes.CDLL:
    """Load by the descriptor of the checked file. The descriptor stays open: the loader identifies
    a library by its name, and would take another file with the same number for this one."""
    by_number = f"/proc/self/fd/{made.file}"
    return ctypes.CDLL(by_number if os.path.exists(by_number) else str(made.path))


def _open(made: Built) -> ctypes.CDLL:
    path = made.path
    try:
        found = _load(made)
        if (abi := found.quire_abi()) != ABI:
            raise BuildFailed(f"{path} speaks version {abi} of the interface, not {ABI}")
        declare(found)
    except (OSError, AttributeError) as error:
        raise BuildFailed(f"{path} cannot be loaded: {error}") from error
    return found


def _join_threads(found: ctypes.CDLL) -> bool:
    """Give the library torch's own OpenMP: a second OpenMP would have a second pool of threads, and
    two pools on the same cores wait for each other."""
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        path = Path(torch.__file__).parent / "lib" / name
        try:
            # Through torch's own library a symbol is the one that torch uses.
            torch_itself = ctypes.CDLL(str(path))
            parallel, threads = torch_itself.GOMP_parallel, torch_itself.omp_get_max_threads
        except (OSError, AttributeError):
            continue
        as_pointer = ctypes.c_void_p
        found.quire_use_threads(ctypes.cast(parallel, as_pointer), ctypes.cast(threads, as_pointer))
        return True
    return False
