"""Kernels compiled by a process without torch: the right ones, and no process left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tests.backends.triton.conftest  # noqa: F401 - makes the interpreter work, before any kernel
from quire.executor.precompile import parent as compiling
from quire.executor.precompile.parent import Compiling, begin_compiling
from quire.options import Options
from tests.executor.asked_variants import CASES, QWEN

ROOT = Path(__file__).parents[2]
# What is left to the warmup's own calls.
LEFT = {
    "KV in fp8": {"_copy_blocks"},
}


@pytest.fixture(scope="module")
def told() -> dict[str, dict[str, list[str]]]:
    """What warmup's calls ask for, and what the process would compile."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    words = [sys.executable, "-m", "tests.executor.asked_variants"]
    run = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert not run.returncode, run.stderr[-3000:]
    made: dict[str, dict[str, list[str]]] = json.loads(run.stdout)
    return made


def names(variants: set[str]) -> set[str]:
    return {json.loads(one)["name"].rpartition(".")[2] for one in variants}


@pytest.mark.parametrize("which", ["first", "later", "features"])
@pytest.mark.parametrize("case", CASES)
def test_what_is_compiled_early_is_what_the_warmup_calls(
    told: dict[str, dict[str, list[str]]], case: str, which: str
) -> None:
    asked, listed = (set(told[case][f"{which}, {what}"]) for what in ("asked", "listed"))
    assert listed, case
    assert not listed - asked, sorted(listed - asked)
    assert names(asked - listed) <= LEFT.get(case, set()), sorted(asked - listed)


def test_torch_alone_needs_no_kernel_of_ours(told: dict[str, dict[str, list[str]]]) -> None:
    assert all(not made["of torch"] for made in told.values())


def test_the_process_has_no_torch() -> None:
    code = "import quire.executor.precompile.worker, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


