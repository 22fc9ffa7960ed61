"""Private copies of the caller's parameters: few, checked, and nobody else's."""

from __future__ import annotations

from typing import Any

import pytest

from quire.errors import InvalidParams
from quire.sampling_params import SamplingParams
from quire.session.intake import _CONTAINERS, _ParamCopies


def copies(*params: SamplingParams) -> list[SamplingParams]:
    made = _ParamCopies(list(params))
    return [made.at(i) for i in range(len(params))]


def test_parameters_that_say_the_same_are_copied_once() -> None:
    first, second, other = copies(
        SamplingParams(max_tokens=5), SamplingParams(max_tokens=5), SamplingParams(max_tokens=6)
    )
    assert first is second
    assert other is not first and other.max_tokens == 6


def test_the_callers_object_is_never_handed_on() -> None:
    mine = SamplingParams(max_tokens=5)
    (copy,) = copies(mine)
    mine.max_tokens = 9
    assert copy is not mine and copy.max_tokens == 5


@pytest.mark.parametrize(
    "more",
    [
        {"stop": ["a"]},
        {"logit_bias": {1: 1.0}},
        {"allowed_token_ids": [3]},
        {"logits_processors": [lambda ids, logits: logits]},
    ],
)
def test_parameters_that_hold_more_have_a_copy_each(more: dict[str, Any]) -> None:
    first, second, plain = copies(
        SamplingParams(**more), SamplingParams(**more), SamplingParams(temperature=0.5)
    )
    assert first is not second
    assert first != plain


@pytest.mark.parametrize(
    ("name", "value"), [("n", True), ("max_tokens", [5]), ("stop_token_ids", 0), ("top_k", 1.5)]
)
def test_what_was_assigned_later_is_checked_though_an_equal_one_passed(
    name: str, value: object
) -> None:
    bad = SamplingParams(n=1)
    setattr(bad, name, value)
    with pytest.raises(InvalidParams, match=name):
        copies(SamplingParams(n=1), bad)


def test_every_field_counts() -> None:
    plain = {
        "n": 2, "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.5,
        "temperature": 0.5, "top_p": 0.5, "top_k": 3, "min_p": 0.5, "seed": 4, "ignore_eos": True,
        "max_tokens": 7, "min_tokens": 1, "logprobs": 1, "prompt_logprobs": 1,
        "detokenize": False, "skip_special_tokens": False,
    }  # fmt: skip
    assert not set(plain) & set(_CONTAINERS)
    made = copies(SamplingParams(), *(SamplingParams(**{k: v}) for k, v in plain.items()))
    assert len({id(copy) for copy in made}) == len(plain) + 1


def test_a_sequence_that_makes_its_parameters_anew_is_read_right() -> None:
    """What it made is gone at once, and the next one may lie where it lay."""

    class Made(list[SamplingParams]):
        def __getitem__(self, index: Any) -> Any:
            return SamplingParams(max_tokens=int(index) + 1, stop=["x"])

    made = _ParamCopies(Made())
    made._params.extend([SamplingParams()] * 50)  # type: ignore[union-attr]
    assert [made.at(i).max_tokens for i in range(50)] == list(range(1, 51))
