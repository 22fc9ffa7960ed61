"""Turns a RequestOutput into the plain Output that goes to the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quire.logprobs import Logprob
from quire.openai_api.outputs import Answer, Heard, Output, Pooled, TokenScore, calls_of
from quire.outputs import CompletionOutput, RequestOutput
from quire.replicas.child.driving import timings_of
from quire.server.child.offsets import TextOffsets
from quire.server.child.preparing import MakePooled
from quire.server.child.reasoning import ReasoningCount
from quire.session.transcribing import Hearing

LOWEST = -9999.0  # stands for -inf, which JSON lacks; clients know this number


@dataclass(eq=False, slots=True)
class Place:
    """A row, with facts that its RequestOutputs do not have. `num_top` likeliest tokens were asked
    for at each position of the answer, `num_prompt_top` at each of the prompt; None: all that
    come."""

    id: int
    prompt_back: bool = False
    began_reasoning: bool = False
    num_top: int | None = None
    num_prompt_top: int | None = None
    pooled: MakePooled | None = None  # for a row that asks for numbers and not for text
    reasoning: ReasoningCount | None = None  # for a chat
    scored: bool = True  # False for a beam search: its logprobs were not asked for
    hearing: Hearing | None = None  # for a row that is a piece of a sound
    offsets: TextOffsets | None = None  # for a completion with logprobs
    _ids: dict[int, list[int]] = field(default_factory=dict)  # index of an answer -> its tokens
    _num_reasoning: dict[int, int] = field(default_factory=dict)

    def output(self, output: RequestOutput) -> Output:
        """The Output from which bodies are made; with the prompt only if it was asked for."""
        if self.hearing is not None:
            return self._heard(output, self.hearing)
        if self.reasoning is not None:
            self._count_reasoning(output, self.reasoning)
        ids = tuple(output.prompt_token_ids or ()) if self.prompt_back else None
        return Output(
            tuple(self._answer(one, output.prompt_token_ids) for one in output.outputs),
            output.finished,
            prompt_tokens=output.num_prompt_tokens,
            output_tokens=output.metrics.num_generation_tokens,
            cached_tokens=output.num_cached_tokens or 0,
            reasoning_tokens=sum(self._num_reasoning.values()),
            began_reasoning=self.began_reasoning,
            prompt=output.prompt if self.prompt_back else None,
            prompt_token_ids=ids,
            prompt_logprobs=self._prompt_scores(output),
            timings=tuple(timings_of(output)) if output.finished else (),
            pooled=self._pooled(output),
        )

    def _heard(self, output: RequestOutput, hearing: Hearing) -> Output:
        """The Output of a piece of a sound that was transcribed to its end."""
        return Output(
            (),
            True,
            prompt_tokens=output.num_prompt_tokens,
            output_tokens=hearing.num_tokens,
            timings=tuple(timings_of(output)),
            heard=Heard(hearing.segments, hearing.language),
        )

    def _count_reasoning(self, output: RequestOutput, reasoning: ReasoningCount) -> None:
        for answer in output.outputs:
            ids = self._ids.setdefault(answer.index, [])
            ids += answer.token_ids
            if answer.finish_reason is not None and answer.reasoning is not None:
                self._num_reasoning[answer.index] = reasoning.count(ids)

    def _pooled(self, output: RequestOutput) -> Pooled | None:
        values = None if self.pooled is None else self.pooled(output)
        if values is None:
            return None
        return Pooled(values.shape, values.astype("<f4").tobytes())

    def _answer(self, answer: CompletionOutput, prompt_ids: Sequence[int] | None) -> Answer:
        scores = None
        if self.scored and answer.logprobs is not None:
            ids, offsets = answer.token_ids, [0] * len(answer.token_ids)
            if self.offsets is not None:
                offsets = self.offsets.of(answer.index, prompt_ids or (), ids)
            each = zip(ids, answer.logprobs, offsets, strict=True)
            scores = tuple(_score(one, told, self.num_top, offset) for one, told, offset in each)
        is_over, calls = answer.finish_reason is not None, calls_of(answer.tool_calls)
        content = answer.text if calls is None else answer.content
        return Answer(
            answer.index,
            answer.text,
            tuple(answer.token_ids),
            answer.finish_reason,
            answer.stop_reason,
            scores,
            content=content if is_over else None,
            reasoning=answer.reasoning,
            calls=calls or (),
        )

    def _prompt_scores(self, output: RequestOutput) -> tuple[TokenScore | None, ...] | None:
        listed = output.prompt_logprobs
        if listed is None:
            return None
        ids: Sequence[int] = output.prompt_token_ids or ()
        # A prompt that was given up before its end has no scores for its last tokens.
        return tuple(
            _score(token, entries, self.num_prompt_top) if entries else None
            for token, entries in zip(ids, listed, strict=False)
        )


def _score(
    token: int, entries: Mapping[int, Logprob] | Any, num_top: int | None, offset: int = 0
) -> TokenScore:
    """The token's own score, and those of the likeliest tokens. Its own comes in any case, even if
    it is not among the likeliest."""
    ranked = sorted(entries.items(), key=lambda item: (item[1].rank or 0, -item[1].logprob))
    top = tuple(
        (other, entry.decoded_token or "", max(entry.logprob, LOWEST))
        for other, entry in ranked[:num_top]
    )
    own = entries.get(token)
    if own is None:  # only tokens that the caller named were scored
        return TokenScore(token, "", LOWEST, top, offset)
    return TokenScore(token, own.decoded_token or "", max(own.logprob, LOWEST), top, offset)
