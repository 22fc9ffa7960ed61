"""What is begun before it is known to be needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.errors import QuireError
from quire.executor.precompile.parent import Compiling
from quire.session import loading
from tests.tiny_llm import tiny_llm


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """Stands for the one that compiles kernels, and would never end by itself."""
    endless = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(endless, stdin=subprocess.PIPE, process_group=0) as started:
        monkeypatch.setattr(loading, "begin_compiling", lambda spec, options: Compiling(started))
        yield started
        started.kill()


def test_nobody_compiles_for_a_gpu_that_is_not_used(
    process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    with tiny_llm(tmp_path, device="cpu"):
        assert process.poll() is not None


def test_nobody_compiles_for_an_engine_that_does_not_come_to_be(
    process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    with pytest.raises(QuireError):
        tiny_llm(tmp_path, device="cpu", kv_cache_dtype="fp8")
    assert process.poll() is not None
