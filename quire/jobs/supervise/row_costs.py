"""What a row of a job will probably cost, before anything of it was tokenized: from its size and
from the answers that came so far."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from quire.jobs.input.work import WorkRow
from quire.replicas.task import Task
from quire.replicas.wire import Message

UNSEEN = 4.0  # answers taken to be as long as they may be, before any was seen
BYTES_PER_TOKEN = 4.0  # of a prompt, before any was seen
# A prompt's token costs less than one that is written: many are computed in one step.
PROMPT_SHARE = 0.125
HEAD_ROWS, BEGINNING = 64, 256  # rows looked at for what all have in common; characters after it


class RowCosts:
    """Learns from the answers; makes rows into tasks."""

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
        """What rows that begin alike have in common: a hash of their first characters, behind
        those that all rows have. None for a row that is too short to share anything."""
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
