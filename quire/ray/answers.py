"""Answers as columns of a row, under the names of Ray Data LLM."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from quire.errors import QuireError
from quire.logprobs import Logprob
from quire.outputs import PoolingRequestOutput, RequestOutput
from quire.ray.config import ERROR, Row

_SHOWN = 500  # characters of the prompt of a row that failed
NOTHING: Row = {
    "prompt": "",
    "prompt_token_ids": None,
    "num_input_tokens": 0,
    "generated_tokens": [],
    "generated_text": "",
    "num_generated_tokens": 0,
    "finish_reason": None,
    "embeddings": None,
    "metrics": None,
    "logprobs": None,
    "prompt_logprobs": None,
}


def plain(value: Any) -> Any:
    """Plain data again from a column of Ray Data, which turns lists into arrays and gives each dict
    the keys of all others, with None as value."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items() if each is not None}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value


def answer_of(output: RequestOutput) -> Row:
    answer, ids = output.outputs[0], list(output.prompt_token_ids or ())
    return {
        **NOTHING,
        "prompt": output.prompt or "",
        "prompt_token_ids": ids,
        "num_input_tokens": len(ids),
        "generated_tokens": list(answer.token_ids),
        "generated_text": answer.text,
        "num_generated_tokens": len(answer.token_ids),
        "finish_reason": answer.finish_reason,
        "metrics": asdict(output.metrics),
        "logprobs": _logprobs(answer.logprobs),
        "prompt_logprobs": _logprobs(output.prompt_logprobs),
        "request_id": output.request_id,
    }


def pooled_answer(output: PoolingRequestOutput[Any], prompt: Any) -> Row:
    text = prompt.get("prompt", "") if isinstance(prompt, dict) else str(prompt)
    ids = list(output.prompt_token_ids)
    return {
        **NOTHING,
        "prompt": text,
        "prompt_token_ids": ids,
        "num_input_tokens": len(ids),
        "embeddings": np.asarray(output.outputs.data, np.float32),
        "request_id": output.request_id,
    }


def failed_answer(row: Row, error: QuireError) -> Row:
    return {
        **NOTHING,
        "prompt": str(row.get("prompt") or "")[:_SHOWN],
        "finish_reason": "error",
        "request_id": "-1",
        "time_taken_llm": -1.0,
        "params": "",
        ERROR: f"{type(error).__name__}: {error}",
    }


def _plain_logprob(one: Logprob) -> Row:
    return {"logprob": one.logprob, "rank": one.rank, "decoded_token": one.decoded_token}


def _logprobs(given: Any) -> list[Any] | None:
    if given is None:
        return None
    return [
        None if each is None else {token: _plain_logprob(one) for token, one in each.items()}
        for each in given
    ]
