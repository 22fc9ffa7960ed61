"""Turns finished sequences into RequestOutputs: text, logprobs, timings."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.errors import QuireError
from quire.inputs.answers import read_answer
from quire.inputs.detokenize import TokenTexts, completion_texts, marked_text
from quire.inputs.tokenizer import Tokenizer
from quire.inputs.tool_calls import ParsedAnswer
from quire.logprobs import MadeDicts
from quire.outputs import ChoiceChances, CompletionOutput, RequestOutput, RequestStateStats
from quire.request import Choices, Ints, Request
from quire.results.logprob_dicts import CONTEXT, ScoredTokens, UnreadLogprobs
from quire.results.path_scores import PathScores, no_choice
from quire.results.text_watch import Shown, StopWatch
from quire.results.thought_watch import ThoughtWatch
from quire.sampling.choices import choose, normalised
from quire.scheduler.hidden import joined
from quire.scheduler.reports import Grown
from quire.scheduler.sequence import Sequence
from quire.step import Scores


class Results:
    """Makes RequestOutputs; with no tokenizer, outputs without text."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def _token_texts(self) -> TokenTexts | None:
        return None if self._tokenizer is None else TokenTexts(self._tokenizer)

    def watch(self, request: Request) -> StopWatch | None:
        """A watch for stop strings in the text of one sample; None without stop strings."""
        if self._tokenizer is None or not request.params.stop:
            return None
        return StopWatch(self._tokenizer, request)

    def shown(self, request: Request) -> Shown:
        """A count of what the reader of a request was shown, still at nothing."""
        return Shown(request, self._tokenizer)

    def thoughts(self, request: Request) -> ThoughtWatch | None:
        """A watch that limits the thoughts of one sample; None without a limit."""
        if self._tokenizer is None or request.thoughts is None:
            return None
        return ThoughtWatch(self._tokenizer, request, request.thoughts)

    def output(self, request: Request, samples: Many[Sequence]) -> RequestOutput:
        """The output of one request whose samples have all ended."""
        if request.choices is not None:
            return self._chosen_output(request, request.choices, samples)
        if request.continuations:
            error = _error_of(samples)
            scores = None if error else PathScores(samples).of_continuations()
            return _output(request, samples, [], error=error, continuation_scores=scores)
        if request.hidden is not None:
            error = samples[0].error
            states = None if error else joined(request.hidden, samples[0].hidden)
            start = request.hidden_from
            return _output(request, samples, [], error=error, hidden=states, hidden_from=start)
        texts = self._texts(samples)
        first = samples[0]
        return _output(
            request,
            samples,
            [self._completion(s, text) for s, text in zip(samples, texts, strict=True)],
            prompt_logprobs=self._prompt_logprobs(first),
            error=_error_of(samples),
            prompt_token_id_logprobs=_named_logprobs(first),
        )

    def _chosen_output(
        self, request: Request, choices: Choices, samples: Many[Sequence]
    ) -> RequestOutput:
        """One choice for each answer that was asked for, drawn by the scores of all choices."""
        error, chances = _error_of(samples), None
        answers = [Sequence(request, i, finish_reason="error") for i in range(request.params.n)]
        texts = [""] * len(answers)
        if error is None:
            scores = PathScores(samples)
            logprobs = scores.of_choices(choices)
            error = None if logprobs.max() > -np.inf else no_choice()
        if error is None:
            chances = ChoiceChances(choices.texts, normalised(logprobs))
            numbers = choose(logprobs, request.params, request.noise_key, request.num_prompt)
            answers = [scores.answer(request, choices, n, i) for i, n in enumerate(numbers)]
            if request.params.detokenize:
                texts = [choices.texts[number] for number in numbers]
        metrics = _metrics(request, samples)
        metrics.num_generation_tokens = sum(len(answer.output_ids) for answer in answers)
        metrics.first_token_ts = metrics.last_token_ts  # all tokens come at once
        metrics.first_token_latency = max(metrics.last_token_ts - metrics.queued_ts, 0.0)
        made = [self._completion(a, text) for a, text in zip(answers, texts, strict=True)]
        return _output(request, samples, made, metrics, error=error, choice_chances=chances)

    def partial(self, request: Request, grown: Many[Grown], shown: Shown) -> RequestOutput:
        """The output of a watched request whose samples have written so far what `grown` holds."""
        samples = [one.sequence for one in grown]
        # Sample 0 has the prompt's scores; readers of new tokens only get them once.
        was_told = shown.only_new and shown.num_tokens(0)
        tells = [] if was_told else [one for one in samples if one.sample == 0]
        answers = [self._so_far(one, shown) for one in grown]
        num_tokens = sum(map(shown.num_tokens, range(request.params.n)))
        told = self._prompt_logprobs(tells[0]) if tells else None
        metrics = _metrics(request, samples, num_tokens)
        return _output(request, samples, answers, metrics, finished=False, prompt_logprobs=told)

    def _so_far(self, grown: Grown, shown: Shown) -> CompletionOutput:
        sequence, output_ids = grown.sequence, grown.output_ids
        sample, ended = sequence.sample, sequence.finish_reason is not None
        text = shown.part(sample, self._texts([sequence])[0]) if ended else shown.text(grown)
        first = shown.num_tokens(sample) if shown.only_new else 0
        shown.count(sample, len(output_ids))
        logprobs = total = None
        if sequence.request.params.num_logprobs is not None:
            parts, made = tuple(sequence.logprobs), shown.made_dicts(sample)
            logprobs = self._sample_logprobs(sequence, parts, output_ids, made)
            total = shown.total_logprob(sample, parts)
        return CompletionOutput(
            index=sample,
            text=text,
            token_ids=output_ids[first:].tolist(),
            cumulative_logprob=total,
            logprobs=None if logprobs is None else logprobs.since(first),
            finish_reason=sequence.finish_reason,
            stop_reason=sequence.stop_reason,
            content=text,
        )

    def cancelled(self, request: Request) -> RequestOutput:
        """The output of a request that was cancelled while an equal one computed its answer."""
        answers = [
            CompletionOutput(sample, "", [], None, None, finish_reason="abort")
            for sample in range(request.params.n)
        ]
        return RequestOutput(
            str(request.number), request.prompt, request.plain_ids, None, answers, True
        )

    def _texts(self, samples: Many[Sequence]) -> list[str]:
        tokenizer, params = self._tokenizer, samples[0].request.params
        if tokenizer is None or not params.detokenize:
            return [""] * len(samples)
        if isinstance(samples[0].watch, StopWatch):
            return [s.watch.text() for s in samples if isinstance(s.watch, StopWatch)]
        return completion_texts(
            tokenizer,
            [(s.request.plain_ids, _shown_ids(s)) for s in samples],
            skip_special_tokens=params.skip_special_tokens,
            spaces_between_special_tokens=params.spaces_between_special_tokens,
        )

    def _completion(self, sequence: Sequence, text: str) -> CompletionOutput:
        total = logprobs = None
        if sequence.request.params.num_logprobs is not None:
            # The arrays of a step hold the scores of all its rows, so this copies ours.
            scores = in_arrays_of_its_own(sequence.logprobs)
            total = _total(scores)
            logprobs = self._sample_logprobs(sequence, scores, sequence.output_ids)
        parts = self._parts(sequence, text)
        return CompletionOutput(
            index=sequence.sample,
            text=text,
            token_ids=sequence.output_ids.tolist(),
            cumulative_logprob=total,
            logprobs=logprobs,
            finish_reason=sequence.finish_reason,
            stop_reason=sequence.stop_reason,
            content=parts.content,
            reasoning=parts.reasoning,
            tool_calls=parts.tool_calls,
        )

    def _parts(self, sequence: Sequence, text: str) -> ParsedAnswer:
        """The text split into parts, if the request wants that."""
        reading, tokenizer = sequence.request.reading, self._tokenizer
        is_chosen = sequence.request.choices is not None  # a choice is never split
        if reading is None or tokenizer is None or not text or is_chosen:
            return ParsedAnswer(None, text)
        ids = _shown_ids(sequence)
        is_whole = not (isinstance(sequence.watch, StopWatch) and sequence.watch.is_cut)
        if is_whole and not tokenizer.special_ids.isdisjoint(ids.tolist()):
            marked = marked_text(tokenizer, sequence.request.plain_ids, ids)
            parts = read_answer(marked, reading)
            if parts.content != marked:  # parts were found
                skips = sequence.request.params.skip_special_tokens
                return _without_special(parts, tokenizer, ids) if skips else parts
        return read_answer(text, reading)

    def _prompt_logprobs(self, sequence: Sequence) -> UnreadLogprobs | None:
        params = sequence.request.params
        if params.prompt_logprobs is None:
            return None
        ids, named = sequence.request.plain_ids, sequence.request.named
        num_named = 0 if named is None else named.ids.shape[1]
        parts = (p.part(0, len(p), p.top_ids.shape[1] - num_named) for p in sequence.scores)
        tokens = self._scored(sequence, tuple(parts), ids, first=1)
        return UnreadLogprobs(tokens, params.flat_logprobs, begins_blank=True)

    def _sample_logprobs(
        self,
        sequence: Sequence,
        parts: Many[Scores],
        output_ids: Ints,
        made: MadeDicts | None = None,
    ) -> UnreadLogprobs | None:
        request = sequence.request
        if request.params.num_logprobs is None:
            return None
        tail = request.plain_ids[-CONTEXT:]
        ids = np.concatenate([tail, output_ids])
        ranked = request.params.logprob_token_ids is None
        tokens = self._scored(sequence, parts, ids, first=len(tail), ranked=ranked)
        return UnreadLogprobs(tokens, request.params.flat_logprobs, made=made)

    def _scored(
        self, sequence: Sequence, parts: Many[Scores], ids: Ints, *, first: int, ranked: bool = True
    ) -> ScoredTokens:
        texts = self._token_texts if sequence.request.params.detokenize else None
        return ScoredTokens(parts, ids, first, ranked, texts)


