"""thinking_token_budget: so many tokens of thoughts, then what ends them, then the answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import LLM, InvalidParams, NotSupported, SamplingParams
from quire.config import ReasoningConfig
from quire.request import Request, ThoughtLimit
from quire.results.thought_watch import ThoughtWatch
from quire.sampling_params import StructuredOutputsParams
from tests.tiny_llm import tiny_llm

END = "Enough.</think>"
OPENED = "Why is it so? <think>\n"
CONFIG = {"reasoning_start_str": "<think>", "reasoning_end_str": END}


@pytest.fixture(scope="module", params=["one plan", "two plans in flight"])
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    directory = tmp_path_factory.mktemp("tiny")
    ahead = request.param != "one plan"
    with tiny_llm(directory, reasoning_config=CONFIG, async_scheduling=ahead) as made:
        yield made


def params(budget: int | None, **more: Any) -> SamplingParams:
    usual = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
    return SamplingParams(thinking_token_budget=budget, **{**usual, **more})


def ids(llm: LLM, text: str) -> list[int]:
    encoded: list[int] = llm.get_tokenizer().encode(text, add_special_tokens=False)
    return encoded


def answer(llm: LLM, prompt: Any, wanted: SamplingParams) -> list[int]:
    return [*llm.generate(prompt, wanted, use_tqdm=False)[0].outputs[0].token_ids]


@pytest.mark.parametrize("budget", [0, 1, 16])
@pytest.mark.parametrize("more", [{}, {"logprobs": 2}, {"stop": ["never written"]}], ids=str)
def test_thoughts_end_after_the_budget_and_the_answer_goes_on(
    llm: LLM, budget: int, more: dict[str, Any]
) -> None:
    prompt, end = ids(llm, OPENED), ids(llm, END)
    free = answer(llm, {"prompt_token_ids": prompt}, params(None, max_tokens=budget or 1))
    before = free[:budget] + end
    rest = params(None, max_tokens=24 - len(before))
    want = before + answer(llm, {"prompt_token_ids": prompt + before}, rest)
    [output] = llm.generate({"prompt_token_ids": prompt}, params(budget, **more), use_tqdm=False)
    assert [*output.outputs[0].token_ids] == want
    if "logprobs" in more:
        logprobs = output.outputs[0].logprobs or []
        assert [t in line for t, line in zip(want, logprobs, strict=True)] == [True] * 24
        each = [line[t].logprob for t, line in zip(want, logprobs, strict=True)]
        assert output.outputs[0].cumulative_logprob == pytest.approx(sum(each))


def test_the_logprobs_of_what_is_forced_are_the_model_s(llm: LLM) -> None:
    prompt = ids(llm, OPENED)
    [output] = llm.generate({"prompt_token_ids": prompt}, params(3, logprobs=0), use_tqdm=False)
    written = [*output.outputs[0].token_ids]
    assert written[3:][: len(ids(llm, END))] == ids(llm, END)
    scored = params(None, max_tokens=1, prompt_logprobs=0)
    [given] = llm.generate({"prompt_token_ids": prompt + written}, scored, use_tqdm=False)
    want = (given.prompt_logprobs or [])[len(prompt) :]
    got = output.outputs[0].logprobs or []
    for token, one, other in zip(written, got, want, strict=True):
        assert other is not None
        assert one[token].logprob == pytest.approx(other[token].logprob, abs=1e-4)


def test_samples_of_one_prompt_are_bounded_each(llm: LLM) -> None:
    wanted = params(5, temperature=1.0, n=4, seed=3)
    for budget in (0, 5):
        wanted.thinking_token_budget = budget
        [output] = llm.generate(OPENED, wanted, use_tqdm=False)
        end = ids(llm, END)
        written = [[*one.token_ids] for one in output.outputs]
        assert [one[budget : budget + len(end)] for one in written] == [end] * 4
        assert len({tuple(one) for one in written}) == 4
        assert all(len(one) == 24 for one in written)


def test_many_rows_in_a_small_pool_are_bounded_as_one_alone_is(tmp_path: Path) -> None:
    prompts = [f"{'again ' * (i % 5)}{OPENED}" for i in range(10)]
    wanted = [params(3 + i % 7, max_tokens=40) for i in range(10)]
    with tiny_llm(tmp_path, reasoning_config=CONFIG, num_gpu_blocks_override=16) as small:
        together = small.generate(prompts, wanted, use_tqdm=False)
        assert small._session.engine.scheduler.num_preemptions > 0
        for i in (0, 4, 9):
            assert [*together[i].outputs[0].token_ids] == answer(small, prompts[i], wanted[i])
        end = ids(small, END)
    for output, one in zip(together, wanted, strict=True):
        at = one.thinking_token_budget or 0
        assert [*output.outputs[0].token_ids][at : at + len(end)] == end


def test_an_answer_that_ends_within_the_budget_is_left_alone(llm: LLM) -> None:
    free = answer(llm, OPENED, params(None, max_tokens=8))
    assert answer(llm, OPENED, params(8, max_tokens=8)) == free
    first = free.index(free[3])
    stopped = params(first + 1, stop_token_ids=[free[3]])  # where the row is looked at
    [output] = llm.generate(OPENED, stopped, use_tqdm=False)
    assert [*output.outputs[0].token_ids] == free[: first + 1]
    assert output.outputs[0].stop_reason == free[3]


def test_what_is_forced_counts_towards_max_tokens_and_stop_strings(llm: LLM) -> None:
    [output] = llm.generate(OPENED, params(6, max_tokens=7), use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 7 and output.outputs[0].finish_reason == "length"
    assert output.outputs[0].token_ids[6] == ids(llm, END)[0]
    [output] = llm.generate(OPENED, params(6, stop="</think>"), use_tqdm=False)
    assert output.outputs[0].stop_reason == "</think>"
    assert output.outputs[0].text.endswith("Enough.")


def test_thoughts_that_the_answer_opens_are_bounded(llm: LLM) -> None:
    opening, end = ids(llm, "<think>"), ids(llm, END)

    def opens(output_ids: list[int], logits: Any) -> Any:
        if len(output_ids) < len(opening):
            logits[opening[len(output_ids)]] = 1e9
        return logits

    for budget in (0, 4):
        written = answer(llm, "Why?", params(budget, logits_processors=[opens]))
        assert written[: len(opening)] == opening
        assert written[len(opening) + budget :][: len(end)] == end
    free = answer(llm, "Why?", params(None))
    assert answer(llm, "Why?", params(4)) == free  # it does not think


def watch(llm: LLM, limit: ThoughtLimit) -> ThoughtWatch:
    tokenizer = llm._session.model.tokenizer
    assert tokenizer is not None
    request = Request(0, np.zeros(1, np.int32), SamplingParams(), 99, 0)
    return ThoughtWatch(tokenizer, request, limit)


def test_a_row_is_looked_at_no_more_once_its_thoughts_are_closed(llm: LLM) -> None:
    for opened, text, again in [
        (True, "so it is</think>yes", False),
        (False, "<think>so</think>yes", False),
        (False, "yes it is so", False),
        (False, "\n <thi", True),
    ]:
        one = watch(llm, ThoughtLimit(4, "<think>", "</think>", (7, 8), opened))
        written = np.array(ids(llm, text), np.int32)
        assert one.forced_after(written) == []
        assert one.due == (len(written) + 1 if again else None)


def test_what_the_row_has_begun_of_the_end_is_not_written_twice(llm: LLM) -> None:
    one = watch(llm, ThoughtLimit(3, "<think>", "</think>", (41, 42, 43), opened=True))
    assert one.forced_after(np.array([9, 41, 42], np.int32)) == [43]
    assert one.due is None


def test_a_model_without_thoughts_is_told_how_to_name_them(tmp_path: Path) -> None:
    with tiny_llm(tmp_path) as plain:
        with pytest.raises(InvalidParams, match="reasoning_parser"):
            plain.generate("Why?", params(4), use_tqdm=False)
        assert "</think>" in plain.generate(OPENED, params(2), use_tqdm=False)[0].outputs[0].text
        with pytest.raises(NotSupported, match="structured_outputs"):
            shape = StructuredOutputsParams(json_object=True)
            plain.generate(OPENED, params(2, structured_outputs=shape), use_tqdm=False)


def test_tags_of_their_own_are_named_by_a_reasoning_config(tmp_path: Path) -> None:
    config = ReasoningConfig(reasoning_start_str="<mine>", reasoning_end_str="</mine>")
    with tiny_llm(tmp_path, reasoning_config=config) as made:
        text = made.generate("Why? <mine>", params(3), use_tqdm=False)[0].outputs[0].text
    assert "</mine>" in text
