"""Where replicas run: each has a share of the GPUs or of the cores, set by its environment.

CUDA_VISIBLE_DEVICES limits the GPUs we use, in any of its forms (indices, UUIDs, MIG instances),
and each replica gets its share of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quire.base.cores import usable_cores
from quire.base.launchers import without_launchers
from quire.base.system import free_memory
from quire.errors import InvalidOption

MOST_REPLICAS = 256
VISIBLE = "CUDA_VISIBLE_DEVICES"
_MEMORY_SHARE, _MOST_MEMORY = 4, 4 << 30  # KV blocks on CPUs: a 4th of free memory, at most 4 GiB
_COUNT = (
    "import ctypes; d = ctypes.CDLL('libcuda.so.1'); n = ctypes.c_int();"
    "print(); print(0 if d.cuInit(0) or d.cuDeviceGetCount(ctypes.byref(n)) else n.value)"
)


@dataclass(frozen=True, slots=True)
class Place:
    """One replica's environment, and options for its share of the machine."""

    environment: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)


def places(
    replicas: int | None,
    gpus: str | None,
    options: Mapping[str, Any],
    *,
    environment: Mapping[str, str] | None = None,
    count_gpus: Callable[[], int] | None = None,
) -> tuple[Place, ...]:
    """A place for each replica; InvalidOption if there is no room for so many.

    `gpus` is "all" or a list such as "0,2": indices among the GPUs that this process may use. On a
    machine without GPUs, and with device="cpu", replicas share the cores.
    """
    given = dict(os.environ if environment is None else environment)
    base = without_launchers(given)
    wants_cpu = str(options.get("device", "auto")).startswith("cpu")
    if replicas in (None, 1) and gpus is None:
        return (Place(base),)
    if wants_cpu:
        found: tuple[str, ...] = ()
    else:
        found = visible_gpus(given, (count_gpus or number_of_gpus)())
    chosen = None if gpus is None else _chosen(gpus, found)
    if chosen is None and not found:
        return _on_cores(replicas or 1, base, options)
    each = int(options.get("tensor_parallel_size", 1) or 1)
    return _on_gpus(replicas, gpus, found if chosen is None else chosen, each, base)


def visible_gpus(environment: Mapping[str, str], count: int) -> tuple[str, ...]:
    """The GPUs that this process may use, each by a name for CUDA_VISIBLE_DEVICES."""
    given = environment.get(VISIBLE)
    if given is None:
        return tuple(str(i) for i in range(count))
    names = []
    for name in (part.strip() for part in given.split(",")):
        if not name or name.startswith("-"):  # CUDA itself ignores the rest
            break
        names.append(name)
    # A process sees only one MIG instance, however many are named.
    is_mig = bool(names) and names[0].startswith("MIG-")
    return tuple(names if is_mig else names[:count])


def number_of_gpus() -> int:
    """How many GPUs the driver has, counted in another process: ours never opens a GPU."""
    done = subprocess.run(
        [sys.executable, "-c", _COUNT], capture_output=True, text=True, check=False, timeout=60
    )
    *_, last = ["", *done.stdout.splitlines()]  # Python may print lines at its start
    return int(last) if last.isdigit() else 0


def _chosen(gpus: str, found: Sequence[str]) -> tuple[str, ...]:
    if not found:
        raise _wrong(
            "gpus",
            gpus,
            "there is no GPU here that this process may use. Leave --gpus out to run "
            "replicas on the CPU",
        )
    if gpus == "all":
        return tuple(found)
    parts = [part.strip() for part in gpus.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise _wrong("gpus", gpus, "it is all, or numbers such as 0,2")
    numbers = [int(part) for part in parts]
    if len(set(numbers)) < len(numbers):
        raise _wrong("gpus", gpus, "it names a GPU twice, and a GPU runs one replica")
    if max(numbers) >= len(found):
        last = len(found) - 1
        raise _wrong(
            "gpus", gpus, f"{len(found)} GPUs may be used here ({VISIBLE} counts), 0 to {last}"
        )
    return tuple(found[number] for number in numbers)


def _on_gpus(
    replicas: int | None, gpus: str | None, found: Sequence[str], each: int, base: dict[str, str]
) -> tuple[Place, ...]:
    wanted = len(found) // each if replicas is None else replicas
    needed = max(1, wanted) * each
    if needed > len(found):
        raise _wrong(
            "replicas",
            wanted,
            f"{max(1, wanted)} x {each} GPUs are {needed}, and there are "
            f"{len(found)} that this process may use. Ask for fewer",
        )
    if gpus not in (None, "all") and needed < len(found):
        raise _wrong(
            "gpus",
            gpus,
            f"it names {len(found)} GPUs, and {wanted} replicas of {each} use "
            f"{needed}. Name as many as are used",
        )
    shares = [found[i * each : (i + 1) * each] for i in range(wanted)]
    return tuple(Place({**base, VISIBLE: ",".join(share)}) for share in shares)


def _on_cores(replicas: int, base: dict[str, str], options: Mapping[str, Any]) -> tuple[Place, ...]:
    """Each replica gets its share of the cores, and of the memory for KV blocks."""
    if replicas > MOST_REPLICAS:
        raise _wrong("replicas", replicas, f"the most on one machine are {MOST_REPLICAS}")
    # OMP_NUM_THREADS, if set, is the number for each process, as usual.
    threads = base.get("OMP_NUM_THREADS") or str(max(1, usable_cores() // replicas))
    environment = {**base, "OMP_NUM_THREADS": threads}
    sized = {"kv_cache_memory_bytes", "num_gpu_blocks_override"} & options.keys()
    share = min((free_memory() or 0) // _MEMORY_SHARE, _MOST_MEMORY) // replicas
    more = {} if sized or share <= 0 else {"kv_cache_memory_bytes": share}
    return (Place(environment, more),) * replicas


def _wrong(name: str, value: object, why: str) -> InvalidOption:
    return InvalidOption(f"--{name} {value}: {why}.", parameter=name, value=value)
