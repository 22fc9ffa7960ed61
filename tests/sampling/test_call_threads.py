"""Foreign code in threads: in order within a lane, beside each other across lanes."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from quire.sampling import call_threads
from quire.sampling.call_threads import CallThreads, GivenUp, on_behalf_of


def test_calls_of_one_lane_run_in_order_and_one_at_a_time() -> None:
    made: list[int] = []
    running: list[int] = []

    def work(number: int) -> int:
        running.append(number)
        assert len(running) == 1
        time.sleep(0.001)
        made.append(number)
        running.clear()
        return number

    busy = CallThreads()
    calls = [busy.submit("one", partial(work, i)) for i in range(20)]
    busy.wait(calls, 30)
    assert [call.outcome().made for call in calls] == list(range(20)) == made


def test_a_slow_lane_holds_up_no_other() -> None:
    busy, gate = CallThreads(), threading.Event()
    slow = [busy.submit(("slow", i), gate.wait) for i in range(5)]
    behind = busy.submit(("slow", 0), lambda: "late")
    quick = [busy.submit("quick", partial(abs, i)) for i in range(50)]
    busy.wait(quick, 30)
    assert all(call.done() for call in quick)
    assert not any(call.done() for call in (*slow, behind))
    gate.set()
    busy.wait([*slow, behind], 30)
    assert behind.outcome().made == "late"


def test_whatever_is_raised_comes_back_as_an_outcome() -> None:
    busy = CallThreads()

    def leave() -> None:
        raise SystemExit(3)

    def fail() -> None:
        raise ValueError("no")

    calls = [busy.submit(work, work) for work in (leave, fail)]
    busy.wait(calls, 30)
    assert isinstance(calls[0].outcome().error, SystemExit)
    assert str(calls[1].outcome().error) == "no"


def test_a_call_that_never_returns_is_given_up_with_all_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy, gate = CallThreads(), threading.Event()
    ran = []
    stuck = busy.submit("lane", gate.wait)
    behind = busy.submit("lane", lambda: ran.append(1))
    other = busy.submit("other", lambda: 5)
    busy.wait([other], 30)
    monkeypatch.setattr(call_threads, "MAX_SECONDS", 0.01)
    time.sleep(0.05)
    assert stuck.done() and behind.done()
    assert isinstance(stuck.outcome().error, GivenUp)
    assert other.outcome().made == 5
    behind.cancel()
    gate.set()
    busy.wait([stuck], 30)
    time.sleep(0.02)
    assert not ran, "whoever waited for it is gone, so it is not run any more"


def test_threads_know_for_whom_they_work_and_end_when_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call_threads, "IDLE_SECONDS", 0.01)
    busy = CallThreads()
    call = busy.submit("lane", on_behalf_of)
    busy.wait([call], 30)
    assert call.outcome().made == threading.get_ident()
    assert on_behalf_of() is None
    deadline = time.monotonic() + 20
    while busy._num_threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert busy._num_threads == 0
    again = busy.submit("lane", lambda: 7)
    busy.wait([again], 30)
    assert again.outcome().made == 7


def test_threads_are_bounded_and_all_lanes_get_their_turn() -> None:
    busy = CallThreads()
    calls = [busy.submit(i, lambda: time.sleep(0.002)) for i in range(200)]
    busy.wait(calls, 60)
    assert all(call.done() for call in calls)
    assert busy._num_threads <= call_threads.MAX_THREADS
