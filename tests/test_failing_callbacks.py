"""Whatever a caller's code raises in the middle of a call: every block is free afterwards, and the
next call works, also while the error is being handled and its traceback holds every frame."""

from __future__ import annotations

import errno
import gc
import io
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quire import LLM, BeamSearchParams, Interrupted, SamplingParams
from quire.sampling_params import StructuredOutputsParams
from tests.tiny_llm import tiny_llm

# One is done at once, the others have long to go when the callback raises.
WORDS = ["The river", "A quiet house by", "Once", "seven"]
PARAMS = [SamplingParams(temperature=1, seed=m, max_tokens=m) for m in (1, 60, 60, 60)]
GREEDY = SamplingParams(temperature=0, max_tokens=4)


class Enough(BaseException):
    """Not an Exception: what tests and event loops raise to end things."""


ERRORS = [RuntimeError, KeyboardInterrupt, SystemExit, Enough, GeneratorExit]


def check_free(llm: LLM) -> None:
    pool = llm._session.engine.scheduler.pool
    assert pool.num_free == pool.num_blocks
    assert llm._session.engine.idle


def fails_cleanly(llm: LLM, kind: type[BaseException], call: Callable[[], Any]) -> None:
    """The call raises `kind`; the LLM is fit for the next one inside the except block."""
    wanted = Interrupted if kind is KeyboardInterrupt else kind
    expected = [o.outputs[0].token_ids for o in llm.generate(WORDS, GREEDY, use_tqdm=False)]
    try:
        call()
    except wanted:
        check_free(llm)
        again = llm.generate(WORDS, GREEDY, use_tqdm=False)
        assert [o.outputs[0].token_ids for o in again] == expected
    else:
        pytest.fail(f"no {wanted.__name__}")
    check_free(llm)


def raiser(kind: type[BaseException]) -> Callable[..., None]:
    def stop(*args: Any) -> None:
        raise kind("enough")

    return stop


class Bar:
    """A progress bar that fails where it is told to."""

    def __init__(self, at: str, kind: type[BaseException]) -> None:
        self.at, self.kind, self.postfix = at, kind, ""

    def __call__(self, **options: Any) -> Bar:
        return self._maybe("make")

    def update(self, by: int) -> Bar:
        return self._maybe("update")

    def close(self) -> Bar:
        return self._maybe("close")

    def _maybe(self, at: str) -> Bar:
        if at == self.at:
            raise self.kind("enough")
        return self


@pytest.mark.parametrize("kind", ERRORS)
def test_on_result(llm: LLM, kind: type[BaseException]) -> None:
    call = lambda: llm.generate(WORDS, PARAMS, use_tqdm=False, on_result=raiser(kind))  # noqa: E731
    fails_cleanly(llm, kind, call)


@pytest.mark.parametrize(
    ("kind", "at"),
    [(KeyboardInterrupt, "make"), (Enough, "update"), (RuntimeError, "update"), (Enough, "close")],
)
def test_a_bar_of_the_callers(llm: LLM, kind: type[BaseException], at: str) -> None:
    fails_cleanly(llm, kind, lambda: llm.generate(WORDS, PARAMS, use_tqdm=Bar(at, kind)))


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_prompts_that_are_read_as_they_are_needed(llm: LLM, kind: type[BaseException]) -> None:
    many = 5 * llm._session.engine.scheduler.rows.capacity

    def prompts() -> Iterator[str]:
        for i in range(many):
            yield f"number {i}"
        raise kind("enough")

    params = SamplingParams(temperature=1, max_tokens=3, seed=1)
    fails_cleanly(llm, kind, lambda: llm.generate(prompts(), params, use_tqdm=False))


@pytest.mark.parametrize("kind", [RuntimeError, Enough])
def test_a_stream_whose_loop_raises(llm: LLM, kind: type[BaseException]) -> None:
    def call() -> None:
        for _ in llm.stream(WORDS, PARAMS):
            raise kind("enough")

    fails_cleanly(llm, kind, call)