# Stands in for the process where there is no GPU: the same program, told of one.
WITH_A_GPU = """
import sys
from quire.executor.precompile import worker as compiler
from quire.executor.driver import Gpu
compiler.first_gpu = lambda: Gpu((9, 0), 150 << 30, 232448)
compiler.build_launcher = lambda compiled: None  # takes the driver's library
compiler.build_utils = lambda: None
{more}
sys.exit(compiler.main(*sys.argv[1:]))
"""
SMALL = """
steps_of = compiler.steps_of
class Few:
    def __init__(self, steps): self.steps = steps
    def first(self): return self.named("pick")
    def later(self): return self.named("_activate")
    def features(self): return self.named("_norm")
    def named(self, name):
        return [one for one in self.steps.first() if one.kernel.__name__ == name]
compiler.steps_of = lambda what, gpu: Few(steps_of(what, gpu))
"""
ONE_FAILS = """
def built(compiled):
    assert compiled.metadata.name != "pick"
compiler.build_launcher = built
"""
ENDLESS = """
import time
compiler.Variant.compile = lambda self: time.sleep(60)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a GPU and an empty cache."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(compiling, "DEVICES", (os.devnull,))
    monkeypatch.setattr(compiling, "torch_knows_cuda", lambda: True)
    return tmp_path / "cache"


def run_instead(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    def started(words: list[str], **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", code, *words[-2:]], **options)

    names = {"Popen": started, "PIPE": subprocess.PIPE, "DEVNULL": subprocess.DEVNULL}
    monkeypatch.setattr(compiling, "subprocess", SimpleNamespace(**names))


# Asks for the same kernel as an engine's process does, and says whether it had to be compiled.
FINDS = """
import torch, triton
from functools import partial
from triton.runtime.jit import JITFunction
from quire.executor.precompile.worker import Device
from quire.executor.precompile.kernel_calls import Calls
from quire.options import Options, resolve
from tests.executor.asked_variants import GPU, QWEN
triton.runtime.driver.set_active(Device(GPU))
triton.knobs.compilation.listener = lambda **told: print(told["cache_hit"])
JITFunction.__getitem__ = lambda self, grid: partial(self.warmup, grid=grid)
Calls(resolve(Options(), QWEN, GPU.facts()), QWEN, torch.device("cpu")).gates()
"""


def alive(group: int) -> list[str]:
    """The processes of a group that still run."""
    said = subprocess.run(
        ["ps", "-e", "-o", "pgid=", "-o", "stat="], capture_output=True, text=True
    ).stdout
    rows = [line.split() for line in said.splitlines()]
    return [state for found, state in rows if int(found) == group and not state.startswith("Z")]


@pytest.fixture
def at_work(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiling]:
    run_instead(monkeypatch, WITH_A_GPU.format(more=ENDLESS))
    started = begin_compiling(QWEN, Options())
    assert started is not None
    deadline = time.monotonic() + 200  # on a busy machine
    while len(alive(started._process.pid)) < 2:  # until workers are there
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield started
    started.end()


def test_kernels_are_left_in_tritons_cache_and_compiled_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_instead(monkeypatch, WITH_A_GPU.format(more=SMALL))
    started = begin_compiling(QWEN, Options())
    assert started is not None
    started.wait()
    assert list(cache.glob("*/pick.cubin"))
    started.wait_for_later()
    assert list(cache.glob("*/_activate.cubin")) and list(cache.glob("quire-*"))
    assert not list(cache.glob("*/_norm.cubin")), "features wait for the first steps"
    started.go_on()
    started.wait_for_all()
    assert list(cache.glob("*/_norm.cubin"))
    started.end()
    started.go_on()  # costs nothing any more
    found = subprocess.run([sys.executable, "-c", FINDS], cwd=ROOT, capture_output=True, text=True)
    assert found.stdout == "True\n", found.stderr[-2000:]
    assert begin_compiling(QWEN, Options()) is None
    other = begin_compiling(QWEN, Options(block_size=32))
    assert other is not None
    other.end()


def test_a_kernel_that_fails_keeps_no_other_from_being_compiled(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_instead(monkeypatch, WITH_A_GPU.format(more=SMALL + ONE_FAILS))
    started = begin_compiling(QWEN, Options())
    assert started is not None
    started.wait_for_later()
    started.end()
    assert list(cache.glob("*/_activate.cubin"))
    assert not list(cache.glob("quire-*")), "not all are there"


def test_ending_it_ends_its_workers(at_work: Compiling) -> None:
    group = at_work._process.pid
    waiting = [threading.Thread(target=wait) for wait in (at_work.wait, at_work.wait_for_all)]
    for thread in waiting:
        thread.start()
    at_work.end()
    assert not alive(group)
    for thread in waiting:
        thread.join(10)
        assert not thread.is_alive()
    at_work.wait()
    at_work.wait_for_all()


def test_it_ends_with_the_process_that_started_it(at_work: Compiling) -> None:
    """Whoever dies closes its end of the pipe."""
    group, pipe = at_work._process.pid, at_work._process.stdin
    assert pipe is not None
    pipe.close()
    at_work.wait_for_all()
    deadline = time.monotonic() + 10
    while alive(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(group)


def test_a_process_that_fails_costs_nobody_anything(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_instead(monkeypatch, "raise SystemExit(3)")
    started = begin_compiling(QWEN, Options())
    assert started is not None
    started.wait()
    started.go_on()
    started.wait_for_later()
    started.wait_for_all()
    started.end()
    again = begin_compiling(QWEN, Options())
    assert again is not None, "not compiled, so it is tried again"
    again.end()


@pytest.mark.usefixtures("cache")
def test_nothing_is_compiled_where_no_gpu_will_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert begin_compiling(QWEN, Options(device="cpu")) is None
    monkeypatch.setattr(compiling, "torch_knows_cuda", lambda: False)
    assert begin_compiling(QWEN, Options()) is None
    monkeypatch.setattr(compiling, "torch_knows_cuda", lambda: True)
    monkeypatch.setattr(compiling, "DEVICES", ("/dev/nobody-has-this",))
    assert begin_compiling(QWEN, Options()) is None
