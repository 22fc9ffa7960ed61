"""LLM.score_continuations: what a caller sees. A tiny random model; parity is in tests/parity."""

from __future__ import annotations

import copy
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import (
    LLM,
    BatchError,
    ContinuationScore,
    EngineBusy,
    EngineError,
    Interrupted,
    InvalidLogits,
    InvalidPrompt,
    PromptTooLong,
    SamplingParams,
)
from quire.logprobs import LazyLogprobs
from quire.step import StepResult
from tests.tiny_llm import tiny_llm

pytestmark = pytest.mark.usefixtures("every_block_is_free_afterwards")
CONTEXTS = ["The river runs", "A quiet house by the ", "Once", "The river runs"]
CONTINUATIONS = [[" down", " up the hill", " down"], ["sea", "lake"], [" upon a time"], [" up"]]


def score(llm: LLM, contexts: Any = CONTEXTS, continuations: Any = CONTINUATIONS) -> Any:
    return llm.score_continuations(contexts, continuations, use_tqdm=False)


def by_prompt_logprobs(llm: LLM, context: str, continuation: str) -> list[float]:
    """The same by generate(): the logprobs of the last prompt tokens."""
    whole = llm.get_tokenizer()(context + continuation)["input_ids"]
    own = len(llm.get_tokenizer()(context.rstrip())["input_ids"])
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    (output,) = llm.generate([whole], params, use_tqdm=False)
    assert output.prompt_logprobs is not None
    positions = [position or {} for position in output.prompt_logprobs[own:]]
    return [p[token].logprob for p, token in zip(positions, whole[own:], strict=True)]


def test_scores_have_the_shape_of_the_continuations_and_agree_with_prompt_logprobs(
    llm: LLM,
) -> None:
    scores = score(llm)
    assert [len(row) for row in scores] == [3, 2, 1, 1]
    for context, some, row in zip(CONTEXTS, CONTINUATIONS, scores, strict=True):
        for continuation, one in zip(some, row, strict=True):
            assert isinstance(one, ContinuationScore)
            expected = by_prompt_logprobs(llm, context, continuation)
            assert list(one.token_logprobs) == pytest.approx(expected, abs=1e-4)
            assert one.logprob == pytest.approx(sum(expected), abs=1e-3)
            assert one.num_tokens == len(expected)
    assert scores[0][0] == scores[0][2]


def test_what_the_model_would_write_is_greedy(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    (output,) = llm.generate(["The river"], params, use_tqdm=False)
    ids = list(output.outputs[0].token_ids)
    other = [*ids[:4], (ids[4] + 1) % 1000]
    ((first, second),) = score(llm, [output.prompt_token_ids], [[ids, other]])
    assert first.is_greedy and not second.is_greedy
    assert first.token_logprobs[:4] == second.token_logprobs[:4]


def test_one_context_needs_no_list_and_nothing_gives_nothing(llm: LLM) -> None:
    assert score(llm, CONTEXTS[0], CONTINUATIONS[0]) == score(llm)[:1]
    assert score(llm, [], []) == []
    assert score(llm, ["a", "b"], [[], []]) == [[], []]


def test_contexts_are_found_in_the_cache_by_the_next_call(llm: LLM) -> None:
    context = list(range(100, 180))
    llm.reset_prefix_cache()
    ((first,),) = score(llm, [context], [[[1, 2]]])
    computed = [0]
    submit = llm._session.model.executor.submit

    def counting(plan: Any) -> Any:
        computed[0] += plan.num_tokens
        return submit(plan)

    llm._session.engine.executor = _With(llm._session.model.executor, counting)
    try:
        ((again,),) = score(llm, [context], [[[1, 2]]])
    finally:
        llm._session.engine.executor = llm._session.model.executor
    assert again.token_logprobs == pytest.approx(first.token_logprobs, abs=1e-5)
    assert computed[0] == 80 + 1 - 64, "the last position of a whole block is scored, so computed"


class _With:
    """An executor with another submit."""

    def __init__(self, inner: Any, submit: Any) -> None:
        self._inner, self.submit = inner, submit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_bad_input_is_refused_before_any_work(llm: LLM) -> None:
    with pytest.raises(InvalidPrompt, match="2 contexts and 1 lists"):
        score(llm, ["a", "b"], [["c"]])
    assert score(llm, [[5] * 509], [[[5] * 4]])[0][0].num_tokens == 4
    with pytest.raises(PromptTooLong, match="of which 513 are computed; the model takes 512"):
        score(llm, [[5] * 509], [[[5] * 5]])


def test_a_failed_context_leaves_the_others_their_scores(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = llm._session.model.executor.submit

    class Broken:
        def __init__(self, made: StepResult) -> None:
            self.made = made

        def result(self) -> StepResult:
            for scores in self.made.scored.values():
                broken = np.where(scores.token_ids == 77, np.nan, scores.logprobs)
                scores.logprobs.setflags(write=True)
                scores.logprobs[:] = broken
            return self.made

    broken = _With(llm._session.model.executor, lambda plan: Broken(submit(plan).result()))
    monkeypatch.setattr(llm._session.engine, "executor", broken)
    with pytest.raises(BatchError) as failed:
        score(llm, [[1, 2], [3, 4]], [[[5], [77, 78]], [[5]]])
    assert isinstance(failed.value.errors[0], InvalidLogits) and list(failed.value.errors) == [0]
    assert failed.value.outputs[0] is None and len(failed.value.outputs[1]) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, EngineError])
