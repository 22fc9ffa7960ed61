"""Rows answered by generating: prompts and conversations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quire.errors import QuireError
from quire.jobs.child.job_engine import JobEngine, all_or_one_by_one, answered, skipping_errors
from quire.jobs.child.requests import EngineRequest, RequestReader
from quire.jobs.input.prompts import Preamble
from quire.params.lora import LoRARequest
from quire.replicas.board import Board
from quire.replicas.child.feed import Rows
from quire.replicas.wire import Message

if TYPE_CHECKING:
    from quire.outputs import RequestOutput
    from quire.request import Request
    from quire.run import Refused
    from quire.session.session import Session


class SessionEngine(JobEngine):
    def __init__(self, session: Session, opening: Message, board: Board, files: Message) -> None:
        super().__init__(session, board, files)
        tokenizer = session.model.tokenizer
        has_template = tokenizer is not None and bool(tokenizer.chat_templates)
        wanted = opening.get("chat")
        self.chat = has_template if wanted is None else bool(wanted)
        preamble = Preamble(opening.get("system"), tuple(map(tuple, opening.get("few_shot", ()))))
        self._reader = RequestReader(
            tokenizer,
            preamble,
            opening.get("settings", ({},)),
            chat=self.chat,
            max_model_len=session.model.config.max_model_len,
        )
        self._lora = {
            name: LoRARequest(name, number, path)
            for number, (name, path) in enumerate(opening.get("lora", {}).items(), start=1)
        }
        self._with_probs = bool(opening.get("choice_probs"))

    def _requests(self, rows: Rows) -> Sequence[Request | Refused | QuireError]:
        return skipping_errors(
            self._reader.read(rows), lambda made: all_or_one_by_one(made, self._made)
        )

    def _made(self, asked: Sequence[EngineRequest]) -> Sequence[Request | Refused]:
        """The session's own request for each."""
        prompts, params = [r.prompt for r in asked], [r.params for r in asked]
        adapters = self._session.asked_adapters([self._lora.get(r.lora or "") for r in asked])
        return self._session.intake.window(prompts, params, adapters)

    def plan(self, rows: Rows) -> str:
        made = [r for r in self._reader.read(rows) if not isinstance(r, QuireError)]
        prompts, params = [r.prompt for r in made], [r.params for r in made]
        with self._session.turn():
            return self._session.plan(prompts, params, None, lambda: None).explain()

    def _answer(self, row: int, output: RequestOutput) -> Message:
        probs = output.choice_probs if self._with_probs else None
        return answered(
            row,
            output,
            [answer.text for answer in output.outputs],
            finish_reasons=[answer.finish_reason for answer in output.outputs],
            output_tokens=sum(len(answer.token_ids) for answer in output.outputs),
            **({} if probs is None else {"choice_probs": _rounded(probs)}),
        )


def _rounded(probs: dict[str, float]) -> dict[str, float]:
    """Probabilities with as many digits as mean something: further digits are rounding errors."""
    return {text: float(f"{prob:.6g}") for text, prob in probs.items()}
