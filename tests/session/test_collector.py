"""Python's collector during calls and while loading."""

from __future__ import annotations

import gc
import weakref

from quire.session.collector import nothing_collected, past_at_rest
from quire.session.turns import Turns


class Knot:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.me = self


def test_what_was_there_before_is_left_alone_until_the_end() -> None:
    before = Knot()
    gone = weakref.ref(before)
    with past_at_rest():
        del before
        gc.collect()
        assert gone() is not None
    gc.collect()
    assert gone() is None


def test_what_is_made_meanwhile_is_collected() -> None:
    with past_at_rest():
        gone = weakref.ref(Knot())
        gc.collect()
        assert gone() is None


def test_a_past_that_the_program_froze_stays_frozen() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with past_at_rest():
            pass
        assert gc.get_freeze_count() >= frozen - 1 > 0
    finally:
        gc.unfreeze()


def test_every_turn_rests_the_past_and_wakes_it_again() -> None:
    with Turns().turn():
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


def test_loading_collects_nothing_and_leaves_the_collector_as_it_was() -> None:
    with nothing_collected():
        assert not gc.isenabled()
        knots = [Knot() for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_count()[0] < len(knots)  # what was made is old by now
    assert gc.get_freeze_count() == 0
    gc.disable()
    try:
        with nothing_collected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
