"""Facts about this machine: memory, cores, and which number formats are fast here.

A GPU is used if there is one, and its formats follow from its capability. On a CPU they are
measured: a small product in each format, a few milliseconds. The result is kept in QUIRE_HOME for
this processor, torch and number of threads.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
import time
import warnings
from pathlib import Path

import torch

from quire.backends.cpu.linear import make_linear
from quire.base.cores import usable_cores
from quire.base.home import add_entry, read_entries
from quire.base.system import free_memory
from quire.executor.driver import fast_on, is_hopper
from quire.options import DeviceFacts

# How many times faster than float32 a format must be to make up for its rounding.
LEAST_GAIN = 1.3
# At the small size one product in a very slow format (emulated bfloat16: 0.1 GFLOP/s) takes 10 ms.
SMALL, LARGE = (2, 512, 512), (64, 768, 768)
SECONDS_PER_FORMAT = 0.03


def device_facts(wanted: str | None = None) -> DeviceFacts:
    """The facts of the GPU if there is one and "cpu" is not `wanted`, else of the CPU."""
    if wanted != "cpu" and torch.cuda.is_available():
        return _gpu_facts()
    total, free = total_memory(), available_memory()
    return DeviceFacts(
        device="cpu",
        memory_total=total,
        memory_free=free,
        num_cores=num_cores(),
        fast_dtypes=fast_dtypes(),
    )


def _gpu_facts() -> DeviceFacts:
    """The current GPU."""
    free, total = torch.cuda.mem_get_info()
    capability = torch.cuda.get_device_capability()
    return DeviceFacts(
        device="cuda",
        memory_total=total,
        memory_free=free,
        num_cores=num_cores(),
        fast_dtypes=fast_on(capability[0]),
        fast_quantised=is_hopper(capability),
    )


def num_cores() -> int:
    """The cores that this process may use: by affinity, the container's quota and
    OMP_NUM_THREADS."""
    cores = usable_cores()
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdigit() and int(wanted) > 0:
        cores = min(cores, int(wanted))
    return max(1, cores)


def total_memory() -> int:
    """Bytes of the machine's memory, or of the container's limit."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    return min(installed, int(limit)) if limit.isdigit() else installed


def available_memory() -> int:
    """Bytes that can be allocated without swapping, within the container's limit."""
    free = free_memory()
    available = total_memory() if free is None else free
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    used = _read("/sys/fs/cgroup/memory.current").strip()
    if limit.isdigit() and used.isdigit():
        # The container's page cache counts as used but is freed on demand.
        used_now = int(used) - _container_file_pages()
        available = min(available, int(limit) - used_now)
    return max(0, available)


def fast_dtypes() -> tuple[str, ...]:
    """Which of bfloat16 and float16 are faster than float32, the fastest first; measured once."""
    key = machine_key()
    known = read_entries("probe.json").get(key)
    if isinstance(known, list) and all(name in ("bfloat16", "float16") for name in known):
        return tuple(known)
    fast = _measure_dtypes()
    add_entry("probe.json", key, fast)
    return fast


def _measure_dtypes() -> tuple[str, ...]:
    """On one thread: on several, cores that others use would be measured."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            # For formats that the processor lacks, torch warns with a page about its fallback;
            # whether that is fast is measured here.
            warnings.filterwarnings("ignore", r"\w+ failed, switching to ", UserWarning)
            return _faster_than_float32()
    finally:
        torch.set_num_threads(num_threads)


def _faster_than_float32() -> tuple[str, ...]:
    base = {size: _seconds(torch.float32, size) for size in (SMALL, LARGE)}
    gains = {}
    for dtype in (torch.bfloat16, torch.float16):
        if _seconds(dtype, SMALL) > 4 * base[SMALL] + 1e-4:
            continue
        gain = base[LARGE] / _seconds(dtype, LARGE)
        if gain >= LEAST_GAIN:
            gains[str(dtype).removeprefix("torch.")] = gain
    return tuple(sorted(gains, key=lambda name: -gains[name]))


@torch.inference_mode()
def _seconds(dtype: torch.dtype, size: tuple[int, int, int]) -> float:
    """The shortest time of a product [rows, inner] x [inner, columns]."""
    rows, inner, columns = size
    x = torch.ones(rows, inner, dtype=dtype)
    linear = make_linear(torch.ones(columns, inner, dtype=dtype), None)
    best, begin = math.inf, time.perf_counter()
    while time.perf_counter() - begin < SECONDS_PER_FORMAT:
        before = time.perf_counter()
        linear(x)
        best = min(best, time.perf_counter() - before)
    return best


def machine_key() -> str:
    """A hash that is equal for equal processors and torch versions."""
    wanted = ("model name", "CPU part", "CPU implementer", "flags", "Features")
    lines = {line for line in _read("/proc/cpuinfo").splitlines() if line.split("\t")[0] in wanted}
    parts = [platform.machine(), torch.__version__, *sorted(lines)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _container_file_pages() -> int:
    for line in _read("/sys/fs/cgroup/memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == "inactive_file":
            return int(value)
    return 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
