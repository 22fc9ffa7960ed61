"""/v1/score of a model that generates text: how likely labels are as the next token."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from quire.openai_api.asks import MOST_SAMPLES, Asked, Row, common_to
from quire.openai_api.errors import bad
from quire.openai_api.fields import SCORE
from quire.openai_api.outputs import Output
from quire.openai_api.params import prompt_fields
from quire.openai_api.pooling import PAIR_FIELDS
from quire.openai_api.shapes import LabelScores
from quire.server.tokens import token_ids

MOST_LABELS = 128


def read_label_scores(given: Mapping[str, Any]) -> Asked:
    """A row for each pair of query and item."""
    for name in PAIR_FIELDS:
        if name in given:
            raise bad(f"{name} is for a pooling model; give query and items", param=name)
    query, items = given.get("query", ""), given.get("items")
    if not isinstance(items, list):
        raise bad(
            "the body has no items; of a pooling model ask for text_1 and text_2", param="items"
        )
    if not 0 < len(items) <= MOST_SAMPLES or not all(isinstance(one, str) for one in items):
        raise bad(f"items is a list of 1 to {MOST_SAMPLES} texts", param="items")
    labels = token_ids(given.get("label_token_ids"), "label_token_ids", MOST_LABELS)
    params = {"max_tokens": 1, "temperature": 0, "logprob_token_ids": labels}
    is_first = bool(given.get("item_first"))
    rows: list[Row] = [
        {"prompt": one + query if is_first else query + one, "params": params} for one in items
    ]
    is_batch = common_to(rows, given)
    fields = prompt_fields("items")
    return Asked(SCORE, given.get("model"), tuple(rows), is_batch=is_batch, fields=fields)


def label_scores_body(
    given: Mapping[str, Any], outputs: list[Output], *, model: str
) -> LabelScores:
    scores, softmax = [], bool(given.get("apply_softmax"))
    for output in outputs:
        [place] = output.answers[0].logprobs or ()
        found = {token: logprob for token, _, logprob in place.top}
        chosen = [found[label] for label in given["label_token_ids"]]
        scores.append(_chances(chosen, softmax))
    return {
        "object": "scoring",
        "model": model,
        "scores": scores,
        "usage": {"prompt_tokens": sum(output.prompt_tokens for output in outputs)},
    }


def _chances(logprobs: list[float], softmax: bool) -> list[float]:
    """Probabilities of the labels; with `softmax` they add up to 1."""
    top = max(logprobs) if softmax else 0.0
    weights = [math.exp(logprob - top) for logprob in logprobs]
    total = sum(weights) if softmax else 1.0
    return [weight / total for weight in weights]
