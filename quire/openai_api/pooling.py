"""Bodies that ask for numbers: their requests to the engine, and the bodies that answer them.

Embeddings follow OpenAI's API, ranks Jina's and Cohere's; scores, classes and other pooled outputs
follow vLLM's.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quire.openai_api.asks import Row, common_to, name_model, prompts_of, read_fields
from quire.openai_api.errors import bad, not_supported
from quire.openai_api.fields import (
    CLASSIFY,
    EMBEDDINGS,
    POOLING,
    RERANK_2,
    RERANKS,
    SCORE,
)
from quire.openai_api.form_fields import TRANSCRIPTIONS
from quire.openai_api.outputs import Output, Pooled
from quire.openai_api.params import limited, prompt_fields
from quire.openai_api.shapes import (
    Classes,
    Embedding,
    PoolBody,
    Pooling,
    PoolUsage,
    Rank,
    Ranks,
    Score,
)
from quire.params.rules import show
from quire.pooling.similarity import cosine, max_sim
from quire.step import Floats

MOST_TEXTS = 2048  # of one body
_TASKS = {EMBEDDINGS: "embed", CLASSIFY: "classify"}
_ENCODINGS = ("float", "base64")
# Of /v1/score: the fields for a model that generates text, and for a pooling model.
LABEL_FIELDS = ("query", "items", "label_token_ids", "apply_softmax", "item_first")
PAIR_FIELDS = ("text_1", "text_2", "truncate_prompt_tokens", "use_activation")
_SAME = ("dimensions", "use_activation", "truncate_prompt_tokens", "prompt_name")


@dataclass(frozen=True, slots=True)
class PoolAsked:
    """A body that was read. `rows` go to the engine: {"prompt": text or token ids, "pool": what
    is asked about it}. Scores are made of `pairs` of them, by their numbers; of a model that
    reads two texts as one, each row is a pair itself and `pairs` is None."""

    endpoint: str
    model: str | None
    rows: tuple[Row, ...]
    is_batch: bool = False  # it asked for the batch lane
    is_base64: bool = False
    pairs: tuple[tuple[int, int], ...] | None = None
    documents: tuple[str, ...] = ()  # of which the answer shows the best
    top_n: int | None = None
    shows_documents: bool = False
    fields: Mapping[str, str] = field(default_factory=dict)  # as those of Asked


_WAYS = {
    "generate": "/v1/chat/completions",
    "transcription": TRANSCRIPTIONS,
    "embed": EMBEDDINGS,
    "classify": CLASSIFY,
    "token_embed": POOLING,
    "token_classify": POOLING,
}


def check_task(task: str, tasks: Collection[str]) -> None:
    """Refuse a task that the served model does not have, and name the paths that work. `tasks` are
    the model's; while it loads they are empty, and the engine checks later."""
    if not tasks or task in tasks or task not in _WAYS:
        return
    ways = ", ".join(f"{_WAYS[one]} ({one})" for one in tasks if one in _WAYS)
    raise not_supported(f"the served model cannot {task}; ask it for {ways}")


def read_pooling_body(
    endpoint: str, body: Any, names: Collection[str] | None, tasks: Collection[str]
) -> PoolAsked:
    """Read a body; raises ApiError. `tasks` are those of the served model."""
    given = read_fields(endpoint, body, names)
    if endpoint in RERANKS:
        asked = _read_rerank(endpoint, given, tasks)
    elif endpoint in (EMBEDDINGS, CLASSIFY, POOLING):
        asked = _read_texts(endpoint, given, tasks)
    else:
        asked = _read_score(endpoint, given, tasks)
    name_model(asked.rows, given.get("model"), names)
    return asked


