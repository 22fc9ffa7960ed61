"""What is begun before torch is there: nothing of it may fail, or be needed."""

from __future__ import annotations

import ast
import ctypes
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from quire.executor.precompile import cuda_context as waking
from quire.executor.precompile.cuda_context import wake_gpu


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without torch, on a machine whose torch was built for CUDA."""
    monkeypatch.setattr(waking, "sys", SimpleNamespace(modules={}))
    monkeypatch.setattr(waking, "torch_knows_cuda", lambda: True)


def driver(made: list[int], *, status: int = 0) -> SimpleNamespace:
    def retain(context: object, device: int) -> int:
        made.append(device)
        return 0

    return SimpleNamespace(cuInit=lambda flags: status, cuDevicePrimaryCtxRetain=retain)


@pytest.mark.usefixtures("first")
def test_the_first_device_gets_its_context(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver(made))
    thread = wake_gpu(None)
    assert thread is not None
    thread.join(10)
    assert made == [0]


@pytest.mark.usefixtures("first")
def test_a_driver_without_a_device_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver(made, status=100))
    thread = wake_gpu(None)
    assert thread is not None
    thread.join(10)
    assert not made


@pytest.mark.usefixtures("first")
def test_a_machine_without_a_driver_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking, "DRIVER", "libnobody-has-this.so.1")
    thread = wake_gpu(None)
    assert thread is not None
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.usefixtures("first")
def test_a_cpu_is_not_woken() -> None:
    assert wake_gpu("cpu") is None


def test_a_torch_that_is_there_may_have_chosen_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking, "torch_knows_cuda", lambda: True)
    monkeypatch.setattr(waking, "sys", SimpleNamespace(modules={"torch": None}))
    assert wake_gpu(None) is None


def test_a_torch_without_cuda_wakes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking, "sys", SimpleNamespace(modules={}))
    monkeypatch.setattr(waking, "TORCH_CUDA", "libtorch_nobody.so")
    assert wake_gpu(None) is None


def test_waking_imports_nothing_in_its_thread() -> None:
    """Two threads that import what depends on each other get modules half made."""
    tree = ast.parse(Path(waking.__file__).read_text())
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        inside = [n for n in ast.walk(function) if isinstance(n, ast.Import | ast.ImportFrom)]
        assert not inside, f"{function.name} imports"


def test_waking_needs_no_torch_and_brings_no_module() -> None:
    code = (
        "import sys, quire.executor.precompile.cuda_context as w\n"
        "w.torch_knows_cuda = lambda: True\n"
        "before = set(sys.modules)\n"
        "w.wake_gpu(None).join(30)\n"
        "assert set(sys.modules) == before, set(sys.modules) - before\n"
        "assert 'torch' not in sys.modules and 'triton' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
