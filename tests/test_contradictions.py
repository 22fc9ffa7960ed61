"""Constraints that contradict each other: refused where they are known, and otherwise the end of
their own row, with an error that is not that of bad weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from quire import (
    LLM,
    BatchError,
    InvalidLogits,
    InvalidParams,
    NoTokenLeft,
    SamplingParams,
    StructuredOutputsParams,
)
from tests.test_batch_processors import Counting
from tests.tiny_llm import tiny_llm

CAT, YES, EOS = 2644, 10407, 2  # " cat", "yes"
FREE = SamplingParams(temperature=1.0, seed=4, max_tokens=6)


def told(llm: LLM, params: SamplingParams) -> tuple[Any, list[str]]:
    """The error of a row with these parameters, and the texts of rows around it."""
    given = [FREE, params, FREE]
    outputs = llm.generate(["a", "b", "c"], given, use_tqdm=False, on_error="return")
    assert outputs[0].error is None and outputs[2].error is None
    return outputs[1].error, [outputs[i].outputs[0].text for i in (0, 2)]


def alone(llm: LLM) -> list[str]:
    found = llm.generate(["a", "c"], FREE, use_tqdm=False)
    return [one.outputs[0].text for one in found]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"allowed_token_ids": [CAT], "bad_words": ["cat"]}, "bad_words=['cat'] forbids"),
        ({"allowed_token_ids": [CAT], "logit_bias": {CAT: -1e30}}, "logit_bias={2644: -1e+30}"),
        ({"allowed_token_ids": [EOS], "min_tokens": 2}, "min_tokens=2"),
        (
            {"allowed_token_ids": [CAT], "stop_token_ids": [CAT], "min_tokens": 1},
            "no token may end the answer",
        ),
        (
            {"allowed_token_ids": [CAT, 5], "bad_words": ["cat"], "logit_bias": {5: -1e25}},
            "bad_words=['cat'] and logit_bias={5: -1e+25} forbid them all",
        ),
    ],
)
def test_what_leaves_no_token_from_the_start_is_refused(
    llm: LLM, options: dict[str, Any], words: str, temperature: float
) -> None:
    params = SamplingParams(temperature=temperature, max_tokens=4, **options)
    with pytest.raises(InvalidParams) as caught:
        llm.generate("a", params, use_tqdm=False)
    assert isinstance(caught.value, ValueError)
    assert words in str(caught.value) and "Take tokens out of one of them" in str(caught.value)
    assert f"allowed_token_ids={options['allowed_token_ids']}" in str(caught.value)
    assert caught.value.parameter == "allowed_token_ids"
    error, beside = told(llm, params)
    assert isinstance(error, InvalidParams) and beside == alone(llm)


def test_a_bias_may_forbid_the_whole_vocabulary_only_together_with_nothing_else(llm: LLM) -> None:
    bias = dict.fromkeys(range(49152), -1e30)
    with pytest.raises(InvalidParams, match="the whole vocabulary leaves no token") as caught:
        llm.generate("a", SamplingParams(logit_bias=bias), use_tqdm=False)
    assert caught.value.parameter == "logit_bias"
    del bias[CAT]
    params = SamplingParams(logit_bias=bias, max_tokens=2)
    assert llm.generate("a", params, use_tqdm=False)[0].outputs[0].token_ids == [CAT, CAT]


@pytest.mark.parametrize(
    "options",
    [
        {"allowed_token_ids": [CAT], "logit_bias": {CAT: -100.0}},
        {"allowed_token_ids": [CAT], "logit_bias": {CAT: -9e19}, "repetition_penalty": 1e6},
        {"allowed_token_ids": [CAT, 5], "bad_words": ["cat"]},
        {"allowed_token_ids": [EOS], "min_tokens": 2, "ignore_eos": True},
    ],
)
def test_what_leaves_one_token_draws_it(llm: LLM, options: dict[str, Any]) -> None:
    params = SamplingParams(max_tokens=3, temperature=0.01, **options)
    error, beside = told(llm, params)
    assert error is None and beside == alone(llm)


def test_a_token_that_is_forbidden_by_its_bias_never_comes(llm: LLM) -> None:
    """Not even where a penalty makes the others as unlikely."""
    params = SamplingParams(
        max_tokens=20, allowed_token_ids=[CAT, 5], logit_bias={CAT: -1e30, 5: -9e19}
    )
    assert llm.generate("a", params, use_tqdm=False)[0].outputs[0].token_ids == [5] * 20


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("options", "form", "words"),
    [
        ({"allowed_token_ids": [CAT]}, {"regex": "yes"}, "allowed_token_ids=[2644]"),
        ({"allowed_token_ids": [CAT, YES]}, {"regex": "yes[0-9]"}, "after 1 token of"),
        ({"allowed_token_ids": [CAT]}, {"choice": ["yes", "no"]}, "structured_outputs (choice)"),
        ({"allowed_token_ids": [CAT]}, {"json": {"type": "boolean"}}, "structured_outputs (json)"),
        ({"bad_words": ["yes", "y"]}, {"regex": "yes"}, "bad_words=['yes', 'y']"),
        ({"logit_bias": {YES: -1e30}}, {"regex": "yes"}, "logit_bias={10407: -1e+30}"),
        ({"stop_token_ids": [YES], "min_tokens": 2}, {"regex": "yes"}, "min_tokens=2"),
    ],
)
def test_a_grammar_that_the_other_constraints_leave_no_token_ends_its_own_row(
    llm: LLM, options: dict[str, Any], form: dict[str, Any], words: str, temperature: float
) -> None:
    wanted = StructuredOutputsParams(**form)
    params = SamplingParams(
        max_tokens=8, temperature=temperature, structured_outputs=wanted, **options
    )
    error, beside = told(llm, params)
    assert type(error) is NoTokenLeft and not isinstance(error, InvalidLogits)
    assert words in str(error) and "no token was left to draw" in str(error)
    assert beside == alone(llm)
    with pytest.raises(BatchError, match="no token was left"):
        llm.generate("a", params, use_tqdm=False)


@pytest.mark.parametrize("form", [{"regex": "yes"}, {"json": {"type": "boolean"}}])
@pytest.mark.parametrize("options", [{"min_tokens": 6}, {"ignore_eos": True}])
def test_the_end_of_a_grammar_ends_the_answer_whatever_else_was_asked(
    llm: LLM, options: dict[str, Any], form: dict[str, Any]
) -> None:
    wanted = StructuredOutputsParams(**form)
    params = SamplingParams(max_tokens=8, structured_outputs=wanted, **options)
    [output] = llm.generate("a", params, use_tqdm=False)
    assert output.outputs[0].finish_reason == "stop"
    assert output.outputs[0].text in ("yes", "true", "false")


def forbid_all(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    return logits.fill_(-torch.inf) if len(output_ids) == 2 else logits


def test_a_logits_processor_that_forbids_everything_is_named(llm: LLM) -> None:
    error, beside = told(llm, SamplingParams(max_tokens=8, logits_processors=[forbid_all]))
    assert type(error) is NoTokenLeft and beside == alone(llm)
    assert "after 2 tokens" in str(error) and "logits_processors forbids all" in str(error)


def test_bad_logits_of_the_model_stay_what_they_are(tmp_path: Path) -> None:
    """Under constraints, too, that leave tokens."""
    with tiny_llm(tmp_path, enforce_eager=True) as llm:
        model = llm.llm_engine.model_executor.driver_worker.model_runner.model
        model.load_weights([("model.norm.weight", torch.full((32,), torch.nan))])
        for options in ({}, {"allowed_token_ids": [CAT]}, {"min_tokens": 3}):
            params = SamplingParams(max_tokens=3, **options)
            [output] = llm.generate("a", params, use_tqdm=False, on_error="return")
            assert type(output.error) is InvalidLogits


class ForbidsAll(Counting):
    """Of rows that name a token, and of no others."""

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for index in self.rows:
            logits[index] = -torch.inf
        return logits


def test_so_is_one_of_the_whole_batch(tmp_path: Path) -> None:
    params = SamplingParams(max_tokens=4, extra_args={"first": 1})
    with tiny_llm(tmp_path, logits_processors=[ForbidsAll]) as llm:
        error, _ = told(llm, params)
    assert type(error) is NoTokenLeft and "logits_processors forbids all" in str(error)


def test_rows_with_logprobs_draw_what_a_grammar_forces_and_may_so_end(llm: LLM) -> None:
    wanted = StructuredOutputsParams(regex="yesno")
    params = SamplingParams(max_tokens=8, structured_outputs=wanted, allowed_token_ids=[YES])
    [output] = llm.generate("a", params, use_tqdm=False)
    assert output.outputs[0].text == "yesno"
    params.logprobs = 0
    error, beside = told(llm, params)
    assert type(error) is NoTokenLeft and beside == alone(llm)
