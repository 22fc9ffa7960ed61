"""What every test may lean on: --long, marks for machines with and without a GPU, the default
model, steady hypothesis runs.

`long` tests run with --long only; `gpu` tests where there is a CUDA device, `interpreted` tests
where there is none. Hypothesis is derandomised, so that a red run is red again; `--long` (or
--hypothesis-profile=explore) looks for new examples.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from quire import LLM

# Triton's interpreter multiplies with numpy, whose threads would fight with torch's for the cores:
# on a busy machine that takes ten times as long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
if not Path("/dev/nvidiactl").exists():
    # Kernels are interpreted where there is no GPU. Before anything imports Triton, as Transformers
    # does: what it was imported for, it stays.
    os.environ.setdefault("TRITON_INTERPRET", "1")
# Containers often ask Python to write no bytecode. Hundreds of processes are started here, and each
# would compile all of quire again, which takes as long as all else that it does to start. This one
# would, too, and rewrite the asserts of every test file: half of what collecting them takes.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
if "PYTEST_XDIST_WORKER" in os.environ:
    # One thread per worker: before torch is imported, or it is not heard.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=_SLOW_IS_FINE,
    max_examples=40,  # a hundred and new ones with --long
)
settings.register_profile(
    "explore", deadline=None, print_blob=True, suppress_health_check=_SLOW_IS_FINE
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests marked long, too")


def pytest_configure(config: pytest.Config) -> None:
    # Under nohup, or in the background of a script, Ctrl-C is ignored, in every process that is
    # started from here as well; tests send it and expect what a terminal's user would see.
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--hypothesis-profile", default=None) is None:
        settings.load_profile("explore" if config.getoption("--long") else "ci")
    # Where all tests are to be collected; a few may need none of what this imports.
    if "PYTEST_XDIST_WORKER" in os.environ and config.args == config.getini("testpaths"):
        from tests.warm import fork_ahead

        fork_ahead()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Ten thousand tests are made, and nothing of them is garbage: looking for some took a fifth
    of the time, in every process."""
    from quire.session.collector import nothing_collected

    with nothing_collected():
        return (yield)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are named after their parameter: what packs them may write the time into them, and
    processes that collect in different seconds would disagree about the names of tests."""
    return argname if isinstance(val, bytes) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--long"):
        _skip(items, "long", "long: run scripts/test --long")
    if any(item.get_closest_marker(mark) for item in items for mark in ("gpu", "interpreted")):
        if _has_cuda():
            _skip(items, "interpreted", "interpreted: kernels are compiled here, for the GPU")
        else:
            _skip(items, "gpu", "gpu: no CUDA device here")


def _skip(items: list[pytest.Item], mark: str, reason: str) -> None:
    for item in items:
        if item.get_closest_marker(mark):
            item.add_marker(pytest.mark.skip(reason=reason))


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture(scope="session")
def long_mode(request: pytest.FixtureRequest) -> bool:
    """Whether --long was given, for tests that run at two sizes."""
    return bool(request.config.getoption("--long"))


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The GGUF file of the default model; fetched when it is not there yet."""
    from quire.weights.pull import pull

    return pull("smollm2")


@pytest.fixture(scope="session", autouse=True)
def native_kernels() -> None:
    """The library of C kernels, loaded before a test puts QUIRE_HOME somewhere else: a process
    asks once, and a home in a test's folder would mean compiling it again, or not having it."""
    from quire.backends.cpu.native.library import library

    library()


@pytest.fixture(scope="session", autouse=True)
def default_tokenizer_read_once() -> Iterator[None]:
    from tests.testing.read_once import read_once

    with read_once():
        yield


@pytest.fixture(scope="session", autouse=True)
def warm() -> Iterator[None]:
    """Engines that are started, and commands over them, begin with their imports done."""
    from tests.warm import warm_starts
    from tests.warm_asyncio import warm_servers

    with warm_starts(), warm_servers():
        yield


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """The random model of tests/tiny_llm.py; modules with another one name theirs the same."""
    from tests.tiny_llm import tiny_llm

    with tiny_llm(tmp_path_factory.mktemp("tiny")) as made:
        yield made


@pytest.fixture
def every_block_is_free_afterwards(llm: LLM) -> Iterator[None]:
    yield
    scheduler = llm._session.engine.scheduler
    assert scheduler.pool.num_free == scheduler.pool.num_blocks and not scheduler.num_unfinished
