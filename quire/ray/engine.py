"""The class that an actor of the pool runs: all its batches go into one engine, so that no batch
waits for another to end."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

from quire.errors import EngineError, InvalidParams, InvalidPrompt, QuireError
from quire.inputs.chat import read_template, render_conversations
from quire.params.lora import LoRARequest
from quire.params.pooling import PoolingParams
from quire.params.structured import StructuredOutputsParams
from quire.ray.answer_files import AnswerFiles, read_answers, write_answers
from quire.ray.answers import answer_of, failed_answer, plain, pooled_answer
from quire.ray.config import DATA, ERROR, TASKS, Packed, Row, vLLMEngineProcessorConfig
from quire.ray.stages import ChatTemplateStageConfig
from quire.sampling_params import RequestOutputKind, SamplingParams
from quire.session.async_llm import AsyncLLM

# Columns for media of a row, with their names in prompts.
_MEDIA_COLUMNS = {
    "multimodal_data": "multi_modal_data",
    "mm_processor_kwargs": "mm_processor_kwargs",
    "multimodal_uuids": "multi_modal_uuids",
}
Output = TypeVar("Output")


class EngineUDF:
    """Answers batches of packed rows, several at the same time."""

    def __init__(
        self, config: vLLMEngineProcessorConfig, chat_template_kwargs: Mapping[str, Any] | None
    ) -> None:
        self._config = config
        self._adapters: dict[str, LoRARequest] = {}
        chat = config.chat or ChatTemplateStageConfig()
        template = chat.chat_template or config.chat_template
        more = chat.chat_template_kwargs or chat_template_kwargs
        self._rendering: dict[str, Any] = {
            "chat_template": None if template is None else read_template(template),
            "content_format": config.content_format,
            "chat_template_kwargs": dict(more) if more else None,
        }
        self._files = None if config.journal is None else AnswerFiles(config, self._rendering)
        self._llm = AsyncLLM(config.model_source, **config.options)

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        rows: list[Row] = [packed.row for packed in batch[DATA]]
        kept = None if self._files is None else self._files.file(rows)
        answers = None if kept is None else read_answers(kept, len(rows))
        if answers is None:
            number = uuid.uuid4().hex
            answers = await asyncio.gather(*(self._answer(row, number) for row in rows))
            if kept is not None:
                write_answers(kept, answers)
        yield {DATA: [Packed({**row, **answer}) for row, answer in zip(rows, answers, strict=True)]}

    async def _answer(self, row: Row, batch: str) -> Row:
        began = time.perf_counter()
        task = TASKS[self._config.task_type]
        try:
            prompt, more = self._prompt(row)
            adapter = self._adapter(row)
            if task is None:
                params = _sampling_params(row, detokenizes=self._config.detokenizes)
                asked = self._llm.generate(
                    prompt, params, tokenization_kwargs=more, lora_request=adapter
                )
                made = answer_of(await _last(asked))
            else:
                pooling = _pooling_params(row, task)
                asking = self._llm.encode(
                    prompt, pooling, tokenization_kwargs=more, lora_request=adapter
                )
                made = pooled_answer(await _last(asking), prompt)
        except EngineError:
            os._exit(1)  # Ray then starts another actor, and gives the batch to it
        except QuireError as error:
            if not self._config.should_continue_on_error:
                raise
            return {**failed_answer(row, error), "batch_uuid": batch}
        said = repr(params if task is None else pooling)
        spent = time.perf_counter() - began
        return {**made, "batch_uuid": batch, "time_taken_llm": spent, "params": said, ERROR: ""}

    def _prompt(self, row: Row) -> tuple[Any, dict[str, Any] | None]:
        """The prompt of a row, and the options for its tokenization."""
        more = plain(row.get("tokenization_kwargs"))
        if self._config.chat is not None and row.get("messages") is not None:
            special = {**(more or {}), "add_special_tokens": False}
            return self._rendered(plain(row["messages"])), special
        prompt: dict[str, Any] = {}
        ids = row.get("prompt_token_ids")
        ids = row.get("tokenized_prompt") if ids is None else ids
        if ids is not None:
            prompt["prompt_token_ids"] = [int(token) for token in ids]
        elif row.get("prompt") is not None:
            prompt["prompt"] = row["prompt"]
        else:
            raise InvalidPrompt(
                "a row has messages (where chat_template_stage is on), prompt or prompt_token_ids; "
                f"this one has {', '.join(row) or 'nothing'}"
            )
        for column, name in _MEDIA_COLUMNS.items():
            if row.get(column) is not None:
                prompt[name] = row[column]
        return prompt, more

    def _rendered(self, messages: list[Any]) -> Any:
        tokenizer = self._llm._session.model.tokenizer
        if tokenizer is None:
            raise InvalidPrompt("messages need a tokenizer, and skip_tokenizer_init leaves none")
        last = messages[-1] if messages and isinstance(messages[-1], dict) else {}
        is_begun = last.get("role") == "assistant"
        [made] = render_conversations(
            [messages],
            tokenizer,
            add_generation_prompt=not is_begun,
            continue_final_message=is_begun,
            **self._rendering,
        )
        if isinstance(made, QuireError):
            raise made
        return made

    def _adapter(self, row: Row) -> LoRARequest | None:
        path = self._config.adapter_path(row)
        if path is None:
            return None
        if path not in self._adapters:
            self._adapters[path] = LoRARequest(row["model"], len(self._adapters) + 1, path)
        return self._adapters[path]


async def _last(outputs: AsyncIterator[Output]) -> Output:
    async for output in outputs:
        last = output
    return last


def _sampling_params(row: Row, *, detokenizes: bool) -> SamplingParams:
    given = plain(row.get("sampling_params")) or {}
    for name in ("structured_outputs", "guided_decoding"):
        if isinstance(given.get(name), dict):
            given[name] = _made(StructuredOutputsParams, name, given[name])
    fixed: Row = {"output_kind": RequestOutputKind.FINAL_ONLY}
    if detokenizes:
        fixed["detokenize"] = True  # pipelines turn it off because they have a stage for it
    return _made(SamplingParams, "sampling_params", {**given, **fixed})


def _pooling_params(row: Row, task: str) -> PoolingParams:
    given = plain(row.get("pooling_params")) or {}
    return _made(PoolingParams, "pooling_params", {**given, "task": task})


def _made(kind: Callable[..., Output], column: str, given: Row) -> Output:
    try:
        return kind(**given)
    except TypeError as error:  # a name that `kind` does not have
        raise InvalidParams(f"{column}: {error}", parameter=column) from None
