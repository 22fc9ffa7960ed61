"""The process that compiles kernels while the engine's imports torch.

    python -m quire.executor.precompile.worker WHAT MARKER

WHAT is JSON made by parent.py. Everything goes to Triton's cache on disk, where the engine
finds it. A line on stdout says that the first steps have their kernels, the end of the process
that no more will come; the file MARKER is made if none is missing. The process and all its
workers end when stdin does, so they never outlive who started them. No torch: importing it would
take longer than compiling.
"""

from __future__ import annotations

import json
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

from quire.executor.cores import usable_cores
from quire.executor.driver import Gpu, first_gpu
from quire.executor.precompile.parent import hash_triton
from quire.executor.precompile.signatures import Steps, Variant
from quire.options import Options, resolve
from quire.spec import ModelSpec

SECONDS = 120  # nobody waits for longer
READY = b"ready\n"


@dataclass(frozen=True, slots=True)
class Device:
    """What Triton asks of a driver when it compiles without running anything."""

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
    # Triton would import it, to know a tensor when it sees one.
    sys.modules["torch"] = cast(ModuleType, None)
    signal.alarm(SECONDS)
    with ThreadPoolExecutor(1) as aside:  # the driver takes its time, too
        asked = aside.submit(first_gpu)
        hash_triton().join()
        gpu = asked.result()
    if gpu is None:
        return 1
    _compile_for(Device(gpu))  # variants go by it, too
    steps = steps_of(json.loads(what), gpu)
    first: list[Callable[[], None]] = [partial(_compile, one) for one in steps.first()]
    first.insert(1, build_utils)
    later = [partial(_compile, one) for one in steps.later()]
    whole = _share_out(first)
    os.write(sys.stdout.fileno(), READY)
    whole &= _share_out(later)
    if whole:
        Path(marker).touch()
    return 0


def steps_of(what: dict[str, Any], gpu: Gpu) -> Steps:
    """Of the model and the options that an engine was given."""
    given = what["spec"]
    spec = ModelSpec(**{**given, "windows": tuple(given["windows"])})
    config = resolve(Options(**what["options"]), spec, gpu.facts())
    return Steps(config, spec, gpu.shared_memory)


def _compile_for(device: Device) -> None:
    """Tell Triton of the device, and ask it once what every worker would ask it again."""
    import triton
    from triton.compiler import make_backend

    triton.runtime.driver.set_active(device)
    make_backend(device.get_current_target()).hash()


def _compile(variant: Variant) -> None:
    build_launcher(variant.compile())


def build_launcher(compiled: Any) -> None:
    """Triton has a C compiler make the function that launches a kernel, one per signature."""
    from triton.backends.nvidia.driver import CudaLauncher

    CudaLauncher(compiled.src, compiled.metadata)


def build_utils() -> None:
    """Likewise what its driver needs."""
    from triton.backends.nvidia.driver import CudaUtils

    CudaUtils()


def _share_out(work: Sequence[Callable[[], None]]) -> bool:
    """Have all of it done, as much at once as there are cores, and say whether it was."""
    waiting, running, num_done, stdin = deque(work), set[int](), 0, sys.stdin.fileno()
    while waiting or running:
        while waiting and len(running) < usable_cores():
            running.add(_start_worker(waiting.popleft()))
        ready, _, _ = select.select([stdin, *running], [], [])
        if stdin in ready:
            os.killpg(0, signal.SIGKILL)
        for pipe in ready:
            num_done += len(os.read(pipe, 1))
            os.close(pipe)
            running.discard(pipe)
    return num_done == len(work)


def _start_worker(work: Callable[[], None]) -> int:
    """A process for one piece of work; the pipe that is returned says when that is done, and ends
    in any case."""
    told, tell = os.pipe()
    if not os.fork():  # we have but one thread
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
