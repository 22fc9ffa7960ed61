"""A choice is taken as a whole: what a caller sees. A tiny random model, real scores."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import (
    LLM,
    BatchError,
    InvalidLogits,
    InvalidParams,
    PromptTooLong,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)
from quire.request import Choices, Request
from quire.results.finished import PathScores
from quire.scheduler.score_tree import ScoreTree
from quire.scheduler.sequence import Sequence
from quire.step import Scores, StepPlan, StepResult
from tests.tiny_llm import tiny_llm

pytestmark = pytest.mark.usefixtures("every_block_is_free_afterwards")
PROMPTS = ["The river runs", "A quiet house", "Is it good?", "Once"]
WORDS = ["yes", "no", "maybe so", "certainly not", "perhaps"]


def asking(choice: list[str], mode: str | None = None, **params: Any) -> SamplingParams:
    shape = StructuredOutputsParams(choice=choice, choice_mode=mode)
    return SamplingParams(**{"temperature": 0, **params}, structured_outputs=shape)


def ask(llm: LLM, params: Any, prompts: Any = PROMPTS, **options: Any) -> list[RequestOutput]:
    return llm.generate(prompts, params, use_tqdm=False, **options)


def logprobs_of(llm: LLM, prompts: list[str], choices: list[str]) -> Any:
    """[prompts, choices], by score_continuations."""
    tokenizer = llm.get_tokenizer()
    contexts = [tokenizer.encode(prompt) for prompt in prompts]
    spelled = [tokenizer.encode(choice, add_special_tokens=False) for choice in choices]
    scores = llm.score_continuations(contexts, [spelled] * len(prompts), use_tqdm=False)
    return np.array([[one.logprob for one in row] for row in scores])


def test_the_answer_is_the_likeliest_choice_as_a_whole(llm: LLM) -> None:
    expected = logprobs_of(llm, PROMPTS, WORDS)
    for output, logprobs in zip(ask(llm, asking(WORDS)), expected, strict=True):
        [answer] = output.outputs
        assert answer.text == answer.content == WORDS[int(logprobs.argmax())]
        ids = llm.get_tokenizer().encode(answer.text, add_special_tokens=False)
        assert list(answer.token_ids) == ids
        assert (answer.finish_reason, answer.stop_reason) == ("stop", None)
        assert answer.logprobs is None and answer.cumulative_logprob is None
        chances = np.exp(logprobs - logprobs.max())
        probs = output.choice_probs
        assert probs is not None and list(probs) == WORDS
        assert list(probs.values()) == pytest.approx(chances / chances.sum(), abs=1e-4)
        assert output.metrics.num_generation_tokens == len(ids)
        assert output.metrics.first_token_ts >= output.metrics.scheduled_ts > 0


def test_it_is_not_what_the_first_tokens_say(llm: LLM) -> None:
    """Of the choices that masks draw, some are less likely than the one taken as a whole."""
    words = ["a b c", "x", "not at all", "why", "Zürich", "7 of 9", "oh"]
    prompts = [f"{i} {i * i}" for i in range(12)]
    whole = [o.outputs[0].text for o in ask(llm, asking(words), prompts)]
    masked = [o.outputs[0].text for o in ask(llm, asking(words, "tokens"), prompts)]
    logprobs = logprobs_of(llm, prompts, words)
    assert whole == [words[int(row.argmax())] for row in logprobs]
    assert set(masked) <= set(words) and masked != whole


def test_choices_mix_with_everything_else(llm: LLM) -> None:
    params = [
        asking(WORDS),
        SamplingParams(temperature=0, max_tokens=5, ignore_eos=True),
        SamplingParams(
            temperature=0, max_tokens=9, structured_outputs=StructuredOutputsParams(regex="[ab]{4}")
        ),
        asking(["x", "y"], temperature=1.0, seed=4, n=3),
        asking(WORDS, "tokens", max_tokens=20),
        asking(WORDS, logprobs=1),
    ]
    prompts = ["The river runs"] * len(params)
    together = ask(llm, params, prompts)
    for one, alone in zip(together, params, strict=True):
        [again] = ask(llm, alone, prompts[:1])
        assert [a.token_ids for a in again.outputs] == [a.token_ids for a in one.outputs]
    assert dict(llm.stream(prompts, params))[3].outputs[0].text in ("x", "y")
    [chatted] = llm.chat([{"role": "user", "content": "Yes?"}], asking(["x", "y"]), use_tqdm=False)
    assert chatted.outputs[0].text in ("x", "y") and chatted.choice_probs is not None


def test_equal_prompts_are_asked_once_and_answered_each(llm: LLM) -> None:
    outputs = ask(llm, asking(WORDS), ["The river runs"] * 5)
    assert len({o.outputs[0].text for o in outputs}) == 1
    assert all(o.choice_probs == outputs[0].choice_probs for o in outputs)


def test_draws_follow_the_probabilities(llm: LLM) -> None:
    for temperature in (1.0, 0.5):
        params = asking(WORDS, temperature=temperature, n=3000, seed=1)
        [output] = ask(llm, params, PROMPTS[:1])
        counts = Counter(answer.text for answer in output.outputs)
        weights = {w: p ** (1 / temperature) for w, p in (output.choice_probs or {}).items()}
        for word, weight in weights.items():
            share = weight / sum(weights.values())
            spread = math.sqrt(3000 * share * (1 - share)) + 1
            assert abs(counts[word] - 3000 * share) < 5 * spread


def test_a_seed_gives_the_same_choice_in_any_batch_and_none_gives_others(llm: LLM) -> None:
    seeded = asking(WORDS, temperature=1.5, seed=11, n=4)
    [alone] = ask(llm, seeded, PROMPTS[:1])
    among = ask(llm, [asking(["x"]), seeded, asking(WORDS)], [PROMPTS[1], PROMPTS[0], PROMPTS[2]])
    assert [a.text for a in among[1].outputs] == [a.text for a in alone.outputs]
    free = ask(llm, asking(WORDS, temperature=1.5), [PROMPTS[0]] * 16)
    assert len({o.outputs[0].text for o in free}) > 1


@pytest.mark.parametrize("cut", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
def test_what_cuts_tokens_cuts_choices(llm: LLM, cut: dict[str, Any]) -> None:
    best = [o.outputs[0].text for o in ask(llm, asking(WORDS))]
    for output, text in zip(
        ask(llm, asking(WORDS, temperature=2.0, n=8, **cut)), best, strict=True
    ):
        assert {answer.text for answer in output.outputs} == {text}


def test_top_k_keeps_the_likeliest(llm: LLM) -> None:
    [output] = ask(llm, asking(WORDS, temperature=2.0, n=200, seed=2, top_k=2), PROMPTS[:1])
    probs = output.choice_probs or {}
    best_two = sorted(probs, key=lambda word: -probs[word])[:2]
    assert {answer.text for answer in output.outputs} == set(best_two)


def test_an_answer_counts_for_the_longest_choice_it_begins_with(llm: LLM) -> None:
    words = ["no", "no way", "no way out", "yes", "no idea"]
    begins = np.exp(logprobs_of(llm, PROMPTS, words))
    for output, p in zip(ask(llm, asking(words)), begins, strict=True):
        own = np.array([p[0] - p[1] - p[4], p[1] - p[2], p[2], p[3], p[4]])
        probs = list((output.choice_probs or {}).values())
        assert probs == pytest.approx(own / own.sum(), rel=1e-3)
        assert output.outputs[0].text == words[int(own.argmax())]


def test_what_goes_on_as_a_longer_choice_is_taken_off() -> None:
    """With chances that a random model never gives: half of what begins with [1] goes on."""
    chances = {(1,): 0.6, (2,): 0.3, (1, 3): 0.4, (1, 4): 0.1, (1, 3, 5): 0.25, (1, 3, 6): 0.75}
    spelled = [(1,), (2,), (1, 3), (1, 4), (1, 3, 5), (1, 3, 6)]
    ids = tuple(np.array(one, np.int32) for one in spelled)
    choices = Choices(tuple("abcdef"), ids, ((2, 3), (), (4, 5), (), (), ()))
    request = Request(0, np.array([7], np.int32), SamplingParams(), 0, 0, continuations=ids)
    tree = ScoreTree.of(ids)
    paths = []
    for number, path in enumerate(tree.paths):
        lines = zip(path.depths.tolist(), path.targets.tolist(), strict=True)
        logprobs = [math.log(chances[(*path.tokens[:d].tolist(), t)]) for d, t in lines]
        columns = (path.targets, np.array(logprobs, np.float32), path.targets)
        none = np.empty((len(logprobs), 0))
        scores = Scores(*columns, none.astype(np.int32), none.astype(np.float32))
        paths.append(Sequence(request, number, tree=tree, scores=[scores]))
    found = np.exp(PathScores(paths).of_choices(choices))
    # Nothing is left of [1 3]: all of it goes on. Its share is the least that rounding allows.
    assert found == pytest.approx([0.3, 0.3, 0.0, 0.06, 0.06, 0.18], abs=1e-6)
    assert found[2] > 0


def test_logprobs_are_those_of_the_canonical_tokens(llm: LLM) -> None:
    words = ["maybe so", "certainly not at all"]
    for k in (0, 3):
        for output in ask(llm, asking(words, logprobs=k)):
            [answer] = output.outputs
            tokens = list(answer.token_ids)
            [[score]] = llm.score_continuations(
                [output.prompt_token_ids], [[tokens]], use_tqdm=False
            )
            positions = answer.logprobs or []
            own = [p[t].logprob for p, t in zip(positions, tokens, strict=True)]
            assert own == pytest.approx(score.token_logprobs, abs=1e-4)
            assert answer.cumulative_logprob == pytest.approx(score.logprob, abs=1e-3)
            assert all(len({e.rank for e in p.values()} & set(range(1, k + 1))) == k
                       for p in positions)  # fmt: skip


BY_TOKEN: list[dict[str, Any]] = [
    {"logit_bias": {5: 1.0}},
    {"allowed_token_ids": list(range(49_000))},
    {"bad_words": ["zzz"]},
    {"logits_processors": [lambda ids, logits: logits]},
    {"prompt_logprobs": 0},
    {"prompt_logprob_token_ids": [[5]] * 2},
    {"logprob_token_ids": [5]},
    {"logprobs": -1, "choice": [f"number {i}" for i in range(60)]},
]


@pytest.mark.parametrize("more", BY_TOKEN, ids=lambda more: next(iter(more)))
def test_what_is_asked_token_by_token_is_drawn_so(llm: LLM, more: dict[str, Any]) -> None:
    fields = dict(more)
    words = fields.pop("choice", WORDS)
    [free] = ask(llm, asking(words, max_tokens=20, **fields), PROMPTS[:1])
    [masked] = ask(llm, asking(words, "tokens", max_tokens=20, **fields), PROMPTS[:1])
    assert free.choice_probs is None
    assert free.outputs[0].token_ids == masked.outputs[0].token_ids
    with pytest.raises(InvalidParams, match="cannot be taken as a whole"):
        ask(llm, asking(words, "whole", **fields), PROMPTS[:1])


def test_a_text_without_plain_tokens_is_drawn_token_by_token(llm: LLM) -> None:
    words = ["<|im_end|>", "yes"]
    [output] = ask(llm, asking(words, max_tokens=20), PROMPTS[:1])
    assert output.choice_probs is None
    with pytest.raises(InvalidParams, match="no plain tokens that spell"):
        ask(llm, asking(words, "whole"), PROMPTS[:1])


def test_a_choice_is_never_cut_nor_stopped_nor_lengthened(llm: LLM) -> None:
    words = ["certainly not at all", "in no way whatsoever"]
    plain = [o.outputs[0].text for o in ask(llm, asking(words))]
    for more in (
        {"max_tokens": 1},
        {"max_tokens": 90, "min_tokens": 60},
        {"stop": ["not", "way"], "stop_token_ids": [5], "include_stop_str_in_output": True},
        {"ignore_eos": True, "presence_penalty": 2.0, "repetition_penalty": 1.9},
    ):
        outputs = ask(llm, asking(words, **more))
        assert [o.outputs[0].text for o in outputs] == plain
        assert {o.outputs[0].finish_reason for o in outputs} == {"stop"}
    [bare] = ask(llm, asking(words, detokenize=False), PROMPTS[:1])
    assert bare.outputs[0].text == "" and len(bare.outputs[0].token_ids) > 1


def test_a_choice_without_room_costs_its_own_row(llm: LLM) -> None:
    words = ["one two three four five six seven eight nine ten", "x"]
    with pytest.raises(BatchError) as failed:
        ask(llm, asking(words), iter([[5] * 508, [6, 7]]))
    assert isinstance(failed.value.errors[0], PromptTooLong)
    assert failed.value.outputs[1].outputs[0].text in words
    [fits] = ask(llm, asking(["x", "y"]), [[5] * 511])
    assert fits.outputs[0].text in ("x", "y")


def computed(llm: LLM, params: SamplingParams, prompts: Any) -> int:
    """Tokens that were fed."""
    llm.reset_prefix_cache()
    executor, fed = llm._session.engine.executor, [0]

    class Counting:
        handles = executor.handles

        def submit(self, plan: StepPlan) -> Any:
            fed[0] += plan.num_tokens
            return executor.submit(plan)

    llm._session.engine.executor = Counting()  # type: ignore[assignment]
    try:
        ask(llm, params, prompts)
    finally:
        llm._session.engine.executor = executor
    return fed[0]


def test_a_prompt_is_computed_once_and_beginnings_are_shared(llm: LLM) -> None:
    prompt = [[7] * 50]
    assert computed(llm, asking(["yes", "no", "maybe"]), prompt) == 50
    tokenizer = llm.get_tokenizer()
    words = ["I do not know that", "I do not know this", "I do not think so", "no"]
    spelled = [tokenizer.encode(word, add_special_tokens=False) for word in words]
    beginnings = {tuple(ids[:k]) for ids in spelled for k in range(1, len(ids))}
    assert computed(llm, asking(words), prompt) == 50 + len(beginnings)


@pytest.mark.parametrize("options", [
    {"max_num_seqs": 1},
    {"max_num_seqs": 3, "max_num_batched_tokens": 16},
    {"num_gpu_blocks_override": 6, "max_num_seqs": 8},
    {"enable_prefix_caching": False, "async_scheduling": True},
])  # fmt: skip
def test_rows_blocks_and_preemption_change_nothing(
    llm: LLM, tmp_path: Path, options: dict[str, Any]
) -> None:
    prompts: list[Any] = [[i] * (20 + 9 * i) for i in range(1, 6)]
    words = [f"{a} {b} {c}" for a in ("red", "blue") for b in "xyz" for c in ("one", "two")]
    expected = [o.choice_probs for o in ask(llm, asking(words), prompts)]
    with tiny_llm(tmp_path, **options) as other:
        for output, probs in zip(ask(other, asking(words), prompts), expected, strict=True):
            assert output.choice_probs == pytest.approx(probs, abs=1e-4)
        pool = other._session.engine.scheduler.pool
        assert pool.num_free == pool.num_blocks


def test_a_thousand_choices_weigh_nothing_while_they_wait(llm: LLM) -> None:
    words = [f"class {i:03}" for i in range(1000)]
    session = llm._session
    windows, _ = session.intake.read([[i, i] for i in range(3, 40)], asking(words))
    run = session.run(windows, lambda: None)
    next(run)
    waiting = list(session.engine.scheduler.waiting)
    assert sum(len(one.siblings) for one in waiting) < 1000 * 3
    assert len(waiting) < 1000 + 37, "paths are made when their request begins"
    run.close()


def test_bad_scores_end_their_own_row(llm: LLM) -> None:
    executor = llm._session.engine.executor

    class Spoiling:
        handles = executor.handles

        def submit(self, plan: StepPlan) -> Any:
            pending = executor.submit(plan)
            bad = {
                i for i, s in enumerate(plan.prefill) if s.targets is not None and 13 in s.token_ids
            }

            class Pending:
                def result(self) -> StepResult:
                    result = pending.result()
                    for i in bad & set(result.scored):
                        result.scored[i].logprobs[:] = np.nan
                    return result

            return Pending()

    llm._session.engine.executor = Spoiling()  # type: ignore[assignment]
    try:
        prompts = [[5, 6], [5, 13], [7, 8]]
        outputs = ask(llm, asking(WORDS), prompts, on_error="return")
        with pytest.raises(BatchError):
            ask(llm, asking(WORDS, temperature=1.0, n=2), prompts)
    finally:
        llm._session.engine.executor = executor
    assert isinstance(outputs[1].error, InvalidLogits) and outputs[1].choice_probs is None
    assert outputs[1].outputs[0].finish_reason == "error"
    assert outputs[0].error is outputs[2].error is None
    assert outputs[2].outputs[0].text in WORDS


def test_a_batch_processor_is_heeded(tmp_path: Path) -> None:
    from tests.test_beam_search import Halved

    with tiny_llm(tmp_path, logits_processors=[Halved]) as halved:
        [output] = ask(halved, asking(WORDS, max_tokens=20), PROMPTS[:1])
        assert output.choice_probs is None and output.outputs[0].text in WORDS


@pytest.mark.parametrize("fields", [
    {"choice": ["a"], "choice_mode": "best"},
    {"choice": ["a"], "choice_mode": 3},
    {"regex": "a", "choice_mode": "tokens"},
])  # fmt: skip
def test_modes_are_checked(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidParams, match="choice_mode"):
        StructuredOutputsParams(**fields)


def test_a_choice_that_is_cancelled_says_so(llm: LLM) -> None:
    session = llm._session
    windows, _ = session.intake.read([[5] * 40, [6] * 40], asking(WORDS, temperature=1.0, n=2))
    [window] = list(windows)
    run = session.new_run(lambda: run.cancel(window[0].number))
    outputs = dict(run.outputs([window]))
    assert [a.finish_reason for a in outputs[0].outputs] == ["abort", "abort"]
    assert outputs[0].error is None and outputs[0].choice_probs is None
    assert all(a.text in WORDS for a in outputs[1].outputs)


def test_a_choice_is_streamed_whole(llm: LLM) -> None:
    for kind in RequestOutputKind:
        params = asking(["maybe so", "not at all"], output_kind=kind, logprobs=0)
        [(_, output)] = list(llm.stream(PROMPTS[:1], params, tokens=True))
        [answer] = output.outputs
        assert output.finished and answer.text in ("maybe so", "not at all")
        assert len(answer.token_ids) == len(answer.logprobs or ())
