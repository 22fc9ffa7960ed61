"""Private copies of the caller's parameters: few, checked, and nobody else's."""

from __future__ import annotations

from typing import Any

import pytest

from quire.errors import InvalidParams
from quire.jobs.child.requests import MOST_KNOWN, SharedParams, sampling_params
from quire.sampling_params import SamplingParams
from quire.session.param_copies import _LISTS, _OBJECTS, ParamCopies


def copies(*params: SamplingParams) -> list[SamplingParams]:
    made = ParamCopies(list(params))
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


LISTS: list[dict[str, Any]] = [
    {"stop": ["a"]},
    {"stop": ["a", "b"]},
    {"bad_words": ["a"]},
    {"stop_token_ids": [3]},
    {"allowed_token_ids": [3]},
    {"allowed_token_ids": [3, 4]},
    {"allowed_token_ids": [4, 3]},
    {"logit_bias": {3: 4.0}},
    {"logit_bias": {4: 3.0}},
    {"logprob_token_ids": [3], "logprobs": 1},
]


def test_equal_lists_are_copied_once_and_no_two_others() -> None:
    many = [SamplingParams(**more) for more in LISTS * 2]
    made = copies(SamplingParams(), *many)
    assert len({id(copy) for copy in made}) == len(LISTS) + 1
    assert made[1 : len(LISTS) + 1] == many[: len(LISTS)] == made[len(LISTS) + 1 :]
    many[4].allowed_token_ids = [9]
    assert made[5].allowed_token_ids == [3]


@pytest.mark.parametrize(
    ("name", "value"),
    [("allowed_token_ids", [True]), ("allowed_token_ids", (True,)), ("logit_bias", {True: 1.0})],
)
def test_no_list_passes_because_an_equal_one_did(name: str, value: object) -> None:
    good, bad = SamplingParams(), SamplingParams()
    setattr(good, name, {1: 1.0} if name == "logit_bias" else [1])
    setattr(bad, name, value)
    with pytest.raises(InvalidParams, match=name):
        copies(good, bad)


@pytest.mark.parametrize("more", [{"logits_processors": [lambda ids, logits: logits]}])
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
    assert not set(plain) & {*_LISTS, *_OBJECTS, "logit_bias"}
    made = copies(SamplingParams(), *(SamplingParams(**{k: v}) for k, v in plain.items()))
    assert len({id(copy) for copy in made}) == len(plain) + 1


def test_a_sequence_that_makes_its_parameters_anew_is_read_right() -> None:
    """What it made is gone at once, and the next one may lie where it lay."""

    class Made(list[SamplingParams]):
        def __getitem__(self, index: Any) -> Any:
            return SamplingParams(max_tokens=int(index) + 1, stop=["x"])

    made = ParamCopies(Made())
    made._params.extend([SamplingParams()] * 50)  # type: ignore[union-attr]
    assert [made.at(i).max_tokens for i in range(50)] == list(range(1, 51))


class Short(SamplingParams):
    """As a script may have it."""

    def __init__(self, **more: Any) -> None:
        super().__init__(max_tokens=2, **more)


def test_a_class_of_a_scripts_own_is_copied_as_what_it_says() -> None:
    assert ParamCopies(Short(seed=3)).at(0) == SamplingParams(max_tokens=2, seed=3)


def test_rows_that_say_the_same_have_parameters_of_their_own() -> None:
    shared = SharedParams()
    rows: list[dict[str, Any]] = [
        {"seed": 1, "temperature": 0.5, "stop": ["a"]},
        {"seed": 2, "temperature": 0.5, "stop": ["a"]},
        {"temperature": 0.5, "stop": ["a"]},
        {"seed": -1, "temperature": 0.5, "stop": ["a"]},
        *({"max_tokens": i + 1} for i in range(2 * MOST_KNOWN)),
    ]
    for given in [*rows, *rows]:
        made = shared.read(given)
        assert made == sampling_params(given)
        made.skip_special_tokens = False  # as a server does for some
    assert len(shared._known) <= MOST_KNOWN


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ({"n": 1}, {"n": True}),
        ({"seed": 1}, {"seed": 1.0}),
        ({"seed": 1}, {"seed": 2**64}),
        ({"max_tokens": None}, {"max_tokens": float("nan")}),
        ({"stop": ["a"]}, {"stop": "['a']", "stop_token_ids": "a"}),
    ],
)
def test_no_row_passes_because_another_one_did(good: Any, bad: Any) -> None:
    shared = SharedParams()
    shared.read(good)
    with pytest.raises(InvalidParams):
        shared.read(bad)
