"""Whole answers: makes the body of a response from the engine's outputs."""

from __future__ import annotations

import hashlib
import json
import re
import string
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from quire.inputs.marked_calls import offered_functions
from quire.inputs.tool_calls import parse_tool_calls
from quire.openai_api.asks import Asked
from quire.openai_api.outputs import Answer, Call, Output, TokenScore, calls_of
from quire.openai_api.shapes import (
    CallBody,
    ChatChoice,
    ChatCompletion,
    ChatMessage,
    ChatScores,
    FinishReason,
    PromptScore,
    PromptScores,
    ScoredToken,
    TextChoice,
    TextCompletion,
    TextScores,
    Token,
    Usage,
)
from quire.outputs import ToolCall

_decode = json.JSONDecoder().raw_decode
_BEFORE_ITEM = re.compile(r"\s*[\[,]\s*")
_SIGNS = string.ascii_letters + string.digits


def response_body(
    asked: Asked, outputs: Sequence[Output], *, id: str, created: int, model: str
) -> ChatCompletion | TextCompletion:
    """The body that answers `asked`; `outputs` has the finished output of each row."""
    answers = [
        (output, answer, row * asked.n + answer.index)
        for row, output in enumerate(outputs)
        for answer in output.answers
    ]
    if not asked.is_chat:
        text: TextCompletion = {
            "id": id,
            "object": "text_completion",
            "created": created,
            "model": model,
            "choices": [_text_choice(asked, *one) for one in answers],
            "usage": usage(asked, outputs),
            "system_fingerprint": None,
        }
        return text
    chat: ChatCompletion = {
        "id": id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [_chat_choice(asked, answer, index, id) for _, answer, index in answers],
        "usage": usage(asked, outputs),
        "system_fingerprint": None,
        "service_tier": "flex" if asked.is_batch else "default",
    }
    if asked.token_ids:
        chat["prompt_token_ids"] = list(outputs[0].prompt_token_ids or ())
    if outputs[0].prompt_logprobs is not None:
        chat["prompt_logprobs"] = _prompt_logprobs(outputs[0].prompt_logprobs)
    return chat


def usage(asked: Asked, outputs: Iterable[Output]) -> Usage:
    """Tokens read and written; reasoning is part of what was written."""
    prompt = written = cached = reasoning = 0
    for output in outputs:
        prompt += output.prompt_tokens
        written += 0 if asked.only_echo else output.output_tokens
        cached += output.cached_tokens
        reasoning += output.reasoning_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def _chat_choice(asked: Asked, answer: Answer, index: int, id: str) -> ChatChoice:
    content, reasoning, calls = parts_of(asked, answer)
    message: ChatMessage = {"role": "assistant", "content": content, "refusal": None}
    if reasoning is not None and asked.reasoning:
        message["reasoning_content"] = message["reasoning"] = reasoning
    if calls:
        message["content"] = content or None
        message["tool_calls"] = [
            call_body(call, call_id(id, index, i)) for i, call in enumerate(calls)
        ]
    scores: ChatScores | None = None
    if answer.logprobs is not None:
        scores = {"content": [chat_score(one) for one in answer.logprobs], "refusal": None}
    choice: ChatChoice = {
        "index": index,
        "message": message,
        "logprobs": scores,
        "finish_reason": finish_reason(answer, calls),
        "stop_reason": answer.stop_reason,
    }
    if asked.token_ids:
        choice["token_ids"] = list(answer.token_ids)
    return choice


def finish_reason(answer: Answer, calls: Sequence[Call]) -> FinishReason:
    """One of the four reasons that clients know; an answer cut within its calls is "length"."""
    if calls and answer.finish_reason != "length":
        return "tool_calls"
    return "length" if answer.finish_reason == "length" else "stop"


def parts_of(asked: Asked, answer: Answer) -> tuple[str, str | None, tuple[Call, ...]]:
    """(content, reasoning, calls) of a finished answer."""
    content = answer.text if answer.content is None else answer.content
    if asked.tools.constrained:
        calls = constrained_calls(asked, content)
        return ("" if calls else content), answer.reasoning, calls
    return content, answer.reasoning, answer.calls[: asked.tools.at_most]


def constrained_calls(asked: Asked, text: str) -> tuple[Call, ...]:
    """The calls in an answer whose grammar allows only calls, or calls or another text. If the
    answer was cut, the complete calls."""
    if asked.tools.in_format:
        known = {tool["function"]["name"] for tool in asked.tools.offered}
        _, _, calls = _marked_parts(asked, text)
        return calls if all(call.name in known for call in calls) else ()
    if not asked.tools.forced:
        return calls_of(ToolCall(one["name"], one["arguments"]) for one in _whole_items(text)) or ()
    try:
        is_whole = isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return ()
    return (Call(asked.tools.forced, text.strip()),) if is_whole else ()


def _whole_items(text: str) -> Iterator[Any]:
    """The items of a JSON list, up to where its text is cut."""
    at = _BEFORE_ITEM.match(text)
    while at is not None:
        try:
            item, end = _decode(text, at.end())
        except (ValueError, RecursionError):
            return
        yield item
        at = _BEFORE_ITEM.match(text, end)


