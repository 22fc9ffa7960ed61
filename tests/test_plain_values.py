"""What callers give in other forms is kept in one, as plain Python has it."""

from __future__ import annotations

from typing import Any

import numpy as np

from quire.sampling_params import SamplingParams


def test_values_are_kept_in_one_plain_form() -> None:
    params = SamplingParams(
        top_k=-1, seed=-1, stop="END", logprobs=True, prompt_logprobs=False, max_tokens=None
    )
    assert (params.top_k, params.seed, params.stop) == (0, None, ["END"])
    assert (params.logprobs, params.prompt_logprobs) == (1, None)
    assert (params.stop_token_ids, params.bad_words) == ([], [])
    assert SamplingParams(thinking_token_budget=-1).thinking_token_budget is None
    assert SamplingParams(temperature=np.float64(0.5)).temperature == 0.5
    small: Any = np.int32(5)
    assert type(SamplingParams(max_tokens=small).max_tokens) is int
    assert SamplingParams(stop_token_ids=np.array([3, 4])).stop_token_ids == [3, 4]  # type: ignore[arg-type]
    assert SamplingParams(logit_bias={small: 1}).logit_bias == {5: 1.0}
    lines = SamplingParams(prompt_logprob_token_ids=np.array([[3, -1]])).prompt_logprob_token_ids
    assert lines == [[3, -1]]


def test_flags_and_texts_of_numpy_are_plain() -> None:
    """They stand so in rows of a table."""
    flags: Any = {"ignore_eos": np.bool_(True), "stop": np.array(["a"])}
    assert repr(SamplingParams(**flags)) == "SamplingParams(stop=['a'], ignore_eos=True)"
