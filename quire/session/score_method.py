"""LLM.score: how well pairs of texts belong together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from quire.errors import BatchError, InvalidRequest, NotSupported, QuireError
from quire.inputs.chat import read_template
from quire.inputs.prompt import split_prompts
from quire.outputs import ScoringOutput, ScoringRequestOutput
from quire.pooling.similarity import cosine, max_sim
from quire.pooling.spec import Task
from quire.session.gather import OnError, UseTqdm, gather_call, raises
from quire.session.pooling import Params, PoolCall, text_options, truncation
from quire.session.session import Session


class ScoreMethod:
    """A method that works on the session of the LLM."""

    _session: Session

    def score(
        self,
        data_1: Any,
        data_2: Any,
        /,
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: Params = None,
        lora_request: Any = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        truncate_prompt_tokens: int | None = None,
        chat_template: str | None = None,
        on_error: OnError = "raise",
    ) -> list[ScoringRequestOutput]:
        """How well texts belong together, pair by pair: `output.outputs.score`.

        Pass one text and one, one and many, or equally many of both. A model with one label reads a
        pair as one text (`chat_template`, if given, writes it from a message with the role "query"
        and one with the role "document"). For an embedding model the score is the cosine, or, if
        each token has a vector, the sum of the best products.
        """
        strict = raises(on_error)
        pairs = _pairs(data_1, data_2)
        if not pairs:
            return []
        with self._session.turn():
            pooling, adapters = self._session.pooling, self._session.asked_adapters(lora_request)
            keep = truncation(truncate_prompt_tokens, pooling_params)
            # Texts that are embedded one by one are not queries: no prompt is put before them.
            named = None if pooling.spec.is_cross_encoder else ""
            options = text_options(pooling, tokenization_kwargs, keep, named)
            if adapters is not None:
                raise NotSupported("lora_request for scores is not built: embed the texts with it.")
            if not pooling.spec.is_cross_encoder:
                _refuse_template(chat_template)
                by_token = "token_embed" in pooling.tasks and "embed" not in pooling.tasks
                task: Task = "token_embed" if by_token else "embed"
                return self._score_apart(
                    pooling.check(task), pairs, pooling_params, options, strict
                )
            task = pooling.check("classify")
            asked = pooling.asked(pooling_params, task, len(pairs))
            first = self._session.intake.take_numbers(len(pairs))
            if chat_template is not None:
                options = replace(options, chat_template=read_template(chat_template))
            made = pooling.reader.read_pairs(pairs, task, options, first_number=first)
            finish = partial(
                pooling.made, ScoringRequestOutput, lambda values: ScoringOutput(float(values[0]))
            )
            call = PoolCall(made, asked, finish, first_number=first, strict=strict)
            return gather_call(self._session.run, call, use_tqdm, strict=strict)

    def _score_apart(
        self, task: Task, pairs: list[tuple[Any, Any]], params: Params, options: Any, strict: bool
    ) -> list[ScoringRequestOutput]:
        """Scores of pairs whose texts are embedded one by one; equal texts are computed once, in
        however many pairs they are."""
        pooling, count = self._session.pooling, len(pairs)
        prompts = [one for pair in pairs for one in pair]
        asked = pooling.asked(params if params is None else _twice(params, count), task, 2 * count)
        first = self._session.intake.take_numbers(len(prompts))
        made = pooling.reader.read(prompts, task, options, first_number=first)
        finish = pooling.request_output
        call = PoolCall(made, asked, finish, first_number=first, strict=strict)
        sides = gather_call(self._session.run, call, False, strict=False)
        compare = cosine if task == "embed" else max_sim
        found, errors = [], {}
        for i in range(count):
            one, other = sides[2 * i], sides[2 * i + 1]
            error: QuireError | None = one.error or other.error
            score: Any = None
            if error is None:
                score = ScoringOutput(compare(one.outputs.data.numpy(), other.outputs.data.numpy()))
            else:
                errors[i] = error
            ids = [*one.prompt_token_ids, *other.prompt_token_ids]
            cached = one.num_cached_tokens + other.num_cached_tokens
            found.append(
                ScoringRequestOutput(one.request_id, score, ids, cached, True, error=error)
            )
        if errors and strict:
            raise BatchError(found, errors)
        return found


def _pairs(data_1: Any, data_2: Any) -> list[tuple[Any, Any]]:
    ones, others = list(split_prompts(data_1)), list(split_prompts(data_2))
    if len(ones) == 1:
        ones = ones * len(others)
    if len(ones) != len(others):
        raise InvalidRequest(
            f"score takes one text and many, or as many as many; these are {len(ones)} and "
            f"{len(others)}",
            parameter="data_2",
            value=len(others),
        )
    return list(zip(ones, others, strict=True))


def _twice(params: Params, count: int) -> Params:
    """The parameters of pairs, repeated for both texts of each."""
    if not isinstance(params, Sequence) or len(params) != count:
        return params
    return [one for one in params for _ in range(2)]


def _refuse_template(chat_template: str | None) -> None:
    if chat_template is not None:
        raise NotSupported(
            "chat_template: this model embeds texts each by itself; pass them as they are to be "
            "read."
        )