def test_what_was_scored_before_the_end_comes_with_the_error(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    calls = [0]
    submit = llm._session.model.executor.submit

    def breaks_later(plan: Any) -> Any:
        calls[0] += 1
        if calls[0] == 4:
            raise error("enough")
        return submit(plan)

    broken = _With(llm._session.model.executor, breaks_later)
    monkeypatch.setattr(llm._session.engine, "executor", broken)
    contexts = [[i] * 400 for i in range(1, 40)]
    with pytest.raises((Interrupted, EngineError)) as ended:
        score(llm, contexts, [[[5], [6]]] * 39)
    found = ended.value.outputs  # type: ignore[attr-defined]
    assert len(found) == 39 and any(row is not None for row in found) and found[-1] is None


def test_it_cannot_be_called_from_inside_a_call(llm: LLM) -> None:
    with pytest.raises(EngineBusy):
        llm.generate(["a"], on_result=lambda *_: score(llm), use_tqdm=False)


def test_it_works_without_a_tokenizer_and_in_any_logprobs_mode(tmp_path: Path, llm: LLM) -> None:
    expected = score(llm, [[5, 6, 7]], [[[8, 9], [10]]])
    with tiny_llm(tmp_path, skip_tokenizer_init=True, logprobs_mode="raw_logits") as other:
        found = score(other, [[5, 6, 7]], [[[8, 9], [10]]])
    assert found[0][0].token_logprobs == pytest.approx(expected[0][0].token_logprobs, abs=1e-5)
    assert found[0][1].logprob == pytest.approx(expected[0][1].logprob, abs=1e-5)


def test_logprobs_of_a_whole_vocabulary_are_made_when_looked_at(llm: LLM) -> None:
    """As dicts these took 15 MB a token."""
    ids = list(range(5, 205))
    tracemalloc.start()
    (output,) = llm.generate(
        [ids], SamplingParams(prompt_logprobs=-1, logprobs=-1, max_tokens=3), use_tqdm=False
    )
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 250 << 20
    found, answer = output.prompt_logprobs, output.outputs[0]
    assert isinstance(found, LazyLogprobs) and isinstance(answer.logprobs, LazyLogprobs)
    assert len(found) == 200 and found[0] is None
    for at in (1, 150, -1):
        position = found[at]
        assert position is not None and len(position) == 49152 and next(iter(position)) == ids[at]
        assert position == found[at] and sorted(p.rank or 0 for p in position.values())[0] == 1
    assert len(found[1:3]) == 2 and found[1:3][0] == found[1]
    assert len(answer.logprobs) == 3 and answer.token_ids[0] in (answer.logprobs[0] or {})
    assert isinstance(copy.copy(found[:2]), list)
    (few,) = llm.generate(
        [ids[:9]], SamplingParams(prompt_logprobs=3, max_tokens=1), use_tqdm=False
    )
    assert isinstance(few.prompt_logprobs, list)
    for position, wide in zip(few.prompt_logprobs[1:], found[1:9], strict=True):
        assert position is not None and wide is not None
        for token, entry in position.items():
            assert entry.rank == wide[token].rank
            assert entry.logprob == pytest.approx(wide[token].logprob, abs=1e-4)
