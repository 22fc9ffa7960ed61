"""The chunks of a stream, whatever comes from the engine and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from quire.openai_api.asks import read_body
from quire.openai_api.bodies import response_body
from quire.openai_api.chunks import Stream
from quire.openai_api.fields import CHAT, COMPLETIONS
from quire.openai_api.outputs import Answer, Output, TokenScore

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = '[{"name": "f", "arguments": {}}]'
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "x"}]},
    COMPLETIONS: {"prompt": "x"},
}


@pytest.mark.parametrize(
    ("path", "more", "text"),
    [
        (COMPLETIONS, {}, "yes"),
        (CHAT, {}, "yes"),
        (CHAT, {"tools": [TOOL], "tool_choice": "required"}, CALL),
    ],
)
def test_an_answer_that_ended_before_the_others_is_shown_once(
    path: str, more: dict[str, Any], text: str
) -> None:
    """The last output of a row holds all of its answers, those of before without new text."""
    asked = read_body(path, {**BODIES[path], **more, "n": 2, "stream": True})
    stream = Stream(asked, id="x", created=0, model="m")
    outputs = [
        Output((Answer(0, text, (1,), "stop"),), finished=False),
        Output((Answer(0, "", (), "stop"), Answer(1, text, (1,), "stop")), finished=True),
    ]
    choices = [chunk["choices"][0] for output in outputs for chunk in stream.feed(0, output)]
    for index in range(2):
        own = [choice for choice in choices if choice["index"] == index]
        ends = [choice["finish_reason"] for choice in own if choice["finish_reason"]]
        assert len(ends) == 1 and own[-1]["finish_reason"]
        calls = [call for c in own for call in c.get("delta", {}).get("tool_calls", ())]
        assert len(calls) == (1 if more else 0)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("cut", [", ", ' , {"name": "f", "argum', ""])
def test_calls_that_are_whole_outlive_a_cut(number: int, cut: str) -> None:
    body = {**BODIES[CHAT], "tools": [TOOL], "tool_choice": "required"}
    made = '{"name": "f", "arguments": {"a": "], ["}}'
    text = "[" + " ,\n".join([made] * number) + cut
    output = Output((Answer(0, text, (1,), "length"),), finished=True)
    about: Any = {"id": "x", "created": 0, "model": "m"}
    whole: Any = response_body(read_body(CHAT, body), [output], **about)
    [choice] = whole["choices"]
    calls = choice["message"].get("tool_calls", ())
    assert [call["function"]["arguments"] for call in calls] == ['{"a": "], ["}'] * number
    assert choice["message"]["content"] == (None if number else text)
    assert choice["finish_reason"] == "length"
    chunks = Stream(read_body(CHAT, {**body, "stream": True}), **about).feed(0, output)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert sum(len(delta.get("tool_calls", ())) for delta in deltas) == number


def test_the_scores_of_an_echo_are_those_of_the_whole_answer() -> None:
    """The prompt's first token has a text and a place, though nothing predicts it."""
    body = {"prompt": "Hi you", "echo": True, "logprobs": 1}
    told = (None, TokenScore(8, " you", -1.0, ((8, " you", -1.0),)))
    scores = (TokenScore(9, "!", -2.0, ((7, "?", -0.5),)),)
    answer = Answer(0, "!", (9,), "stop", logprobs=scores)
    output = Output((answer,), True, prompt="Hi you", prompt_logprobs=told)
    about: Any = {"id": "x", "created": 0, "model": "m"}
    whole: Any = response_body(read_body(COMPLETIONS, body), [output], **about)
    stream = Stream(read_body(COMPLETIONS, {**body, "stream": True}), **about)
    [chunk] = stream.feed(0, output)
    assert chunk["choices"][0]["logprobs"] == whole["choices"][0]["logprobs"]
    assert chunk["choices"][0]["logprobs"]["tokens"] == ["Hi", " you", "!"]
    assert chunk["choices"][0]["logprobs"]["text_offset"] == [0, 2, 6]
    # Each token is there, also one that is not among the likeliest.
    top = [None, {" you": -1.0}, {"?": -0.5, "!": -2.0}]
    assert chunk["choices"][0]["logprobs"]["top_logprobs"] == top


