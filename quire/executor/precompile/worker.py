"""The process that compiles kernels while the engine's imports torch.

    python -m quire.executor.precompile.worker WHAT MARKER

WHAT is JSON made by parent.py. All kernels go to Triton's cache on disk, where the engine finds
them. The process writes a byte to stdout when the kernels of the first steps are compiled, and
another one when those that only some plans call are; if none failed, it then makes the file MARKER.
It compiles the kernels of sampling's features after a byte on stdin, which the engine writes after
its first steps: they take more than all the others, and many engines never need them. The process
and all its workers end when stdin ends, so they never outlive the engine. No torch: importing it
would take longer than compiling.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from quire.base.cores import usable_cores
from quire.executor.driver import Gpu, first_gpu
from quire.executor.plain_data import from_json
from quire.executor.precompile.parent import hash_triton
from quire.executor.precompile.signatures import Steps
from quire.executor.precompile.variants import Variant
from quire.options import Options, resolve

SECONDS = 120  # after this the process ends
DONE = b"."  # a stage is over
POLITE = 10  # niceness of the work that is not waited for


@dataclass(frozen=True, slots=True)
class Device:
    """The part of a driver that Triton calls when it compiles without running anything."""

    gpu: Gpu

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        major, minor = self.gpu.capability
        return GPUTarget("cuda", 10 * major + minor, 32)


def main(what: str, marker: str) -> int:
    # Triton would import torch, to recognise tensors.
    sys.modules["torch"] = cast(ModuleType, None)
    signal.alarm(SECONDS)
    with ThreadPoolExecutor(1) as aside:  # the driver is slow as well
        asked = aside.submit(first_gpu)
        hash_triton().join()
        gpu = asked.result()
    if gpu is None:
        return 1
    _compile_for(Device(gpu))  # also decides which variants there are
    steps = steps_of(from_json(what), gpu)
    first: list[Callable[[], None]] = [partial(_compile, one) for one in steps.first()]
    first.insert(1, build_utils)
    whole = _share_out(first)
    os.write(sys.stdout.fileno(), DONE)
    whole &= _share_out([partial(_compile, one) for one in steps.later()])
    if whole:
        Path(marker).touch()
    os.write(sys.stdout.fileno(), DONE)
    _listen()
    os.nice(POLITE)
    _share_out([partial(_compile, one) for one in steps.features()], usable_cores() // 2)
    return 0


def steps_of(what: dict[str, Any], gpu: Gpu) -> Steps:
    """The steps of an engine's model and options."""
    config = resolve(Options(**what["options"]), what["spec"], gpu.facts())
    return Steps(config, what["spec"], gpu.shared_memory, gpu.capability)


def _compile_for(device: Device) -> None:
    """Set Triton's device, and compute a hash once that all workers would compute again."""
    import triton
    from triton.compiler import make_backend

    triton.runtime.driver.set_active(device)
    make_backend(device.get_current_target()).hash()


def _compile(variant: Variant) -> None:
    build_launcher(variant.compile())


def build_launcher(compiled: Any) -> None:
    """Build the function that launches a kernel; Triton needs a C compiler for each signature."""
    from triton.backends.nvidia.driver import CudaLauncher

    CudaLauncher(compiled.src, compiled.metadata)


def build_utils() -> None:
    """Build the library that Triton's driver needs."""
    from triton.backends.nvidia.driver import CudaUtils

    CudaUtils()


def _listen() -> None:
    """Wait for a byte on stdin; if stdin ends, end the whole process group."""
    if not os.read(sys.stdin.fileno(), 1):
        os.killpg(0, signal.SIGKILL)


def _share_out(work: Sequence[Callable[[], None]], at_once: int | None = None) -> bool:
    """Run all the work in child processes, `at_once` or as many as there are cores. True if all
    succeeded."""
    waiting, running, num_done, stdin = deque(work), set[int](), 0, sys.stdin.fileno()
    most = max(1, at_once or usable_cores())
    while waiting or running:
        while waiting and len(running) < most:
            running.add(_start_worker(waiting.popleft()))
        ready, _, _ = select.select([stdin, *running], [], [])
        if stdin in ready:
            _listen()
            ready.remove(stdin)
        for pipe in ready:
            num_done += len(os.read(pipe, 1))
            os.close(pipe)
            running.discard(pipe)
    return num_done == len(work)


def _start_worker(work: Callable[[], None]) -> int:
    """Fork a process for one piece of work. The returned pipe gets a byte if that succeeds, and is
    closed in any case."""
    told, tell = os.pipe()
    if not os.fork():  # safe: this process has only one thread
        try:
            signal.alarm(SECONDS)
            work()
            os.write(tell, b".")
        finally:
            os._exit(0)
    os.close(tell)
    return told


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
