"""The engine's thread: how far it reads ahead, and whom it keeps waiting."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from quire import SamplingParams
from quire.outputs import RequestOutput
from quire.results.delayed_outputs import LATE, LATE_IN_A_HURRY
from quire.scheduler import lanes
from quire.session.engine_thread import READ_TOGETHER, EngineThread, News, Submission
from tests.server.fake_session import make
from tests.server.serving import until

ROWS = 4


class Slow:
    """A grammar that takes long to compile, and then allows everything."""

    def __init__(self, gate: threading.Event) -> None:
        self._gate = gate

    def done(self) -> bool:
        return self._gate.is_set()

    def result(self) -> Any:
        assert self._gate.wait(60)
        return self

    def matcher(self) -> None:
        return None


class Thread:
    """One whose requests with a seed wait for a gate."""

    def __init__(self, model: str = f"fake:rows={ROWS}") -> None:
        self.gate, self.news = threading.Event(), list[News]()
        self.session = make(model, {})
        self.made = EngineThread(self.session, self.news.extend, hurried=True)
        self.num_asked = 0
        run: Any = self.made._run
        run._compile_grammar = lambda params: Slow(self.gate) if params.seed is not None else None

    def ask(self, *, slow: bool, background: bool = False) -> None:
        params = SamplingParams(max_tokens=2, ignore_eos=True, seed=1 if slow else None)
        self.num_asked += 1  # no two alike: those would be one
        prompt = {"prompt_token_ids": [1, 2, self.num_asked]}
        self.made.ask(Submission(prompt, params, background=background))

    def ask_together(self, count: int, max_tokens: int = 2) -> None:
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        prompts = [{"prompt_token_ids": [3, i, 4]} for i in range(count)]
        self.made.ask(*(Submission(prompt, params, background=True) for prompt in prompts))

    @property
    def num_finished(self) -> int:
        return sum(is_last(one) for _, one in self.news)


def is_last(one: object) -> bool:
    return isinstance(one, RequestOutput) and one.finished


@pytest.fixture
def thread() -> Iterator[Thread]:
    made = Thread()
    yield made
    made.gate.set()
    made.made.close()


def test_of_the_background_as_much_is_read_as_runs_at_once(thread: Thread) -> None:
    for _ in range(100):
        thread.ask(slow=True, background=True)
    until(lambda: thread.made.in_engine)
    for count in range(20):
        thread.ask(slow=False)  # each has the thread look at its inbox
        until(lambda count=count: thread.num_finished > count)
        # The one that has just ended may be there still.
        there = list(thread.made.in_engine.values())
        assert sum(one.background for one in there) <= 2 * ROWS
    thread.gate.set()
    until(lambda: thread.num_finished == 120)


def test_no_more_of_the_background_is_read_in_a_hurry(thread: Thread) -> None:
    for _ in range(ROWS - 1):
        thread.ask(slow=True, background=True)
    until(lambda: len(thread.made.in_engine) == ROWS - 1)
    for count in range(20):
        thread.ask(slow=False)
        for _ in range(20):
            thread.ask(slow=True, background=True)
        until(lambda count=count: thread.num_finished > count)
        there = list(thread.made.in_engine.values())
        assert sum(one.background for one in there) <= 2 * ROWS
    thread.gate.set()
    until(lambda: thread.num_finished == 20 * 21 + ROWS - 1)


def test_nobody_waits_for_the_grammar_of_another(thread: Thread) -> None:
    thread.ask(slow=True)
    until(lambda: thread.made.in_engine)
    thread.ask(slow=False)
    until(lambda: thread.num_finished == 1, 30)
    thread.gate.set()
    until(lambda: thread.num_finished == 2)


def test_room_in_the_background_is_waited_for(thread: Thread) -> None:
    for _ in range(3 * ROWS):
        thread.ask(slow=True, background=True)
    until(lambda: len(thread.made.in_engine) == ROWS)
    waiting = threading.Thread(target=thread.made.wait_for_room)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive(), "so many wait as run at once"
    thread.gate.set()
    waiting.join(10)
    assert not waiting.is_alive()


def test_the_background_is_read_in_groups_and_newcomers_between_them() -> None:
    thread = Thread(f"fake:rows={4 * READ_TOGETHER}")
    read, step = thread.session.intake.read_watched, thread.session.engine.step
    happened: list[str] = []

    def read_watched(prompts: Sequence[Any], params: Any, **more: Any) -> Any:
        happened.append(f"{len(prompts)} {'behind' if more['background'] else 'urgent'}")
        if len(happened) == 2:  # the second group is being read
            thread.ask(slow=False)
        return read(prompts, params, **more)

    def stepping() -> Any:
        happened.append("step")
        return step()

    thread.session.intake.read_watched = read_watched  # type: ignore[method-assign]
    thread.session.engine.step = stepping  # type: ignore[method-assign]
    try:
        thread.ask_together(4 * READ_TOGETHER)
        until(lambda: thread.num_finished == 4 * READ_TOGETHER + 1)
    finally:
        thread.made.close()
    group = f"{READ_TOGETHER} behind"
    assert happened[:4] == [group, group, "1 urgent", "step"]


@pytest.mark.parametrize("someone_reads", [False, True])
def test_of_answers_of_the_background_that_end_together_some_are_made_between_two_steps(
    someone_reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "HURRY_SECONDS", 600.0)  # however long the machine takes for them
    thread = Thread(f"fake:rows={2 * LATE[0]}")
    made, count = list[int](), 2 * LATE[0]
    step, scheduler = thread.session.engine.step, thread.session.engine.scheduler

    def stepping() -> Any:
        if someone_reads and scheduler.num_running == count and not thread.num_asked:
            thread.ask(slow=False)
        return step()

    def hand_over(news: list[News]) -> None:
        made.append(sum(asked.background and is_last(one) for asked, one in news))
        thread.news.extend(news)

    thread.made._hand_over = hand_over
    thread.session.engine.step = stepping  # type: ignore[method-assign]
    try:
        thread.ask_together(count, max_tokens=40)
        until(lambda: thread.num_finished == count + someone_reads, 60)
    finally:
        thread.made.close()
    # They begin in two passes, and so they end in two.
    assert max(made) == (LATE_IN_A_HURRY[0] if someone_reads else LATE[0])
