"""`LLM.beam_search`: searches as requests, with results in the form that scripts know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from quire.base.notes import warn
from quire.errors import InvalidParams, NotSupported
from quire.inputs.prompt import split_prompts
from quire.inputs.tokenizer import Tokenizer
from quire.outputs import BeamSearchOutput, BeamSearchSequence, CompletionOutput, RequestOutput
from quire.run import Refused, Window
from quire.sampling_params import BeamSearchParams, SamplingParams
from quire.session.adapters import AskedAdapters
from quire.session.gather import Call
from quire.session.intake import Intake


class BeamCall(Call[BeamSearchOutput]):
    def __init__(
        self,
        prompts: Any,
        params: BeamSearchParams,
        concurrency_limit: int | None,
        *,
        intake: Intake,
        tokenizer: Tokenizer | None,
        num_blocks: int,
        has_processors: bool,
        adapters: AskedAdapters | None = None,
    ) -> None:
        """A prompt or a list of them, all checked; a beam needs at least one of `num_blocks`.

        `has_processors`: the LLM has logits processors for all rows, which a search cannot use.
        """
        search = checked_search(params, num_blocks)
        self._limit = _checked_limit(concurrency_limit)
        self._prompts = list(split_prompts(prompts))
        self._tokenizer = tokenizer
        params_of = search_sampling(search)
        windows, _ = intake.read(self._prompts, params_of, strict=True, adapters=adapters)
        self._windows: list[Window] = [
            [item if isinstance(item, Refused) else replace(item, search=search) for item in window]
            for window in windows
        ]
        items = [item for window in self._windows for item in window]
        refuse_processors(
            has_processors or any(i.processors for i in items if not isinstance(i, Refused))
        )
        self._num_done = 0

    @property
    def num_requests(self) -> int:
        return len(self._prompts)

    def windows(self) -> Iterator[Window]:
        """All at once; with a limit so many, and the next ones when these have finished."""
        if self._limit is None:
            yield from self._windows
            return
        items = [item for window in self._windows for item in window]
        for begin in range(0, len(items), self._limit):
            while self._num_done < begin:
                yield []
            yield items[begin : begin + self._limit]

    def keep(self, index: int, output: RequestOutput) -> None:
        self._num_done += 1

    def known(self, outputs: Sequence[RequestOutput | None]) -> list[BeamSearchOutput | None]:
        return [
            None if one is None or one.error is not None else self._output(i, one)
            for i, one in enumerate(outputs)
        ]

    def _output(self, index: int, found: RequestOutput) -> BeamSearchOutput:
        ids = found.prompt_token_ids or []
        text = found.prompt
        if text is None and self._tokenizer is not None:
            text = self._tokenizer.decode(ids, skip_special_tokens=False)
        return BeamSearchOutput(
            [self._sequence(index, ids, text, answer) for answer in found.outputs]
        )

    def _sequence(
        self, index: int, prompt_ids: list[int], text: str | None, answer: CompletionOutput
    ) -> BeamSearchSequence:
        return BeamSearchSequence(
            orig_prompt=self._prompts[index],
            tokens=[*prompt_ids, *answer.token_ids],
            logprobs=[position for position in answer.logprobs or () if position is not None],
            cum_logprob=answer.cumulative_logprob or 0.0,
            text=None if self._tokenizer is None else f"{text}{answer.text}",
            finish_reason=answer.finish_reason,
            stop_reason=answer.stop_reason,
            output_token_ids=list(answer.token_ids),
        )


def checked_search(params: Any, num_blocks: int) -> BeamSearchParams:
    """A checked, private copy of the parameters."""
    if not isinstance(params, BeamSearchParams):
        raise InvalidParams(
            f"params is a BeamSearchParams, not {type(params).__name__}",
            parameter="params",
            value=params,
        )
    search = replace(params)
    if search.beam_width > num_blocks:
        raise InvalidParams(
            f"beam_width is {search.beam_width}, each beam writes into a KV block of its own, and "
            f"the cache has {num_blocks}; lower it, or raise kv_cache_memory_bytes",
            parameter="beam_width",
            value=search.beam_width,
        )
    if search.temperature != 0:
        warn(
            f"BeamSearchParams.temperature={search.temperature} changes nothing: a beam search "
            "ranks by the model's own probabilities, here as in vLLM and Transformers"
        )
    return search


def refuse_processors(has_processors: bool) -> None:
    """Raise NotSupported if there are logits processors."""
    if has_processors:
        raise NotSupported(
            "beam_search ranks by the model's own probabilities, and this LLM has "
            "logits_processors that would change them; make one without them to search with."
        )


def _checked_limit(limit: Any) -> int | None:
    if limit is None or (isinstance(limit, int) and not isinstance(limit, bool) and limit >= 1):
        return limit
    raise InvalidParams(
        f"concurrency_limit is a whole number from 1 on, or None, not {limit!r}",
        parameter="concurrency_limit",
        value=limit,
    )


def search_sampling(search: BeamSearchParams) -> SamplingParams:
    """The sampling parameters of a search. A choice is searched token by token, because the search
    ranks whole answers anyway."""
    shape = search.structured_outputs
    if shape is not None and shape.choice is not None:
        shape = replace(shape, choice_mode="tokens")
    return SamplingParams(
        temperature=0.0,
        max_tokens=search.max_tokens,
        ignore_eos=search.ignore_eos,
        include_stop_str_in_output=search.include_stop_str_in_output,
        structured_outputs=shape,
        logprobs=0,
        skip_special_tokens=False,
    )
