"""An engine that judges by a rule a test can know: right if the truth stands in the answer."""

from __future__ import annotations

from typing import Any

from quire.replicas.board import Board
from quire.replicas.child.feed import Feed
from quire.replicas.streams import Send
from quire.replicas.wire import Message


class JudgeEngine:
    def __init__(self, opening: Message, board: Board) -> None:
        [setting] = opening["settings"]
        self._words = setting["structured_outputs"]["choice"]

    def facts(self) -> Message:
        return {"capacity": 8, "device": "none", "chat": False}

    def run(self, feed: Feed, send: Send) -> None:
        for rows in feed.windows(lambda: True):
            for row in rows:
                send(self._answer(row))

    def _answer(self, row: Message) -> Message:
        asked = row["prompt"]
        if "unspeakable" in asked:
            return {"kind": "result", "row": row["row"], "error": "no", "error_type": "refused"}
        truth = asked.split("The right answer:\n")[1].split("\n")[0]
        answer = asked.split("The answer to check:\n")[1]
        word = self._words[0 if truth in answer else -1]
        return {
            "kind": "result",
            "row": row["row"],
            "outputs": [word],
            "finish_reasons": ["stop"],
            "prompt_tokens": len(asked.split()),
            "output_tokens": 1,
            "timings": [0.0, 0.0, 0.0],
        }

    def plan(self, rows: Any) -> str:
        return ""
