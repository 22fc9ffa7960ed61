"""The methods of LLM that read texts and write none: embed, encode, classify, reward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from quire.inputs.prompt import split_prompts
from quire.outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingRequestOutput,
)
from quire.session.gather import OnError, UseTqdm, gather_call, raises
from quire.session.pooling import Params, PoolCall, task_of, tensor_output, text_options, truncation
from quire.session.score_method import ScoreMethod
from quire.step import Floats


@dataclass(frozen=True, slots=True)
class _Texts:
    """The prompts of a call, and its arguments for all of them."""

    prompts: Any
    params: Params
    tokenization_kwargs: dict[str, Any] | None
    keep: int | None  # tokens of each
    prompt_name: str | None = None


@dataclass(frozen=True, slots=True)
class _Results:
    """How results are made: `make` turns a task's numbers into the value of a `kind`."""

    task: str
    kind: Callable[..., Any]
    make: Callable[[Floats], Any]


def _classes(values: Floats) -> ClassificationOutput:
    return ClassificationOutput(values.tolist())


class PoolingMethods(ScoreMethod):
    """Methods that work on the session of the LLM."""

    def embed(
        self,
        prompts: Any,
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: Params = None,
        lora_request: Any = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        truncate_prompt_tokens: int | None = None,
        prompt_name: str | None = None,
        on_error: OnError = "raise",
    ) -> list[EmbeddingRequestOutput]:
        """An embedding of each prompt, in their order: `output.outputs.embedding`.

        `prompts` is one prompt or any iterable of them, as for `generate`. `prompt_name` names
        one of the model's own prompts that texts begin with; "" is none. A text that is too long
        is an error unless `truncate_prompt_tokens` says how many tokens to keep, -1 for as many
        as the model takes.
        """
        texts = _Texts(
            prompts, pooling_params, tokenization_kwargs, truncate_prompt_tokens, prompt_name
        )
        made = _Results("embed", EmbeddingRequestOutput, EmbeddingOutput)
        return self._pooled(texts, made, use_tqdm, lora_request, on_error)

    def classify(
        self,
        prompts: Any,
        *,
        pooling_params: Params = None,
        use_tqdm: UseTqdm = True,
        lora_request: Any = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        truncate_prompt_tokens: int | None = None,
        on_error: OnError = "raise",
    ) -> list[ClassificationRequestOutput]:
        """The probabilities of each prompt's labels: `output.outputs.probs`."""
        texts = _Texts(prompts, pooling_params, tokenization_kwargs, truncate_prompt_tokens)
        made = _Results("classify", ClassificationRequestOutput, _classes)
        return self._pooled(texts, made, use_tqdm, lora_request, on_error)

    def encode(
        self,
        prompts: Any,
        pooling_params: Params = None,
        *,
        use_tqdm: UseTqdm = True,
        lora_request: Any = None,
        pooling_task: str | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        truncate_prompt_tokens: int | None = None,
        on_error: OnError = "raise",
    ) -> list[PoolingRequestOutput[Any]]:
        """What `pooling_task` asks for (embed, classify, token_embed, token_classify) of each
        prompt, as a tensor: `output.outputs.data`."""
        texts = _Texts(prompts, pooling_params, tokenization_kwargs, truncate_prompt_tokens)
        task = task_of(pooling_task, pooling_params)
        made = _Results(task, PoolingRequestOutput, tensor_output)
        return self._pooled(texts, made, use_tqdm, lora_request, on_error)

    def reward(self, prompts: Any, **options: Any) -> list[PoolingRequestOutput[Any]]:
        """The labels of every token of each prompt: encode(pooling_task="token_classify")."""
        return self.encode(prompts, pooling_task="token_classify", **options)

    def _pooled(
        self, texts: _Texts, results: _Results, use_tqdm: UseTqdm, lora: Any, on_error: OnError
    ) -> list[Any]:
        """The result of each prompt."""
        strict = raises(on_error)
        with self._session.turn():
            pooling = self._session.pooling
            task = pooling.check(results.task)
            keep = truncation(texts.keep, texts.params)
            options = text_options(pooling, texts.tokenization_kwargs, keep, texts.prompt_name)
            given = list(split_prompts(texts.prompts))
            asked = pooling.asked(texts.params, task, len(given))
            adapters = self._session.asked_adapters(lora)
            if adapters is not None:
                adapters.check_count(len(given))
            if not given:
                return []
            first = self._session.intake.take_numbers(len(given))
            made = pooling.reader.read(
                given,
                task,
                options,
                first_number=first,
                skip_cache=any(one.skip_cache for one in asked),
            )
            made = made if adapters is None else adapters.onto(made, 0)
            finish = partial(pooling.made, results.kind, results.make)
            call = PoolCall(made, asked, finish, first_number=first, strict=strict)
            return gather_call(self._session.run, call, use_tqdm, strict=strict)
