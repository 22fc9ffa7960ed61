"""An engine in the supervisor's own process, for tests of what lies around it: it answers every
row at once, with a text that its prompt alone decides."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from quire.replicas.wire import Message


class InstantEngine:
    """Takes the place of an EngineProcess; `asked` collects the rows of all of them."""

    asked: list[int] = []
    stderr_tail = ""
    pid = 0

    def __init__(
        self,
        opening: Message,
        *,
        command: Any = (),
        hear: Callable[[str], None] = print,
        environment: Any = None,
    ) -> None:
        self._out: list[Message] = [{"kind": "ready", "capacity": 8, "chat": False}]
        self.ended = False

    def send(self, message: Message) -> None:
        if message["kind"] == "end":
            self._out.append({"kind": "drained"})
        for row in message.get("rows", ()):
            self.asked.append(row["row"])
            self._out.append(_answer(row))

    def poll(self, timeout: float) -> list[Message]:
        found, self._out = self._out, []
        return found

    def is_hung(self) -> bool:
        return False

    def end(self) -> int:
        return 0


def _answer(row: Message) -> Message:
    number, prompt = row["row"], row["prompt"]
    if "bad" in prompt:
        return {"kind": "result", "row": number, "error": "no", "error_type": "invalid_prompt"}
    return {
        "kind": "result",
        "row": number,
        "outputs": [f"{zlib.crc32(prompt.encode()):x} for {prompt}"],
        "finish_reasons": ["stop"],
        "prompt_tokens": len(prompt),
        "output_tokens": 3,
    }
