"""The native library, on each instruction set this processor has."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator

import pytest

from quire.backends.cpu.native import library as native

ON_X86 = platform.machine() in ("x86_64", "AMD64")
# What a processor may have at most in a test; -1: all it has.
SETS = {"best": -1, "plain": 0}
if ON_X86:
    SETS |= {"avx512": native.AVX512 | native.AVX2, "avx2": native.AVX2}


@pytest.fixture(params=SETS)
def library(request: pytest.FixtureRequest) -> Iterator[ctypes.CDLL]:
    """The library with no more instructions than one set has."""
    found = native.library()
    if found is None:
        pytest.skip(f"no native kernels here: {native.loaded().text}")
    wanted = SETS[request.param]
    found.quire_allow(-1)
    if wanted > 0 and wanted & ~found.quire_features():
        pytest.skip(f"this processor has no {request.param}")
    found.quire_allow(wanted)
    yield found
    found.quire_allow(-1)
