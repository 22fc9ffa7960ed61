"""Compiles kernels while the weights are loaded.

Each kernel is called once (kernel_calls.py), in threads. A kernel that was compiled before, or by
the process that began before torch was imported (parent.py), is found on disk; any other takes a
second or more of a core.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import torch

from quire.config import EngineConfig
from quire.executor.precompile.kernel_calls import Calls
from quire.executor.precompile.launchers import load_launchers_in_turn
from quire.executor.precompile.parent import Compiling, hash_triton
from quire.executor.torch_defaults import by_usual_defaults
from quire.spec import ModelSpec

THREADS, REST_THREADS = 12, 4
LOADED_AFTER = 1.5  # seconds within which kernels load that were compiled before
REST_AFTER = 0.5  # seconds in which the first steps run undisturbed


class Warmup:
    """Begins compiling when it is made. `wait` returns when all kernels of the first steps are
    compiled; the rest goes on beside those steps."""

    def __init__(
        self,
        config: EngineConfig,
        spec: ModelSpec,
        compiling: Compiling | None = None,
        hashing: threading.Thread | None = None,
    ) -> None:
        """`compiling`: the process that compiles already, if any; `hashing`: the result of
        `hash_triton`, if that was called."""
        load_launchers_in_turn()
        hashing = hashing or hash_triton()
        # Imported here, because threads must not import modules that import each other.
        import quire.backends.triton.kernels  # noqa: F401

        # A thread's device is its own, and at first the first one.
        self._enter = partial(torch.cuda.set_device, torch.cuda.current_device())
        self._pool = ThreadPoolExecutor(THREADS, "quire-compile", self._enter)
        hashed = self._pool.submit(hashing.join)
        compiled = [] if compiling is None else [self._pool.submit(compiling.wait)]
        calls = Calls(config, spec, torch.device("cuda", torch.cuda.current_device()))
        self._running = [self._pool.submit(_call, call) for call in calls.of_torch()]
        self._running.append(self._pool.submit(_call, calls.driver, compiled))
        awaited = [hashed, *compiled]
        self._running += [self._pool.submit(_call, call, awaited) for call in calls.all()]
        self._compiling = compiling
        self._later = deque(calls.later())
        self._begun, self._stopped = time.monotonic(), threading.Event()
        self._rest: list[threading.Thread] = []

    def wait(self) -> None:
        try:
            for one in self._running:
                one.result()
        finally:
            self._pool.shutdown(wait=False)
        atexit.register(self.stop)
        # Kernels that were compiled before, or by the other process, are only loaded, by one
        # thread: more would take Python's lock from the first steps.
        is_new = self._compiling is None and time.monotonic() - self._begun > LOADED_AFTER
        for _ in range(REST_THREADS if is_new else 1):
            # Daemons, so that short programs do not wait for kernels that they never call.
            thread = threading.Thread(target=self._go_on, name="quire-compile", daemon=True)
            self._rest.append(thread)
            thread.start()

    def stop(self) -> None:
        """Begin no further kernels, and wait for those that are being compiled."""
        atexit.unregister(self.stop)
        self._stopped.set()
        if self._compiling is not None:
            self._compiling.end()
        for thread in self._rest:
            thread.join()

    def _go_on(self) -> None:
        """Load kernels that only some plans call. Those of features are loaded when a row needs
        them, which in many engines is never."""
        self._enter()
        if self._compiling is not None:
            self._compiling.wait_for_later()
        self._stopped.wait(REST_AFTER)
        self._load_the_rest()
        if self._compiling is not None and not self._stopped.is_set():
            self._compiling.go_on()

    def _load_the_rest(self) -> None:
        while not self._stopped.is_set():
            try:
                call = self._later.popleft()
            except IndexError:
                return
            try:
                _call(call)
            except torch.OutOfMemoryError:
                self._later.clear()  # compile the rest when it is needed


@by_usual_defaults
@torch.inference_mode()
def _call(call: Callable[[], object], awaited: Sequence[Future[None]] = ()) -> None:
    for one in awaited:
        one.result()
    call()