@pytest.mark.parametrize("kind", [RuntimeError, Enough])
def test_while_grammars_are_compiled(llm: LLM, kind: type[BaseException]) -> None:
    guided = SamplingParams(
        max_tokens=60, structured_outputs=StructuredOutputsParams(regex="[a-z ]{40,50}")
    )
    params = [PARAMS[0], guided, PARAMS[2], guided]
    call = lambda: llm.generate(WORDS, params, use_tqdm=False, on_result=raiser(kind))  # noqa: E731
    fails_cleanly(llm, kind, call)


def test_beams_and_scores(llm: LLM) -> None:
    search = BeamSearchParams(beam_width=3, max_tokens=20)
    bar = Bar("update", Enough)
    fails_cleanly(llm, Enough, lambda: llm.beam_search(WORDS, search, use_tqdm=bar))
    chosen = [[" house", " river by the sea"]] * len(WORDS)
    fails_cleanly(llm, Enough, lambda: llm.score_continuations(WORDS, chosen, use_tqdm=bar))


def test_a_processor_that_ends_programs_ends_its_row(llm: LLM) -> None:
    def stop(ids: list[int], logits: Any) -> Any:
        raise SystemExit("enough")

    mixed = [GREEDY, SamplingParams(max_tokens=4, logits_processors=[stop])]
    outputs = llm.generate(WORDS[:2], mixed, use_tqdm=False, on_error="return")
    assert [o.error is not None for o in outputs] == [False, True]
    check_free(llm)


@pytest.mark.parametrize("at", ["abort", "drain"])
def test_an_engine_that_fails_while_it_is_emptied(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """And a second Ctrl-C while the first is being obeyed, which falls at the same places."""
    engine = llm._session.engine
    with monkeypatch.context() as patched:
        patched.setattr(engine, at, raiser(Enough))
        with pytest.raises(Enough):
            llm.generate(WORDS, PARAMS, use_tqdm=False, on_result=raiser(RuntimeError))
    check_free(llm)
    assert llm.generate(WORDS, GREEDY, use_tqdm=False)


def test_an_interrupt_between_two_lines_that_belong_together(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program's own handler may raise anywhere: here after rows were counted as gone."""
    scheduler = llm._session.engine.scheduler
    with monkeypatch.context() as patched:
        patched.setattr(scheduler, "abort", lambda samples: None)
        with pytest.raises(RuntimeError):
            llm.generate(WORDS, PARAMS, use_tqdm=False, on_result=raiser(RuntimeError))
    check_free(llm)
    assert llm.generate(WORDS, GREEDY, use_tqdm=False)


def test_what_was_finished_comes_with_an_interrupt_of_the_callback(llm: LLM) -> None:
    with pytest.raises(Interrupted) as caught:
        llm.generate(WORDS, PARAMS, use_tqdm=False, on_result=raiser(KeyboardInterrupt))
    assert caught.value.outputs[0] is not None and caught.value.outputs[1:] == [None] * 3


def test_the_same_in_a_folder_of_its_own_with_two_plans_in_flight(tmp_path: Path) -> None:
    with tiny_llm(tmp_path, async_scheduling=True) as deep:
        call = lambda: deep.generate(  # noqa: E731
            WORDS, PARAMS, use_tqdm=False, on_result=raiser(RuntimeError)
        )
        fails_cleanly(deep, RuntimeError, call)


def test_ctrl_c_while_prompts_are_read_hands_over_nothing(llm: LLM) -> None:
    class Slow(dict[str, Any]):
        def items(self) -> Any:
            signal.raise_signal(signal.SIGINT)
            return super().items()

    with pytest.raises(Interrupted) as caught:
        llm.generate([Slow(prompt="a")], GREEDY, use_tqdm=False)
    assert caught.value.outputs == []
    assert [o.prompt for o in llm.generate(["after"], GREEDY, use_tqdm=False)] == ["after"]


class Full(io.StringIO):
    """What takes no more text, as a file on a full disk, or a pipe that has no reader any more."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("stream", [None, Full()])
def test_a_bar_that_cannot_be_written_stops_nothing(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, stream: io.StringIO | None
) -> None:
    expected = [o.outputs[0].token_ids for o in llm.generate(WORDS, GREEDY, use_tqdm=False)]
    monkeypatch.setattr(sys, "stderr", stream)
    outputs = llm.generate(WORDS, GREEDY)
    gc.collect()  # what is left of the bar is quiet, too
    monkeypatch.undo()
    assert [o.outputs[0].token_ids for o in outputs] == expected
