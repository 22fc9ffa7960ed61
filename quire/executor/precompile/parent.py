"""Compiles kernels in another process while this one imports torch, which takes seconds.

A miss only costs time: a kernel that the other process did not compile, or compiled for other
types, is compiled when it is called (warmup.py).
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from quire.base.home import quire_home, why_not_private
from quire.base.line_child import import_paths
from quire.base.notes import note
from quire.base.system import kill_group
from quire.executor.plain_data import to_json
from quire.executor.precompile.cuda_context import torch_knows_cuda
from quire.options import Options
from quire.spec import ModelSpec, for_kernels

# Device files of a machine with a GPU, and of one under Windows' Linux.
DEVICES = ("/dev/nvidiactl", "/dev/dxg")
# The options on which the compiled variants depend.
DECIDING = (
    *("dtype", "quantization", "block_size", "kv_cache_dtype"),
    *("max_num_seqs", "max_num_batched_tokens"),
)
_KERNELS = Path(__file__).parents[2] / "backends" / "triton"


class Compiling:
    """The process that compiles. Any thread may wait for it, let it go on, or end it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._talking = threading.Lock()
        self._num_heard = 0

    def wait(self) -> None:
        """Return when the kernels of the first steps are compiled, or the process has ended."""
        self._hear(1)

    def wait_for_later(self) -> None:
        """Return when the kernels that only some plans call are compiled as well."""
        self._hear(2)

    def go_on(self) -> None:
        """Let it compile the kernels of sampling's features, now that the first steps are done."""
        with self._talking, suppress(BrokenPipeError):  # it may have ended
            pipe = self._process.stdin
            if pipe is not None and not pipe.closed:
                os.write(pipe.fileno(), b".")

    def wait_for_all(self) -> None:
        """Return when the process has ended."""
        self._process.wait()

    def _hear(self, stages: int) -> None:
        """Wait until so many stages are over. The process writes a byte after each."""
        with self._talking:
            heard = self._process.stdout
            while self._num_heard < stages and heard is not None and not heard.closed:
                if not heard.read(1):
                    return
                self._num_heard += 1

    def end(self) -> None:
        """End the process and its workers if they still run."""
        if self._process.poll() is None:
            kill_group(self._process.pid)
        self._process.wait()
        with self._talking:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()


def begin_compiling(spec: ModelSpec, options: Options) -> Compiling | None:
    """Start the process. None if there is no GPU to use or everything is compiled already, or if
    the model keeps latents or states: those kernels are compiled when they are called
    (warmup.py)."""
    if spec.keeps_states or spec.layers[0].attention.latent is not None:
        return None
    if options.device == "cpu" or not any(map(os.path.exists, DEVICES)) or not torch_knows_cuda():
        return None
    found = importlib.util.find_spec("triton")
    if not sys.executable or found is None or found.origin is None:
        return None
    keep_triton_private()
    deciding = {name: getattr(options, name) for name in DECIDING}
    what = to_json({"spec": for_kernels(spec), "options": deciding}).decode()
    marker = _triton_cache() / f"quire-{_key(what, Path(found.origin))}"
    if marker.exists():
        return None
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "quire.executor.precompile.worker", what, str(marker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": import_paths()},
            process_group=0,  # a Ctrl-C does not end it; it ends with this process
        )
    except OSError:
        return None
    return Compiling(process)


def hash_triton() -> threading.Thread:
    """Begin to compute Triton's hash of its own 400 MB, which is part of its cache's keys. Triton
    keeps it, but threads that ask at once would each compute it: wait for this one."""
    import triton.runtime.cache

    asked = getattr(triton.runtime.cache, "triton_key", lambda: "")
    thread = threading.Thread(target=asked, name="quire-hash", daemon=True)
    thread.start()
    return thread


def keep_triton_private() -> None:
    """Set Triton's cache to a folder that only this user can write to, as it loads libraries from
    there. It is set in the environment, which child processes inherit."""
    folder = _triton_cache()
    if (why := why_not_private(folder)) is None:
        return
    own = quire_home() / "triton"
    if why_not_private(own) is not None:
        own = Path(tempfile.mkdtemp(prefix="quire-triton-"))
        atexit.register(shutil.rmtree, own, ignore_errors=True)
    note(
        f"{folder} is not used for compiled kernels, but {own}: {why}. TRITON_CACHE_DIR names a "
        "folder that only you can write to"
    )
    os.environ["TRITON_CACHE_DIR"] = str(own)


def _triton_cache() -> Path:
    """The folder of Triton's cache."""
    if folder := os.environ.get("TRITON_CACHE_DIR"):
        return Path(folder)
    return Path(os.environ.get("TRITON_HOME") or Path.home()) / ".triton" / "cache"


def _key(what: str, triton: Path) -> str:
    """A hash that changes with the model, the kernels, versions and devices."""
    facts = [what, sys.version]
    for path in (triton, *sorted(_KERNELS.glob("*.py"))):
        status = path.stat()
        facts.append(f"{path} {status.st_mtime_ns} {status.st_size}")
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        facts.append(path.read_text().partition("\n")[0])  # the model of the GPU
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
