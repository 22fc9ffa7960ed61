"""Streams: makes chunks, which clients put together, from the engine's outputs at each step.

Clients concatenate, so a role, a call's id and its name are sent once. All choices are opened in
order before anything else, because some clients count them in this way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from quire.openai_api.answer_parts import AnswerParts
from quire.openai_api.asks import Asked
from quire.openai_api.bodies import (
    call_id,
    chat_score,
    finish_reason,
    shown_answer,
    text_scores,
    usage,
)
from quire.openai_api.outputs import Answer, Call, Output, TokenScore
from quire.openai_api.shapes import Usage
from quire.openai_api.split_stream import Parts

Chunk = dict[str, Any]


class Stream:
    """The chunks of one body. Call `feed` with each output, in any order of rows."""

    def __init__(self, asked: Asked, *, id: str, created: int, model: str) -> None:
        self._asked = asked
        kind = "chat.completion.chunk" if asked.is_chat else "text_completion"
        self._head: Chunk = {"id": id, "object": kind, "created": created, "model": model}
        self._first: dict[int, Output] = {}  # the first output of each row, with prompt facts
        self._last: dict[int, Output] = {}  # the latest output of each row
        self._choices: dict[int, _Choice] = {}
        self._told_prompt = False
        self._over: set[int] = set()  # choices that were shown to their end

    def opening(self, first: Output) -> Iterator[Chunk]:
        """The chunks that are sent before the engine's first output, which tells of the prompt."""
        if not self._asked.is_chat:
            return
        self._last[0] = replace(first, output_tokens=0, reasoning_tokens=0)  # nothing is shown yet
        content = None if self._asked.tools.constrained else ""  # no text comes beside calls
        for index in range(self._asked.num_samples):
            yield self._chunk(_chat_choice(index, {"role": "assistant", "content": content}))

    def feed(self, row: int, output: Output) -> Iterator[Chunk]:
        first, self._last[row] = self._first.setdefault(row, output), output
        for answer in output.answers:
            index = row * self._asked.n + answer.index
            if index in self._over:  # a row's last output has all of its answers
                continue
            if answer.finish_reason is not None:
                self._over.add(index)
            choice = self._choices.get(index)
            if choice is None:
                kind = _ChatChoice if self._asked.is_chat else _TextChoice
                choice = self._choices[index] = kind(self._asked, index, first, self._head["id"])
            for made in choice.feed(answer):
                yield {**self._chunk(made), **self._prompt_ids(output)}

    def _prompt_ids(self, output: Output) -> Chunk:
        """The prompt's ids of a chat, once: with the first chunk that is not an opening."""
        if not (self._asked.token_ids and self._asked.is_chat) or self._told_prompt:
            return {}
        self._told_prompt = True
        return {"prompt_token_ids": list(output.prompt_token_ids or ())}

    def closing(self) -> Iterator[Chunk]:
        """The chunk after the last output: the usage, if it was asked for."""
        if self._asked.usage_last:
            yield {**self._head, "choices": [], "usage": self._usage()}

    def _usage(self) -> Usage:
        return usage(self._asked, self._last.values())

    def _chunk(self, choice: Chunk) -> Chunk:
        chunk = {**self._head, "choices": [choice]}
        if self._asked.usage_always:
            chunk["usage"] = self._usage()
        elif self._asked.usage_last:
            chunk["usage"] = None
        return chunk


class _Choice:
    """One answer as its chunks."""

    def __init__(self, asked: Asked, index: int, first: Output, body_id: str) -> None:
        self._asked, self._index, self._body_id = asked, index, body_id

    def feed(self, answer: Answer) -> Iterator[Chunk]:
        raise NotImplementedError


