"""Python's collector during calls and while loading, and what an LLM leaves behind."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire import BeamSearchParams, SamplingParams
from quire.sampling_params import StructuredOutputsParams
from quire.session.collector import (
    SELDOM,
    lasts_from_now_on,
    nothing_collected,
    rare_full_collections,
)
from quire.session.turns import Turns
from tests.tiny_llm import tiny_llm

BIG = 4 << 20


class Knot:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def thresholds_stay() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    assert gc.get_threshold() == before


def test_full_collections_are_rare_during_a_turn_alone() -> None:
    young, middle, full = gc.get_threshold()
    with Turns().turn():
        assert gc.get_threshold() == (young, middle, SELDOM)
    assert gc.get_threshold() == (young, middle, full)


def test_what_lasts_is_not_looked_through_again() -> None:
    lasting = Knot()
    before = weakref.ref(lasting)
    lasts_from_now_on()
    try:
        later = weakref.ref(Knot())
        del lasting
        gc.collect()
        assert later() is None and before() is not None
    finally:
        gc.unfreeze()
    gc.collect()
    assert before() is None


def test_calls_of_several_threads_put_back_what_was_there() -> None:
    before = gc.get_threshold()
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with rare_full_collections():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with rare_full_collections():
        thread.start()
        assert inside.wait(10)
    assert gc.get_threshold()[2] == SELDOM  # the other one goes on
    leave.set()
    thread.join(10)
    assert gc.get_threshold() == before


def test_thresholds_that_the_program_sets_meanwhile_stay() -> None:
    before = gc.get_threshold()
    try:
        with rare_full_collections():
            gc.set_threshold(123, 4, 5)
        assert gc.get_threshold() == (123, 4, 5)
    finally:
        gc.set_threshold(*before)


def test_what_the_program_froze_stays_frozen() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with rare_full_collections(), nothing_collected():
            pass
        assert gc.get_freeze_count() > frozen // 2
    finally:
        gc.unfreeze()


def test_a_turn_makes_nothing_old_before_its_time() -> None:
    """Else garbage would wait for a full collection, which may never come."""
    before = Knot()
    gone = weakref.ref(before)
    with Turns().turn():
        pass
    del before
    gc.collect(0)
    assert gone() is None


def test_garbage_from_before_is_not_made_old_by_loading() -> None:
    gone = weakref.ref(Knot())
    with nothing_collected():
        pass
    assert gone() is None


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


def test_garbage_made_before_each_call_does_not_pile_up(tmp_path: Path) -> None:
    """As a trend: the second half of the calls adds next to nothing."""
    alive: weakref.WeakSet[Knot] = weakref.WeakSet()
    counts = []
    params = SamplingParams(temperature=0, max_tokens=2)
    with tiny_llm(tmp_path) as llm:
        for call in range(60):
            for _ in range(200):
                alive.add(Knot())
            llm.generate("a", params, use_tqdm=False)
            if call % 10 == 9:
                counts.append(len(alive))
    assert counts[-1] <= max(counts[:3]) + 2000, counts


def test_a_closed_llm_leaves_no_cycle_behind(tmp_path: Path) -> None:
    """Its memory goes with the last reference: nobody has to wait for a full collection."""
    llm = tiny_llm(tmp_path)
    session = llm._session
    greedy = SamplingParams(temperature=0, max_tokens=3, logprobs=2, prompt_logprobs=1, stop="zz")
    llm.generate(["a", "b"], greedy, use_tqdm=False)
    choice = SamplingParams(max_tokens=3, structured_outputs=StructuredOutputsParams(regex="a+"))
    llm.generate(["a"], choice, use_tqdm=False)
    llm.beam_search(["a"], BeamSearchParams(beam_width=2, max_tokens=2))
    llm.score_continuations(["a"], [[" house"]], use_tqdm=False)
    next(iter(llm.stream(["a", "b"], greedy)))
    llm.chat([{"role": "user", "content": "a"}], greedy, use_tqdm=False)
    llm.sleep()
    llm.wake_up()
    model, cache = session.model.executor._model, session.model.executor._runner.cache  # type: ignore[attr-defined]
    parts = (session, session.engine, session.engine.scheduler, session.model.tokenizer)
    gone = {type(part).__name__: weakref.ref(part) for part in (*parts, model, cache)}
    del parts, model, cache, session
    gc.collect()
    gc.disable()
    try:
        llm.close()
        del llm
        assert [name for name, part in gone.items() if part() is not None] == []
    finally:
        gc.enable()