def _named_logprobs(sequence: Sequence) -> npt.NDArray[np.float32] | None:
    """Logprobs [lines, k] of the tokens that a request names for its prompt, once all are there."""
    named, start = sequence.request.named, sequence.request.params.prompt_logprob_start or 0
    if named is None or sequence.num_scored < len(named.ids):
        return None
    width = named.ids.shape[1]
    scored = np.concatenate([part.top_logprobs[:, -width:] for part in sequence.scores])
    return np.where(named.ids < 0, np.float32(-np.inf), scored)[start - named.first :]


def _output(
    request: Request,
    samples: Many[Sequence],
    answers: list[CompletionOutput],
    metrics: RequestStateStats | None = None,
    *,
    finished: bool = True,
    prompt_logprobs: UnreadLogprobs | None = None,
    **more: Any,
) -> RequestOutput:
    """An output with the fields that all outputs of a request have, and `more`. The samples may be
    those of an equal request with the same answer."""
    return RequestOutput(
        str(request.number),
        request.prompt,
        request.plain_ids,
        prompt_logprobs,
        answers,
        finished,
        metrics or _metrics(request, samples),
        lora_request=request.lora_request,
        num_cached_tokens=samples[0].num_cached,
        **more,
    )


def _without_special(parts: ParsedAnswer, tokenizer: Tokenizer, ids: Ints) -> ParsedAnswer:
    """Parts of a marked text as they are shown, without special tokens that marked nothing."""
    reasoning, content = parts.reasoning, parts.content
    for special in tokenizer.special_ids.intersection(ids.tolist()):
        word = tokenizer.backend.id_to_token(special) or ""
        reasoning = reasoning and reasoning.replace(word, "")
        content = content.replace(word, "")
    return replace(parts, reasoning=reasoning, content=content)