def text_parts(asked: Asked, text: str) -> tuple[str, str | None, tuple[Call, ...]]:
    """The parts of a stored text, found again by the marks in it."""
    if asked.tools.constrained or not asked.tools.offered:
        return text, None, ()
    return _marked_parts(asked, text)


def _marked_parts(asked: Asked, text: str) -> tuple[str, str | None, tuple[Call, ...]]:
    try:
        parsed = parse_tool_calls(text, offered=offered_functions(asked.tools.offered))
    except (ValueError, RecursionError):  # text that cannot be read as calls is content
        return text, None, ()
    calls = calls_of(parsed.tool_calls)
    return (parsed.content, parsed.reasoning, calls) if calls else (text, None, ())


def call_body(call: Call, id: str) -> CallBody:
    return {
        "id": id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def call_id(body_id: str, choice: int, i: int) -> str:
    """An id that no call of another answer has, since later turns of a chat contain several. It is
    made from the answer's own id, so that a line of a batch is the same when made again. It has
    nine letters and digits, since the templates of some models accept no other form."""
    named = hashlib.blake2b(f"{body_id}\0{choice}\0{i}".encode(), digest_size=8)
    number = int.from_bytes(named.digest())
    return "".join(_SIGNS[number // len(_SIGNS) ** place % len(_SIGNS)] for place in range(9))


def chat_score(score: TokenScore) -> ScoredToken:
    """One token of `logprobs.content`."""
    top = [_token(text, logprob) for _, text, logprob in score.top]
    return {**_token(score.text, score.logprob), "top_logprobs": top}


def _token(text: str, logprob: float) -> Token:
    return {
        "token": text,
        "logprob": logprob,
        "bytes": list(text.encode("utf-8", "replace")),
    }


def shown_answer(asked: Asked, answer: Answer) -> Answer:
    """Where only the prompt is wanted, nothing of the one token that is drawn."""
    if not asked.only_echo:
        return answer
    return Answer(index=answer.index, text="", finish_reason=answer.finish_reason and "length")


def _text_choice(asked: Asked, output: Output, answer: Answer, index: int) -> TextChoice:
    answer = shown_answer(asked, answer)
    before = (output.prompt or "") if asked.echo else ""
    scores = None
    if asked.logprobs:
        scores = text_scores(
            answer.logprobs or (),
            begin=len(before),
            end=len(before) + len(answer.text),
            echo=output if asked.echo else None,
        )
    choice: TextChoice = {
        "index": index,
        "text": before + answer.text,
        "logprobs": scores,
        "finish_reason": finish_reason(answer, ()),
        "stop_reason": answer.stop_reason,
    }
    if asked.token_ids:
        choice["token_ids"] = list(answer.token_ids)
        choice["prompt_token_ids"] = list(output.prompt_token_ids or ())
    if asked.prompt_logprobs and output.prompt_logprobs is not None:
        choice["prompt_logprobs"] = _prompt_logprobs(output.prompt_logprobs)
    return choice


def first_text(output: Output) -> str:
    """The text of the prompt's first token, which has no score: the prompt without the others."""
    rest = "".join(score.text for score in output.prompt_logprobs or () if score is not None)
    prompt = output.prompt or ""
    return prompt[: len(prompt) - len(rest)] if prompt.endswith(rest) else ""


def text_scores(
    scores: Sequence[TokenScore], *, begin: int, end: int, echo: Output | None = None
) -> TextScores:
    """`logprobs` of a completion, whose answer begins and ends at these places of the text that is
    shown; those of the prompt before it for an `echo`. The token itself is always in the dict of
    the likeliest tokens, since programs look it up there."""
    shown: TextScores = {
        "text_offset": [],
        "token_logprobs": [],
        "tokens": [],
        "top_logprobs": [],
    }
    offset = 0
    for score in echo.prompt_logprobs or () if echo is not None else ():
        text = score.text if score is not None else first_text(echo) if echo is not None else ""
        _show_score(shown, score, text, min(offset, begin))
        offset += len(text)
    for score in scores:
        _show_score(shown, score, score.text, min(begin + score.offset, end))
    return shown


def _show_score(shown: TextScores, score: TokenScore | None, text: str, offset: int) -> None:
    shown["text_offset"].append(offset)
    shown["tokens"].append(text)
    shown["token_logprobs"].append(None if score is None else score.logprob)
    top = None if score is None else {t: logprob for _, t, logprob in score.top}
    if score is not None and top is not None:
        top.setdefault(score.text, score.logprob)
    shown["top_logprobs"].append(top)


def _prompt_logprobs(scores: Sequence[TokenScore | None]) -> PromptScores:
    shown: PromptScores = []
    for score in scores:
        if score is None:
            shown.append(None)
            continue
        entries: dict[str, PromptScore] = {
            str(token): {"logprob": logprob, "rank": rank, "decoded_token": text}
            for rank, (token, text, logprob) in enumerate(score.top, start=1)
        }
        own: PromptScore = {"logprob": score.logprob, "rank": None, "decoded_token": score.text}
        shown.append({str(score.token_id): entries.pop(str(score.token_id), own), **entries})
    return shown
