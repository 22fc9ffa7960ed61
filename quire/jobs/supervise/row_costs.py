"""Estimates the cost of a job's row before it is tokenized, from its size and from the answers so
far."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from quire.jobs.input.work import WorkRow
from quire.replicas.task import Task
from quire.replicas.wire import Message

UNSEEN = 4.0  # the first estimate counts as so many answers, each as long as allowed
BYTES_PER_TOKEN = 4.0  # of a prompt, until answers tell
# The cost of a prompt's token, in generated tokens: many are computed in one step.
PROMPT_SHARE = 0.125
HEAD_ROWS, BEGINNING = 64, 256  # rows compared for a common beginning; characters after it


class RowCosts:
    """Makes tasks of rows, with costs that it learns from the answers."""

    def __init__(self, opening: Message) -> None:
        settings = opening.get("settings") or [{}]
        longest = [float(setting.get("max_tokens") or 256) for setting in settings]
        self._tokens = [UNSEEN * tokens for tokens in longest]  # written, for each setting
        self._answers = [UNSEEN for _ in longest]
        self._bytes, self._prompt_tokens = BYTES_PER_TOKEN, 1.0
        self._heads: list[str] = []
        self._head = 0  # characters that all rows begin with

    def task(self, row: WorkRow) -> Task:
        setting = int(row.asked.get("setting", 0))
        written = self._tokens[setting] / self._answers[setting]
        prompt = row.size * self._prompt_tokens / self._bytes
        cost = written + PROMPT_SHARE * prompt
        return Task(row.row, cost, row.asked, row, row.size, self._beginning(row.asked))

    def observe(self, row: WorkRow, message: Message) -> None:
        setting = int(row.asked.get("setting", 0))
        self._tokens[setting] += message["output_tokens"]
        self._answers[setting] += 1
        self._bytes += row.size
        self._prompt_tokens += message["prompt_tokens"]

    def _beginning(self, asked: Mapping[str, Any]) -> int | None:
        """A hash that is equal for rows that begin alike: of the first characters after the common
        beginning of all rows. None for a row that is too short to share anything."""
        text = _text_of(asked)
        if len(self._heads) < HEAD_ROWS:
            self._heads.append(text[: 1 << 16])
            if len(self._heads) == HEAD_ROWS:
                self._head = len(os.path.commonprefix(self._heads))
            return None
        part = text[self._head : self._head + BEGINNING]
        return hash(part) if len(part) == BEGINNING else None


def _text_of(asked: Mapping[str, Any]) -> str:
    if isinstance(prompt := asked.get("prompt"), str):
        return prompt
    what = asked.get("messages") or asked.get("body") or asked.get("prompt")
    return json.dumps(what, sort_keys=True, default=str)[: 1 << 17]