def _error_of(samples: Many[Sequence]) -> QuireError | None:
    return next((sample.error for sample in samples if sample.error), None)


def _total(parts: Many[Scores]) -> float:
    return float(sum(sum(part.logprobs.tolist()) for part in parts))


def _shown_ids(sequence: Sequence) -> Ints:
    """The tokens that make the text: a token that stopped the answer is not part of it. One that
    a grammar asked for is, though it is a stop id where no grammar is."""
    request, ids = sequence.request, sequence.output_ids
    if sequence.finish_reason != "stop" or request.params.include_stop_str_in_output:
        return ids
    reason = sequence.stop_reason
    return ids[:-1] if int(ids[-1]) in (request.eos_ids if reason is None else {reason}) else ids


def _metrics(
    request: Request, samples: Many[Sequence], num_tokens: int | None = None
) -> RequestStateStats:
    """`num_tokens`: tokens of all samples; counted here if None."""
    timings = samples[0].timings
    first, last = timings.first_token, timings.last_token
    for other in samples[1:]:
        first, last = min(first, other.timings.first_token), max(last, other.timings.last_token)
    if num_tokens is None:
        num_tokens = sum(len(s.output_ids) for s in samples)
    return RequestStateStats(
        num_generation_tokens=num_tokens,
        arrival_time=request.arrival,
        queued_ts=timings.queued,
        scheduled_ts=timings.scheduled,
        first_token_ts=first,
        last_token_ts=last,
        first_token_latency=first - timings.queued if first else 0.0,
        is_corrupted=any(s.error is not None for s in samples),
    )


def in_arrays_of_its_own(parts: Many[Scores]) -> tuple[Scores, ...]:
    """The same lines as copies, as one part if all have the same number of likeliest tokens. A view
    of a larger array would keep all of that in memory."""
    if len({part.top_ids.shape[1] for part in parts}) != 1:
        return tuple(Scores(*(array.copy() for array in part.arrays())) for part in parts)
    return (Scores(*(np.concatenate(a) for a in zip(*(p.arrays() for p in parts), strict=True))),)