def _read_texts(endpoint: str, given: Mapping[str, Any], tasks: Collection[str]) -> PoolAsked:
    pools = [task for task in tasks if task not in ("generate", "score")]
    usual = pools[0] if pools else "embed"
    wanted = {"task": _TASKS.get(endpoint) or given.get("task", usual), **_same(given)}
    check_task(wanted["task"], tasks)
    if "add_special_tokens" in given:
        wanted["add_special_tokens"] = given["add_special_tokens"]
    encoding = given.get("encoding_format", "float")
    if encoding not in _ENCODINGS:
        raise bad(
            f"encoding_format is float or base64, not {show(encoding)}", param="encoding_format"
        )
    rows = [
        {"prompt": prompt, "pool": wanted}
        for prompt in prompts_of(given["input"], "input", MOST_TEXTS)
    ]
    return _asked(endpoint, given, rows, is_base64=encoding == "base64")


def _read_rerank(endpoint: str, given: Mapping[str, Any], tasks: Collection[str]) -> PoolAsked:
    documents = tuple(_text(one, i) for i, one in enumerate(given["documents"]))
    if not 0 < len(documents) <= MOST_TEXTS:
        raise bad(f"documents is a list of 1 to {MOST_TEXTS:,} texts", param="documents")
    if (top_n := given.get("top_n")) is not None:
        limited("top_n", top_n, 1, 1 << 31)
    return _read_pairs(
        endpoint,
        given,
        [(given["query"], document) for document in documents],
        tasks,
        documents=documents,
        top_n=top_n,
        shows_documents=given.get("return_documents", endpoint != RERANK_2),
    )


def _text(document: Any, i: int) -> str:
    text = document.get("text") if isinstance(document, Mapping) else document
    if not isinstance(text, str):
        raise bad(f"documents[{i}] is a text, or an object with a text", param="documents")
    return text


def _read_score(endpoint: str, given: Mapping[str, Any], tasks: Collection[str]) -> PoolAsked:
    for name in LABEL_FIELDS:
        if name in given:
            raise bad(f"{name} is for a model that writes text; give text_1 and text_2", param=name)
    ones, others = _texts(given, "text_1"), _texts(given, "text_2")
    if len(ones) == 1:
        ones = ones * len(others)
    if len(ones) != len(others):
        raise bad(
            f"text_1 is one text, or as many as text_2 has: {len(others)}, not {len(ones)}",
            param="text_1",
        )
    return _read_pairs(endpoint, given, list(zip(ones, others, strict=True)), tasks)


def _texts(given: Mapping[str, Any], name: str) -> list[str]:
    value = given.get(name)
    found = [value] if isinstance(value, str) else value or []
    if not 0 < len(found) <= MOST_TEXTS or not all(isinstance(one, str) for one in found):
        raise bad(f"{name} is a text, or a list of 1 to {MOST_TEXTS:,} texts", param=name)
    return found


def _read_pairs(
    endpoint: str,
    given: Mapping[str, Any],
    texts: list[tuple[str, str]],
    tasks: Collection[str],
    **more: Any,
) -> PoolAsked:
    """Rows for pairs: one row a pair for a model that reads two texts as one, else one a text."""
    wanted = {**_same(given), "prompt_name": ""}
    if "score" in tasks:
        rows: list[Row] = [
            {"prompt": one, "pool": {**wanted, "task": "classify", "pair": other}}
            for one, other in texts
        ]
        return _asked(endpoint, given, rows, **more)
    wanted["task"] = "token_embed" if "embed" not in tasks and "token_embed" in tasks else "embed"
    check_task(wanted["task"], tasks)
    numbers: dict[str, int] = {}
    pairs = tuple(
        (numbers.setdefault(one, len(numbers)), numbers.setdefault(other, len(numbers)))
        for one, other in texts
    )
    rows = [{"prompt": text, "pool": wanted} for text in numbers]
    return _asked(endpoint, given, rows, pairs=pairs, **more)


def _same(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in _SAME if name in given}


def _asked(endpoint: str, given: Mapping[str, Any], rows: list[Row], **more: Any) -> PoolAsked:
    for i, row in enumerate(rows):
        row["params"] = {}
        row["slots"] = int(i == 0)  # a body takes one slot of the queue, however many texts it has
    more |= {"is_batch": common_to(rows, given), "fields": prompt_fields(_texts_of(endpoint))}
    return PoolAsked(endpoint, given.get("model"), tuple(rows), **more)


