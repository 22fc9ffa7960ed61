"""Rows answered by generating: prompts and conversations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from quire.errors import QuireError
from quire.jobs.child.requests import EngineRequest, RequestReader, attempt, failed
from quire.jobs.input.prompts import Preamble
from quire.params.lora import LoRARequest
from quire.replicas.board import Board
from quire.replicas.child.driving import Asked, Driver, timings_of
from quire.replicas.child.feed import Feed, Rows
from quire.replicas.child.tally import session_facts
from quire.replicas.streams import Send
from quire.replicas.wire import Message

if TYPE_CHECKING:
    from quire.outputs import RequestOutput
    from quire.request import Request
    from quire.run import Refused
    from quire.session.session import Session


class SessionEngine:
    """Answers rows with a session: prompts and conversations."""

    def __init__(self, session: Session, opening: Message, board: Board, files: Message) -> None:
        self._session, self._files = session, files
        tokenizer = session.model.tokenizer
        has_template = tokenizer is not None and bool(tokenizer.chat_templates)
        wanted = opening.get("chat")
        self._chat = has_template if wanted is None else bool(wanted)
        preamble = Preamble(opening.get("system"), tuple(map(tuple, opening.get("few_shot", ()))))
        self._reader = RequestReader(
            tokenizer,
            preamble,
            opening.get("settings", ({},)),
            chat=self._chat,
            max_model_len=session.model.config.max_model_len,
        )
        self._lora = {
            name: LoRARequest(name, number, path)
            for number, (name, path) in enumerate(opening.get("lora", {}).items(), start=1)
        }
        self._with_probs = bool(opening.get("choice_probs"))
        self._driver = Driver(session, board)

    def facts(self) -> Message:
        return {**session_facts(self._session), "chat": self._chat, **self._files}

    def run(self, feed: Feed, send: Send) -> None:
        self._driver.run(feed, send, lambda rows: self._asked(rows, send), self._result)

    def _asked(self, rows: Rows, send: Send) -> Iterator[Asked]:
        """One window of these rows; those that cannot be asked are answered at once."""
        made = []
        for row, request in zip(rows, self._reader.read(rows), strict=True):
            if isinstance(request, QuireError):
                send(failed(row["row"], request))
            else:
                made.append(request)
        asked: Asked = []
        for request, item in zip(made, self._window(made), strict=True):
            if isinstance(item, QuireError):
                send(failed(request.row, item))
            else:
                asked.append((request.row, item))
        yield asked

    def _window(self, made: list[EngineRequest]) -> Sequence[Request | Refused | QuireError]:
        """The session's own request for each; if that fails for all of them one by one, to find
        whose fault it is."""
        prompts, params = [r.prompt for r in made], [r.params for r in made]
        lora = [self._lora.get(r.lora or "") for r in made]
        found = attempt(
            lambda: self._session.intake.window(prompts, params, self._session.asked_adapters(lora))
        )
        if not isinstance(found, QuireError):
            return found
        return [found] if len(made) == 1 else [self._window([each])[0] for each in made]

    def plan(self, rows: Rows) -> str:
        made = [r for r in self._reader.read(rows) if not isinstance(r, QuireError)]
        prompts, params = [r.prompt for r in made], [r.params for r in made]
        with self._session.turn():
            return self._session.plan(prompts, params, None, lambda: None).explain()

    def _result(self, row: int, output: RequestOutput) -> Message:
        if output.error is not None:
            return failed(row, output.error)
        probs = output.choice_probs if self._with_probs else None
        return {
            "kind": "result",
            "row": row,
            "outputs": [answer.text for answer in output.outputs],
            "finish_reasons": [answer.finish_reason for answer in output.outputs],
            "prompt_tokens": output.num_prompt_tokens,
            "output_tokens": sum(len(answer.token_ids) for answer in output.outputs),
            "timings": timings_of(output),
            **({} if probs is None else {"choice_probs": _rounded(probs)}),
        }


def _rounded(probs: dict[str, float]) -> dict[str, float]:
    """To what a reader can use: further digits are noise of the arithmetic."""
    return {text: float(f"{prob:.6g}") for text, prob in probs.items()}
