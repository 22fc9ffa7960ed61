"""The process that compiles kernels while the engine's imports torch.

    python -m quire.executor.precompile.worker WHAT MARKER

WHAT is JSON made by parent.py. Everything goes to Triton's cache on disk, where the engine finds
it. A byte on stdout says that the first steps have their kernels, another that those are
there which only some plans call; the file MARKER is then made if none is missing. The kernels of
sampling's features wait for a byte on stdin, which says that the engine has made its first steps:
they take more than all the others, and many engines never need them. The process and all its
workers end when stdin does, so they never outlive who started them. No torch: importing it would
take longer than compiling.
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

SECONDS = 120  # nobody waits for longer
DONE = b"."  # a stage is over
POLITE = 10  # how far what nobody waits for steps back, as `nice` counts


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
    """Of the model and the options that an engine was given."""
    config = resolve(Options(**what["options"]), what["spec"], gpu.facts())
    return Steps(config, what["spec"], gpu.shared_memory)


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


def _listen() -> None:
    """For the word to go on; if that never comes, this is the end."""
    if not os.read(sys.stdin.fileno(), 1):
        os.killpg(0, signal.SIGKILL)


def _share_out(work: Sequence[Callable[[], None]], at_once: int | None = None) -> bool:
    """Have all of it done, so much at once or as much as there are cores; say whether it was."""
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
