"""Functions that launch kernels are those of their kernels, however many threads load some."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

driver = pytest.importorskip("triton.backends.nvidia.driver")
from quire.executor.precompile.launchers import load_launchers_in_turn  # noqa: E402

FACTS = dict.fromkeys(
    ("global_scratch_size", "global_scratch_align", "profile_scratch_size"), 0
) | dict.fromkeys(("profile_scratch_align", "launch_cooperative_grid", "launch_pdl"), 0)


def test_threads_get_the_launchers_of_their_own_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SimpleNamespace(launch="")  # as Python gives all of them

    def loaded(*, src: str, **_: Any) -> SimpleNamespace:
        shared.launch = src
        time.sleep(0.005)
        return shared

    monkeypatch.setattr(driver, "make_launcher", lambda constants, signature, meta: signature[0])
    monkeypatch.setattr(driver, "compile_module_from_src", loaded)
    monkeypatch.setattr(driver, "library_dirs", list)
    monkeypatch.setattr(driver.CudaLauncher, "__init__", driver.CudaLauncher.__init__)
    load_launchers_in_turn()
    load_launchers_in_turn()  # a second engine in the same process
    found: dict[int, str] = {}

    def load(kernel: int) -> None:
        source = SimpleNamespace(signature={0: f"of kernel {kernel}"})
        found[kernel] = driver.CudaLauncher(source, SimpleNamespace(**FACTS)).launch

    threads = [threading.Thread(target=load, args=(kernel,)) for kernel in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {kernel: f"of kernel {kernel}" for kernel in range(8)}