def test_nothing_is_shown_of_the_token_drawn_where_only_the_prompt_is_wanted() -> None:
    """Neither its id nor that it ended the answer, in a stream and without one."""
    body = {"prompt": "Hi", "echo": True, "max_tokens": 0, "return_token_ids": True}
    scores = (TokenScore(9, "!", -2.0, ()),)
    answer = Answer(0, "", (9,), "stop", "!", logprobs=scores)
    output = Output((answer,), True, prompt="Hi", prompt_token_ids=(5,))
    about: Any = {"id": "x", "created": 0, "model": "m"}
    whole: Any = response_body(read_body(COMPLETIONS, body), [output], **about)
    [chunk] = Stream(read_body(COMPLETIONS, {**body, "stream": True}), **about).feed(0, output)
    for choice in (whole["choices"][0], chunk["choices"][0]):
        assert (choice["text"], choice["token_ids"]) == ("Hi", [])
        assert (choice["finish_reason"], choice["stop_reason"]) == ("length", None)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_the_ids_of_the_prompt_come_once_for_each_that_has_one(path: str) -> None:
    asked = read_body(path, {**BODIES[path], "return_token_ids": True, "n": 2, "stream": True})
    stream = Stream(asked, id="x", created=0, model="m")
    both = tuple(Answer(i, "a", (7,)) for i in range(2))
    last = tuple(Answer(i, "b", (8,), "stop") for i in range(2))
    outputs = [
        Output(answers, answers is last, prompt_token_ids=(5, 6)) for answers in (both, last)
    ]
    chunks = [chunk for output in outputs for chunk in stream.feed(0, output)]
    holders = chunks if path == CHAT else [chunk["choices"][0] for chunk in chunks]
    told = [one["prompt_token_ids"] for one in holders if "prompt_token_ids" in one]
    assert told == [[5, 6]] * (1 if path == CHAT else 2)


def test_places_of_tokens_are_those_of_the_text() -> None:
    """A letter in two tokens: its blank may be shown with the first."""
    body = {"prompt": "x", "logprobs": 0, "max_tokens": 3}
    texts, places = ["", " \u5b66", "!"], [0, 1, 2]
    tokens = tuple(TokenScore(i, t, -1.0, (), places[i]) for i, t in enumerate(texts))
    about: Any = {"id": "x", "created": 0, "model": "m"}
    stream = Stream(read_body(COMPLETIONS, {**body, "stream": True}), **about)
    offsets = []
    for i, text in enumerate([" ", "\u5b66", "!"]):
        answer = Answer(0, text, (i,), "length" if i == 2 else None, logprobs=tokens[i : i + 1])
        [chunk] = stream.feed(0, Output((answer,), i == 2))
        offsets += chunk["choices"][0]["logprobs"]["text_offset"]
    whole = Output((Answer(0, " \u5b66!", (0, 1, 2), "length", logprobs=tokens),), True)
    told: Any = response_body(read_body(COMPLETIONS, body), [whole], **about)
    assert offsets == told["choices"][0]["logprobs"]["text_offset"] == places


def test_scores_wait_for_their_text_which_a_stop_string_may_cut() -> None:
    body = {"prompt": "x", "logprobs": 0, "max_tokens": 4, "stop": ["bcd"]}
    tokens = tuple(TokenScore(i, t, -1.0, (), i) for i, t in enumerate("abcd"))
    about: Any = {"id": "x", "created": 0, "model": "m"}
    stream = Stream(read_body(COMPLETIONS, {**body, "stream": True}), **about)
    counts, offsets = [], list[int]()
    for i in range(4):
        end = "stop" if i == 3 else None
        answer = Answer(0, "a" if i == 0 else "", (i,), end, logprobs=tokens[i : i + 1])
        told = [c["choices"][0]["logprobs"] for c in stream.feed(0, Output((answer,), i == 3))]
        counts.append(sum(len(one["tokens"]) for one in told))
        offsets += [place for one in told for place in one["text_offset"]]
    assert (counts, offsets) == ([1, 1, 0, 2], [0, 1, 1, 1])
    whole = Output((Answer(0, "a", (0, 1, 2, 3), "stop", logprobs=tokens),), True)
    made: Any = response_body(read_body(COMPLETIONS, body), [whole], **about)
    assert made["choices"][0]["logprobs"]["text_offset"] == offsets


def test_ids_come_with_every_chunk_of_tokens_whatever_text_they_have() -> None:
    """Those of half a letter, and all of a model without a tokenizer, have none."""
    body = {**BODIES[COMPLETIONS], "stream": True, "return_token_ids": True}
    stream = Stream(read_body(COMPLETIONS, body), id="x", created=0, model="m")
    answers = [Answer(0, "", (1,), None), Answer(0, "é", (2, 3), None), Answer(0, "", (4,), "stop")]
    outputs = [Output((one,), finished=one.finish_reason is not None) for one in answers]
    choices = [chunk["choices"][0] for output in outputs for chunk in stream.feed(0, output)]
    assert [choice["token_ids"] for choice in choices] == [[1], [2, 3], [4]]


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_no_text_is_opened_where_calls_alone_may_come(choice: str) -> None:
    body = {**BODIES[CHAT], "tools": [TOOL], "tool_choice": choice, "stream": True}
    [chunk] = Stream(read_body(CHAT, body), id="x", created=0, model="m").opening(
        Output((), finished=False)
    )
    assert chunk["choices"][0]["delta"]["content"] == (None if choice == "required" else "")
