"""Loads kernels of .cu files and launches them by the driver, on torch's current stream."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from quire.backends.cuda_c.nvrtc import NoCudaC, machine_code

SOURCES = Path(__file__).parent
_DRIVER = "libcuda.so.1"
# The driver's numbers of attributes of functions and launches.
_DYNAMIC_SHARED, _CLUSTER, _OVERLAPS = 8, 4, 6
_INCLUDE = re.compile(r'^#include "([^"]+)"$', re.MULTILINE)
_NON_BLOCKING = 1  # a stream that does not wait for the default one

Argument = Tensor | int | float | bytes | None


class _Attribute(ctypes.Structure):
    _fields_ = (("number", ctypes.c_int), ("_", ctypes.c_int), ("value", ctypes.c_uint * 16))


class _Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


class CudaKernel:
    """An `extern "C"` function of a .cu file here, compiled with constants as macros.

    `shared`: bytes of dynamic shared memory; `cluster`: blocks to a cluster along x; `overlaps`:
    it may begin before the kernel ahead has ended, and waits for that by itself
    (griddepcontrol.wait). Calling it launches it: `kernel((x, y, z), *arguments)`. Tensors are
    passed as pointers (None as a null one), ints as int, floats as float, bytes as a struct of
    that size.
    """

    def __init__(
        self,
        file: str,
        name: str,
        constants: Mapping[str, int | str],
        *,
        threads: int,
        shared: int = 0,
        cluster: int = 1,
        overlaps: bool = False,
    ) -> None:
        self.file, self.name, self.threads, self.shared = file, name, threads, shared
        self._macros = tuple(f"-D{key}={value}" for key, value in sorted(constants.items()))
        self._functions: dict[int, ctypes.c_void_p] = {}
        self._lock = threading.Lock()
        wanted = ((_CLUSTER, (cluster, 1, 1)), (_OVERLAPS, (1,)))
        kept = [one for one, asked in zip(wanted, (cluster > 1, overlaps), strict=True) if asked]
        self._attributes = (_Attribute * len(kept))()
        for i, (number, values) in enumerate(kept):
            self._attributes[i].number = number
            self._attributes[i].value[: len(values)] = values

    def load(self) -> None:
        """Load onto the current device, after compiling if needed; NoCudaC if that is not
        possible."""
        self._function(torch.cuda.current_device())

    def __call__(self, grid: tuple[int, int, int], *arguments: Argument) -> None:
        device = torch.cuda.current_device()
        function = self._functions.get(device) or self._function(device)
        values = [_as_c(one) for one in arguments]
        places = (ctypes.c_void_p * len(values))(*(ctypes.addressof(one) for one in values))
        stream = torch.cuda.current_stream(device).cuda_stream
        launch = _Launch(
            *((*grid,), (self.threads, 1, 1), self.shared, stream),
            *(self._attributes, len(self._attributes)),
        )
        checked(
            driver_library().cuLaunchKernelEx(ctypes.byref(launch), function, places, None),
            self.name,
        )

    def _function(self, device: int) -> ctypes.c_void_p:
        with self._lock:
            if device not in self._functions:
                self._functions[device] = self._loaded(device)
            return self._functions[device]

    def _loaded(self, device: int) -> ctypes.c_void_p:
        code = machine_code(_source_of(self.file), (*_options(device), *self._macros))
        driver, module, function = driver_library(), ctypes.c_void_p(), ctypes.c_void_p()
        _enter(device)
        checked(driver.cuModuleLoadData(ctypes.byref(module), code), self.file)
        found = driver.cuModuleGetFunction(ctypes.byref(function), module, self.name.encode())
        checked(found, self.name)
        if self.shared > 48 << 10:
            checked(driver.cuFuncSetAttribute(function, _DYNAMIC_SHARED, self.shared), self.name)
        return function


def _source_of(file: str) -> str:
    """The text of a file here, with those that it includes in their places: kept machine code is
    found by the whole text."""
    text = (SOURCES / file).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda line: _source_of(line[1]), text)


def _options(device: int) -> tuple[str, ...]:
    """Options for exactly this architecture: `a` adds instructions that no other has."""
    major, minor = torch.cuda.get_device_capability(device)
    own = "a" if major >= 9 else ""
    return f"--gpu-architecture=sm_{major}{minor}{own}", "--std=c++17"


def _as_c(value: Argument) -> ctypes._CData:
    if value is None or isinstance(value, Tensor):
        return ctypes.c_void_p(None if value is None else value.data_ptr())
    if isinstance(value, int):
        return ctypes.c_int(value)
    if isinstance(value, float):
        return ctypes.c_float(value)
    return (ctypes.c_char * len(value)).from_buffer_copy(value)


def _enter(device: int) -> None:
    """Set the context, which a thread that has not used CUDA yet does not have."""
    driver, context = driver_library(), ctypes.c_void_p()
    checked(driver.cuCtxGetCurrent(ctypes.byref(context)), "a context")
    if not context.value:
        checked(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "a context")
        checked(driver.cuCtxSetCurrent(context), "a context")


def own_stream(device: int) -> int:
    """A stream that torch never hands out (it has a fixed number of them); it is never
    destroyed."""
    stream = ctypes.c_void_p()
    _enter(device)
    made = driver_library().cuStreamCreate(ctypes.byref(stream), _NON_BLOCKING)
    checked(made, "a stream")
    return stream.value or 0


@cache
def driver_library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(_DRIVER)
    except OSError as error:
        raise NoCudaC(f"{_DRIVER} cannot be loaded: {error}") from error


def checked(failed: int, what: str) -> None:
    if failed:
        text = ctypes.c_char_p()
        driver_library().cuGetErrorString(failed, ctypes.byref(text))
        why = (text.value or str(failed).encode()).decode()
        raise NoCudaC(f"{what} in CUDA C++ cannot be launched: {why}")
