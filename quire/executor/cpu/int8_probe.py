"""Measures which path of 8-bit products is fastest for how many rows, and its gain over floats.

All paths compute the same sums, so the choice only changes time. It is measured once, in a fraction
of a second, and kept in QUIRE_HOME for this processor, torch and library.
"""

from __future__ import annotations

import ctypes
import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quire.backends.cpu.int8 import Int8Arithmetic, Int8Matrix, TorchInt8
from quire.backends.cpu.linear import make_linear
from quire.backends.cpu.native.library import loaded
from quire.backends.cpu.native_int8 import PATHS, Choice, NativeInt8, paths_here
from quire.backends.linear import LinearOp
from quire.base.home import add_entry, read_entries
from quire.executor.probe import fast_dtypes, machine_key

ROWS = (1, 4, 16, 64)  # numbers of rows that are tried; the last choice also serves more rows
SIZE = (768, 768)
KEPT = "int8.json"
# Each product is timed at least so long and so often, because single runs may be interrupted.
SECONDS_PER_TRY, TRIES = 0.01, 12


@dataclass(frozen=True, slots=True)
class Int8Probe:
    """The path for each number of rows. `gain`: how many times faster 64 rows are than in the
    fastest float format."""

    choices: tuple[Choice, ...]  # empty: torch computes
    gain: float

    @property
    def text(self) -> str:
        """One line about the choice."""
        if not self.choices:
            return "8-bit products: torch"
        parts, first = [], 1
        for i, choice in enumerate(self.choices):
            last = i == len(self.choices) - 1
            if not last and self.choices[i + 1].path == choice.path:
                continue
            if last:
                rows = f"{first} rows and more"
            else:
                rows = f"{first} to {choice.rows} rows" if choice.rows > first else f"{first} row"
            parts.append(choice.path if last and first == 1 else f"{choice.path} for {rows}")
            first = choice.rows + 1
        return f"8-bit products: {', '.join(parts)}"


def int8_arithmetic() -> Int8Arithmetic:
    """The arithmetic for 8-bit products on this machine."""
    found, native = int8_probe(), loaded().library
    if native is None or not found.choices:
        return TorchInt8()
    return NativeInt8(native, found.choices)


def int8_probe() -> Int8Probe:
    """Measured, or read from an earlier measurement on this processor, torch and library."""
    made = loaded()
    native, key = made.library, f"{machine_key()}-{made.name}"
    if (known := _probe(read_entries(KEPT).get(key), native)) is not None:
        return known
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on several threads, busy cores would be measured
    try:
        found = _measured(native)
    finally:
        torch.set_num_threads(num_threads)
    entry = {"choices": [list(choice) for choice in found.choices], "gain": round(found.gain, 2)}
    add_entry(KEPT, key, entry)
    return found


@torch.inference_mode()
def _measured(native: ctypes.CDLL | None) -> Int8Probe:
    weight, x = torch.ones(SIZE), torch.ones(ROWS[-1], SIZE[1])
    types = (torch.float32, *(getattr(torch, name) for name in fast_dtypes()))
    floats = min(_seconds(make_linear(weight.to(t), None), x.to(t)) for t in types)
    if native is None:
        return Int8Probe((), floats / _seconds(Int8Matrix.of(weight, TorchInt8()).linear(None), x))
    paths = paths_here(native)
    if len(paths) > 1:
        paths.remove("plain")
    linears = {
        path: Int8Matrix.of(weight, NativeInt8(native, [Choice(0, path)])).linear(None)
        for path in paths
    }
    choices, best = [], math.inf
    for rows in ROWS:
        seconds = {path: _seconds(linear, x[:rows]) for path, linear in linears.items()}
        path = min(seconds, key=lambda name: seconds[name])
        choices.append(Choice(rows, path))
        best = seconds[path]
    return Int8Probe(tuple(choices), floats / best)


def _seconds(linear: LinearOp, x: Tensor) -> float:
    """The shortest time of several runs."""
    best, tries, begin = math.inf, 0, time.perf_counter()
    while tries < TRIES or time.perf_counter() - begin < SECONDS_PER_TRY:
        before = time.perf_counter()
        linear(x)
        best, tries = min(best, time.perf_counter() - before), tries + 1
    return best


def _probe(entry: Any, native: ctypes.CDLL | None) -> Int8Probe | None:
    """A kept entry of the file; None if it does not fit this machine or is not valid."""
    try:
        choices = tuple(Choice(int(rows), str(path)) for rows, path in entry["choices"])
        gain = float(entry["gain"])
    except (TypeError, ValueError, KeyError):
        return None
    if bool(choices) != (native is not None):
        return None
    here = paths_here(native) if native is not None else []
    known = all(choice.path in PATHS and choice.path in here for choice in choices)
    return Int8Probe(choices, gain) if known else None