class _TextChoice(_Choice):
    def __init__(self, asked: Asked, index: int, first: Output, body_id: str) -> None:
        super().__init__(asked, index, first, body_id)
        self._echo = first if asked.echo else None
        self._begin = self._end = len(first.prompt or "") if asked.echo else 0
        self._scores: list[TokenScore] = []  # of tokens whose text is held back
        self._prompt_ids = first.prompt_token_ids

    def feed(self, answer: Answer) -> Iterator[Chunk]:
        asked, answer = self._asked, shown_answer(self._asked, answer)
        text, echo, is_over = answer.text, self._echo, answer.finish_reason is not None
        self._end += len(text)
        scores = self._with_place([*self._scores, *(answer.logprobs or ())], is_over=is_over)
        if echo is not None:
            text = (echo.prompt or "") + text
        # Token ids are sent without text, too: of a part of a character, and without a tokenizer.
        if not (text or scores or is_over or (asked.token_ids and answer.token_ids)):
            return
        self._echo = None
        logprobs = text_scores(scores, begin=self._begin, end=self._end, echo=echo)
        choice: Chunk = {
            "index": self._index,
            "text": text,
            "logprobs": logprobs if asked.logprobs else None,
            "finish_reason": finish_reason(answer, ()) if is_over else None,
        }
        if is_over:
            choice["stop_reason"] = answer.stop_reason
        if asked.token_ids:
            choice["token_ids"] = list(answer.token_ids)
            if self._prompt_ids is not None:
                choice["prompt_token_ids"] = list(self._prompt_ids)
                self._prompt_ids = None
        yield choice

    def _with_place(self, scores: list[TokenScore], *, is_over: bool) -> list[TokenScore]:
        """The scores of tokens that begin in the text shown so far; the others are kept, since a
        stop string may cut the text before them."""
        length = self._end - self._begin
        count = sum(score.offset <= length or is_over for score in scores)
        self._scores = scores[count:]
        return scores[:count]


class _ChatChoice(_Choice):
    def __init__(self, asked: Asked, index: int, first: Output, body_id: str) -> None:
        super().__init__(asked, index, first, body_id)
        self._parts = AnswerParts(asked, first)
        self._scores: list[TokenScore] = []  # of tokens whose text is held back
        self._token_ids: list[int] = []
        self._num_calls = 0

    def feed(self, answer: Answer) -> Iterator[Chunk]:
        self._scores += answer.logprobs or ()
        self._token_ids += answer.token_ids
        for parts in self._parts.feed(answer):
            yield from self._shown(parts)
        if answer.finish_reason is not None:
            yield from self._ended(answer)

    def _shown(self, parts: Parts) -> Iterator[Chunk]:
        if parts.reasoning and self._asked.reasoning:
            thoughts = {"reasoning_content": parts.reasoning, "reasoning": parts.reasoning}
            yield self._choice(thoughts)
        if parts.content:
            yield self._choice({"content": parts.content})
        for call in parts.calls:
            yield self._choice({"tool_calls": [self._call(call)]})

    def _call(self, call: Call) -> Chunk:
        i, self._num_calls = self._num_calls, self._num_calls + 1
        function = {"name": call.name, "arguments": call.arguments}
        id = call_id(self._body_id, self._index, i)
        return {"index": i, "id": id, "type": "function", "function": function}

    def _ended(self, answer: Answer) -> Iterator[Chunk]:
        made_calls = (Call("", "{}"),) * self._num_calls
        reason = finish_reason(answer, made_calls)
        yield {**self._choice({}), "finish_reason": reason, "stop_reason": answer.stop_reason}

    def _choice(self, delta: Chunk) -> Chunk:
        choice = _chat_choice(self._index, delta)
        if self._asked.logprobs and self._scores:
            content = [chat_score(one) for one in self._scores]
            choice["logprobs"] = {"content": content, "refusal": None}
            self._scores = []
        if self._asked.token_ids:
            choice["token_ids"], self._token_ids = self._token_ids, []
        return choice


def _chat_choice(index: int, delta: Chunk) -> Chunk:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