def _texts_of(endpoint: str) -> str:
    """The name of the field with the texts."""
    return {SCORE: "text_2", **dict.fromkeys(RERANKS, "documents")}.get(endpoint, "input")


def pooling_body(
    asked: PoolAsked,
    outputs: Sequence[Output],
    *,
    id: str,
    created: int,
    model: str,
    labels: Sequence[str] = (),
) -> PoolBody[Any] | Ranks:
    """The body that answers `asked`; `outputs` has the output of each row, `labels` the names of a
    classifier's labels."""
    tokens = sum(output.prompt_tokens for output in outputs)
    if asked.endpoint in RERANKS:
        return _ranks(asked, outputs, id=id, model=model, tokens=tokens)
    data: Sequence[Embedding | Classes | Pooling | Score]
    if asked.endpoint == EMBEDDINGS:
        data = [_embedding(asked, one, i) for i, one in enumerate(outputs)]
    elif asked.endpoint == CLASSIFY:
        data = [_classes(one, i, labels) for i, one in enumerate(outputs)]
    elif asked.endpoint == POOLING:
        data = [_pooling(asked, one, i) for i, one in enumerate(outputs)]
    else:
        data = [_score(one, i) for i, one in enumerate(scores_of(asked, outputs))]
    body: PoolBody[Any] = {
        "id": id,
        "object": "list",
        "created": created,
        "model": model,
        "data": list(data),
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return body


def _score(score: float, i: int) -> Score:
    return {"index": i, "object": "score", "score": score}


def _embedding(asked: PoolAsked, output: Output, i: int) -> Embedding:
    return {"object": "embedding", "index": i, "embedding": _written(output.pooled, asked)}


def _pooling(asked: PoolAsked, output: Output, i: int) -> Pooling:
    return {"object": "pooling", "index": i, "data": _written(output.pooled, asked)}


def _classes(output: Output, i: int, labels: Sequence[str]) -> Classes:
    probs = array_of(output.pooled).tolist()
    best = probs.index(max(probs)) if probs else 0
    label = labels[best] if len(labels) == len(probs) else None
    return {"index": i, "label": label, "probs": probs, "num_classes": len(probs)}


def _ranks(
    asked: PoolAsked, outputs: Sequence[Output], *, id: str, model: str, tokens: int
) -> Ranks:
    found = scores_of(asked, outputs)
    order = sorted(range(len(found)), key=lambda i: (-found[i], i))
    results: list[Rank] = []
    for i in order[: asked.top_n]:
        rank: Rank = {"index": i, "relevance_score": found[i]}
        if asked.shows_documents:
            rank["document"] = {"text": asked.documents[i]}
        results.append(rank)
    usage: PoolUsage = {"prompt_tokens": tokens, "total_tokens": tokens}
    ranks: Ranks = {"id": id, "model": model, "results": results, "usage": usage}
    if asked.endpoint == RERANK_2:
        ranks["meta"] = {"api_version": {"version": "2"}, "tokens": {"input_tokens": tokens}}
    return ranks


def scores_of(asked: PoolAsked, outputs: Sequence[Output]) -> list[float]:
    """How well the texts of each pair belong together."""
    found = [array_of(output.pooled) for output in outputs]
    if asked.pairs is None:
        return [float(one[0]) for one in found]
    compare = max_sim if found[0].ndim > 1 else cosine
    return [compare(found[i], found[j]) for i, j in asked.pairs]


def array_of(pooled: Pooled | None) -> Floats:
    if pooled is None:
        raise ValueError("an output without numbers, of a row that asks for them")
    values: Floats = np.frombuffer(pooled.data, "<f4").reshape(pooled.shape)
    return values


def _written(pooled: Pooled | None, asked: PoolAsked) -> Any:
    values = array_of(pooled)
    return base64.b64encode(values.tobytes()).decode() if asked.is_base64 else values.tolist()
