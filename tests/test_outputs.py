"""Outputs carry what callers read, under the names they read it by."""

from __future__ import annotations

import pickle
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import InvalidLogits
from quire.logprobs import FlatLogprobs, Logprob, LogprobsOnePosition
from quire.outputs import (
    ClassificationOutput,
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    RequestOutput,
    RequestStateStats,
    ScoringOutput,
)

positions = st.lists(
    st.none()
    | st.dictionaries(
        st.integers(0, 99),
        st.builds(
            Logprob,
            st.floats(-9, 0),
            st.none() | st.integers(1, 99),
            st.none() | st.text(max_size=2),
        ),
        max_size=3,
    ),
    max_size=6,
)


@given(positions)
def test_flat_logprobs_read_like_the_list_they_came_from(
    many: list[LogprobsOnePosition | None],
) -> None:
    flat = FlatLogprobs()
    flat.extend(many)
    expected = [position or {} for position in many]
    assert list(flat) == expected
    assert len(flat) == len(many)
    assert list(flat[1:4]) == expected[1:4]
    assert list(flat[::-1]) == expected[::-1]
    for i in range(-len(many), len(many)):
        assert flat[i] == expected[i]
    with pytest.raises(IndexError):
        flat[len(many)]


def test_flat_logprobs_grow_at_the_end_only() -> None:
    flat = FlatLogprobs()
    flat.append_fast([5, 7], [-0.5, -1.5], [1, 2], ["a", "b"])
    assert flat[0] == {5: Logprob(-0.5, 1, "a"), 7: Logprob(-1.5, 2, "b")}
    with pytest.raises(TypeError):
        flat[0] = {}
    with pytest.raises(TypeError):
        del flat[0]
    with pytest.raises(TypeError):
        flat.insert(0, {})
    assert len(flat) == 1


def answer(finish_reason: str | None = "stop") -> CompletionOutput:
    return CompletionOutput(0, "hi", [1, 2], -0.5, None, finish_reason=finish_reason)


def test_a_completion_is_finished_when_it_has_a_reason() -> None:
    assert answer().finished()
    assert not answer(None).finished()
    assert asdict(answer())["token_ids"] == [1, 2]


def test_a_request_output_takes_what_callers_pass_and_fills_metrics() -> None:
    output = RequestOutput(
        "7", "p", [1], None, [answer()], True, num_cached_tokens=3, from_the_future=1
    )
    assert output.metrics == RequestStateStats()
    assert (output.num_cached_tokens, output.error, output.lora_request) == (3, None, None)
    assert "from_the_future" not in vars(output)


def test_prompt_ids_become_a_list_when_they_are_asked_for() -> None:
    ids = np.array([5, 6], np.int32)
    output = RequestOutput("7", None, ids, None, [answer()], True)
    assert output.num_prompt_tokens == 2
    assert output.prompt_token_ids == [5, 6]
    assert all(type(i) is int for i in output.prompt_token_ids)
    assert output.prompt_token_ids is output.prompt_token_ids
    output.prompt_token_ids = None
    assert output.prompt_token_ids is None and output.num_prompt_tokens == 0
    assert ids.tolist() == [5, 6]


def test_programs_that_look_into_an_output_find_its_fields() -> None:
    answer = CompletionOutput(0, "a", [1], None, None, finish_reason="stop")
    output = RequestOutput("0", "p", np.array([4, 5], np.int32), None, [answer], True)
    assert output.prompt_token_ids == vars(output)["prompt_token_ids"] == [4, 5]
    for made in (output, answer):
        fields = {name for name in vars(made) if name != "_choice_chances"}
        assert not any(name.startswith("_") for name in fields)
        assert "prompt_logprobs" in fields or "logprobs" in fields
        again = pickle.loads(pickle.dumps(made))
        assert {name: getattr(again, name) for name in fields} == {
            name: getattr(made, name) for name in fields
        }


def test_times_are_read_by_the_names_of_older_scripts() -> None:
    stats = RequestStateStats(
        arrival_time=1e9, queued_ts=10.0, scheduled_ts=10.5, first_token_ts=11.0, last_token_ts=14.0
    )
    assert (stats.first_scheduled_time, stats.first_token_time) == (1e9 + 0.5, 1e9 + 1)
    assert stats.finished_time == stats.last_token_time == 1e9 + 4 and stats.time_in_queue == 0.5
    never = RequestStateStats(arrival_time=1e9, queued_ts=10.0)
    assert never.first_token_time is never.finished_time is never.time_in_queue is None


def test_a_failed_output_says_why() -> None:
    error = InvalidLogits("NaN logits")
    output = RequestOutput.failed("7", error, prompt="p")
    assert output.finished and output.error is error
    assert [o.finish_reason for o in output.outputs] == ["error"]
    assert "InvalidLogits" in repr(output)


def test_reprs_are_short_and_tell_the_reason() -> None:
    output = RequestOutput("7", None, [1], None, [answer()], True)
    assert repr(output) == (
        "RequestOutput(request_id='7', prompt=None, prompt_token_ids=[1], outputs="
        "[CompletionOutput(index=0, text='hi', token_ids=[1, 2], finish_reason='stop', "
        "cumulative_logprob=-0.5)], finished=True)"
    )


def test_pooling_outputs_are_made_from_anything_with_numbers() -> None:
    assert EmbeddingOutput.from_base(PoolingOutput([1.0, 2.0])).hidden_size == 2
    tensor = SimpleNamespace(tolist=lambda: [0.25, 0.75])
    assert ClassificationOutput.from_base(PoolingOutput(tensor)).probs == [0.25, 0.75]
    assert ScoringOutput.from_base(PoolingOutput(SimpleNamespace(tolist=lambda: 0.5))).score == 0.5
    base = PoolingRequestOutput("1", PoolingOutput([1.0]), [5], 0, True)
    request = EmbeddingRequestOutput.from_base(base)
    assert type(request.outputs) is EmbeddingOutput and request.prompt_token_ids == [5]
    assert repr(request).startswith("EmbeddingRequestOutput(request_id='1'")
