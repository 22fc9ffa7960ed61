"""Work is shared among threads while that pays: a team that is held up is left alone."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from quire.backends.cpu.native import library as native
from quire.backends.cpu.native.linear import NativeLinear

REGION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
PARALLEL = ctypes.CFUNCTYPE(None, REGION, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
THREADS = ctypes.CFUNCTYPE(ctypes.c_int)
HELD_UP = 0.003  # seconds


class Team:
    """Stands for libgomp on a busy machine: the caller does all the work, and then waits for a
    thread that comes late."""

    def __init__(self) -> None:
        self.calls = 0
        self.parallel, self.threads = PARALLEL(self.run), THREADS(lambda: 2)

    def run(self, region: Callable[[int], None], data: int, threads: int, flags: int) -> None:
        self.calls += 1
        region(data)
        time.sleep(HELD_UP)


@pytest.fixture
def team() -> Iterator[Team]:
    found = native.library()
    if found is None:
        pytest.skip("no C compiler here")
    made = Team()
    pointer = ctypes.c_void_p
    found.quire_use_threads(ctypes.cast(made.parallel, pointer), ctypes.cast(made.threads, pointer))
    yield made
    found.quire_share_always(0)
    assert native._join_threads(found)


def products(count: int, alone: Tensor, x: Tensor, multiply: NativeLinear) -> None:
    for _ in range(count):
        assert torch.equal(multiply(x), alone)


def in_a_new_thread(count: int) -> None:
    """Products in a thread that knows nothing yet of what sharing costs."""
    found = native.library()
    assert found is not None
    multiply, x = NativeLinear(found, torch.randn(200, 64), None), torch.randn(9, 64)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(products, count, multiply(x), x, multiply).result()


def test_a_team_that_is_held_up_is_left_alone(team: Team) -> None:
    before = time.monotonic()
    in_a_new_thread(100)
    # Two or three losses begin a pause of 20 ms, the next begins one twice as long: however slow
    # this machine is, there is no more of them than pauses fit into the time.
    pauses = 1 + (time.monotonic() - before) / 0.020
    assert 2 <= team.calls <= 1 + 3 * pauses and team.calls < 50


def test_it_is_tried_again_later(team: Team) -> None:
    def try_twice() -> tuple[int, int]:
        found = native.library()
        assert found is not None
        multiply, x = NativeLinear(found, torch.randn(200, 64), None), torch.randn(9, 64)
        while team.calls < 5:
            multiply(x)
        first = team.calls
        time.sleep(0.4)  # longer than the longest pause
        multiply(x)
        return first, team.calls

    with ThreadPoolExecutor(1) as pool:
        first, second = pool.submit(try_twice).result()
    assert second > first


def test_a_benchmark_can_ask_for_all_threads_always(team: Team) -> None:
    found = native.library()
    assert found is not None
    found.quire_share_always(1)
    in_a_new_thread(20)
    assert team.calls >= 20


def test_threads_that_are_waited_for_may_sleep() -> None:
    """8-bit products whose rows another thread rounds: with more threads than cores, some are
    always waiting for one that does not run."""
    from quire.backends.cpu.int8 import Int8Matrix
    from quire.backends.cpu.native_int8 import Choice, NativeInt8

    found = native.library()
    if found is None:
        pytest.skip("no C compiler here")
    linear8 = Int8Matrix.of(torch.randn(96, 128), NativeInt8(found, [Choice(0, "plain")])).linear(
        None
    )
    x, threads = torch.randn(40, 128), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = linear8(x)
        torch.set_num_threads(8)
        found.quire_share_always(1)
        before = threading.active_count()
        for _ in range(20):
            assert torch.equal(linear8(x), alone)
        assert threading.active_count() == before
    finally:
        found.quire_share_always(0)
        torch.set_num_threads(threads)
