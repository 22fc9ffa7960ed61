"""Facts about GPUs from the driver, without torch."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from quire.options import DeviceFacts

DRIVER = "libcuda.so.1"
# The driver's numbers of device attributes.
_SHARED_MEMORY, _MAJOR, _MINOR = 97, 75, 76


@dataclass(frozen=True, slots=True)
class Gpu:
    """`shared_memory`: bytes that one thread block may use."""

    capability: tuple[int, int]
    memory: int
    shared_memory: int

    def facts(self) -> DeviceFacts:
        """The facts that the driver knows. All memory counts as free, as that is not asked here."""
        return DeviceFacts(
            *("cuda", self.memory, self.memory),
            num_cores=1,
            fast_dtypes=fast_on(self.capability[0]),
            fast_quantised=is_hopper(self.capability),
        )


def fast_on(major: int) -> tuple[str, ...]:
    """Tensor cores multiply float16 since compute capability 7.0 and bfloat16 since 8.0."""
    if major < 7:
        return ()
    return ("bfloat16", "float16") if major >= 8 else ("float16",)


def is_hopper(capability: tuple[int, int]) -> bool:
    """Whether it is the kind on which quantised products were measured
    (benchmarks/gpu_quant.py)."""
    return capability == (9, 0)


def count_gpus() -> int:
    """How many GPUs this process may use; 0 without a driver."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return 0
    count = ctypes.c_int()
    return 0 if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) else count.value


def first_gpu() -> Gpu | None:
    """The GPU that torch uses first; None if there is none."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return None
    device, value, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return None
    found = []
    for number in (_MAJOR, _MINOR, _SHARED_MEMORY):
        if driver.cuDeviceGetAttribute(ctypes.byref(value), number, device):
            return None
        found.append(value.value)
    if driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device):
        return None
    major, minor, shared_memory = found
    return Gpu((major, minor), memory.value, shared_memory)
