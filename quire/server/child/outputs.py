"""RequestOutput -> the plain Output that goes to the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.jobs.child.driving import timings_of
from quire.logprobs import Logprob
from quire.openai_api.outputs import Answer, Call, Output, TokenScore
from quire.outputs import CompletionOutput, RequestOutput

LOWEST = -9999.0  # no JSON number is lower than all; clients take this one for "never"


def plain_output(output: RequestOutput, *, prompt_back: bool, began_reasoning: bool) -> Output:
    """All that bodies are made of; the prompt only where it is wanted back."""
    ids = tuple(output.prompt_token_ids or ()) if prompt_back else None
    return Output(
        tuple(_answer(one) for one in output.outputs),
        output.finished,
        prompt_tokens=output.num_prompt_tokens,
        output_tokens=output.metrics.num_generation_tokens,
        cached_tokens=output.num_cached_tokens or 0,
        began_reasoning=began_reasoning,
        prompt=output.prompt if prompt_back else None,
        prompt_token_ids=ids,
        prompt_logprobs=_prompt_scores(output),
        timings=tuple(timings_of(output)),
    )


def _answer(answer: CompletionOutput) -> Answer:
    scores = None
    if answer.logprobs is not None:
        pairs = zip(answer.token_ids, answer.logprobs, strict=True)
        scores = tuple(_score(token, entries) for token, entries in pairs)
    is_over = answer.finish_reason is not None
    return Answer(
        answer.index,
        answer.text,
        tuple(answer.token_ids),
        answer.finish_reason,
        answer.stop_reason,
        scores,
        content=answer.content if is_over else None,
        reasoning=answer.reasoning,
        calls=tuple(Call(call.name, call.arguments) for call in answer.tool_calls),
    )


def _score(token: int, entries: dict[int, Logprob] | Any) -> TokenScore:
    """The token's own score, and the likeliest by rank: beyond those asked for only if it is one
    of them."""
    own = entries[token]
    ranked = sorted(entries.items(), key=lambda item: item[1].rank or 0)
    top = [
        (other, entry.decoded_token or "", max(entry.logprob, LOWEST))
        for place, (other, entry) in enumerate(ranked, start=1)
        if other != token or (entry.rank or 0) <= place
    ]
    return TokenScore(token, own.decoded_token or "", max(own.logprob, LOWEST), tuple(top))


def _prompt_scores(output: RequestOutput) -> tuple[TokenScore | None, ...] | None:
    listed = output.prompt_logprobs
    if listed is None:
        return None
    ids: Sequence[int] = output.prompt_token_ids or ()
    return tuple(
        None if not entries else _score(token, entries)
        for token, entries in zip(ids, listed, strict=True)
    )
