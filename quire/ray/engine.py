"""What an actor of the pool runs: all its batches go into one engine, which never waits for one of
them to end."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quire.errors import EngineError, InvalidPrompt, QuireError
from quire.inputs.chat import read_template, render_conversations
from quire.ray.config import DATA, ERROR, Row, vLLMEngineProcessorConfig
from quire.sampling_params import RequestOutputKind, SamplingParams
from quire.session.async_llm import AsyncLLM


class EngineUDF:
    """Answers batches of packed rows, several at once."""

    def __init__(
        self, config: vLLMEngineProcessorConfig, chat_template_kwargs: Mapping[str, Any] | None
    ) -> None:
        self._config, self._chat_template_kwargs = config, chat_template_kwargs
        self._llm = AsyncLLM(config.model_source, **config.engine_kwargs)
        template = config.chat_template
        self._template = None if template is None else read_template(template)

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        rows = [dict(row) for row in batch[DATA]]
        kept = self._journal_file(rows)
        if kept is not None and kept.exists():
            answers: list[Row] = json.loads(kept.read_text(encoding="utf-8"))
        else:
            number = uuid.uuid4().hex
            answers = await asyncio.gather(*(self._answer(row, number) for row in rows))
            if kept is not None:
                _write(kept, answers)
        yield {DATA: [{**row, **answer} for row, answer in zip(rows, answers, strict=True)]}

    async def _answer(self, row: Row, batch: str) -> Row:
        began = time.perf_counter()
        try:
            params = _params(row)
            prompt, more = self._prompt(row)
            async for output in self._llm.generate(prompt, params, tokenization_kwargs=more):
                if output.finished:
                    break
        except EngineError:
            os._exit(1)  # Ray starts another actor, and gives the batch to a healthy one
        except QuireError as error:
            if not self._config.should_continue_on_error:
                raise
            return _failed(row, error, batch)
        answer, ids = output.outputs[0], output.prompt_token_ids or []
        return {
            "prompt": output.prompt or "",
            "prompt_token_ids": ids,
            "num_input_tokens": len(ids),
            "generated_tokens": list(answer.token_ids),
            "generated_text": answer.text,
            "num_generated_tokens": len(answer.token_ids),
            "finish_reason": answer.finish_reason,
            "metrics": asdict(output.metrics),
            "request_id": output.request_id,
            "batch_uuid": batch,
            "time_taken_llm": time.perf_counter() - began,
            "params": repr(params),
            ERROR: "",
        }

    def _prompt(self, row: Row) -> tuple[Any, dict[str, Any] | None]:
        """What is asked, and how its text becomes tokens."""
        if row.get("messages") is not None:
            tokenizer = self._llm._session.model.tokenizer
            if tokenizer is None:
                raise InvalidPrompt(
                    "messages need a tokenizer, and skip_tokenizer_init leaves none"
                )
            messages = [dict(message) for message in row["messages"]]
            rendering = {
                "chat_template": self._template,
                "add_generation_prompt": messages[-1]["role"] != "assistant",
                "continue_final_message": messages[-1]["role"] == "assistant",
                "chat_template_kwargs": dict(self._chat_template_kwargs or {}) or None,
            }
            [made] = render_conversations([messages], tokenizer, **rendering)
            if isinstance(made, QuireError):
                raise made
            return made, {"add_special_tokens": False}
        if row.get("prompt_token_ids") is not None or row.get("tokenized_prompt") is not None:
            ids = row.get("prompt_token_ids")
            ids = row.get("tokenized_prompt") if ids is None else ids
            return {"prompt_token_ids": [int(token) for token in ids or ()]}, None
        if row.get("prompt") is None:
            raise InvalidPrompt("a row has messages, prompt or prompt_token_ids; this one has none")
        return row["prompt"], None

    def _journal_file(self, rows: list[Row]) -> Path | None:
        """Where the answers of these rows are kept, whichever actor answers them."""
        if self._config.journal is None or self._config.id_column is None:
            return None
        names = json.dumps([str(row[self._config.id_column]) for row in rows])
        return Path(self._config.journal) / f"{hashlib.sha256(names.encode()).hexdigest()}.json"


def _params(row: Row) -> SamplingParams:
    given = {
        name: value
        for name, value in dict(row.get("sampling_params") or {}).items()
        if value is not None  # a field that only other rows have is None here
    }
    return SamplingParams(**{**given, "output_kind": RequestOutputKind.FINAL_ONLY})


def _failed(row: Row, error: QuireError, batch: str) -> Row:
    return {
        "prompt": str(row.get("prompt") or "")[:500],
        "prompt_token_ids": [],
        "num_input_tokens": 0,
        "generated_tokens": [],
        "generated_text": "",
        "num_generated_tokens": 0,
        "finish_reason": "error",
        "metrics": None,
        "request_id": "-1",
        "batch_uuid": batch,
        "time_taken_llm": -1.0,
        "params": "",
        ERROR: f"{type(error).__name__}: {error}",
    }


def _write(path: Path, answers: list[Row]) -> None:
    """Whole or not at all: another actor may write the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with open(aside, "w", encoding="utf-8") as file:
        json.dump(answers, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
