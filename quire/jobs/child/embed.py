"""Rows answered by embedding: a vector for each row's text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quire.jobs.child.job_engine import JobEngine, all_or_one_by_one, answered, skipping_errors
from quire.jobs.child.requests import refuse_far_too_long, result_or_error
from quire.jobs.vectors import encode_vector, pooling_params
from quire.replicas.board import Board
from quire.replicas.child.feed import Rows
from quire.replicas.wire import Message
from quire.session.pooling import text_options

if TYPE_CHECKING:
    from quire.outputs import RequestOutput
    from quire.pooling.reading import Made
    from quire.session.session import Session


class EmbeddingEngine(JobEngine):
    """Embeds rows with a session. Parameters that all rows share are checked before any row."""

    def __init__(self, session: Session, opening: Message, board: Board, files: Message) -> None:
        super().__init__(session, board, files)
        self._pooling = session.pooling
        given = dict(opening.get("settings", ({},))[0])
        params = pooling_params(given)
        self._pooling.check("embed")
        [self._wanted] = self._pooling.asked(params, "embed", 1)
        self._options = text_options(
            self._pooling, None, params.truncate_prompt_tokens, given.get("prompt_name")
        )
        self._pooling.reader.check(self._options)

    def _requests(self, rows: Rows) -> list[Made]:
        first = self._session.intake.take_numbers(len(rows))
        texts = [result_or_error(lambda row=row: self._text(row)) for row in rows]  # type: ignore[misc]
        return skipping_errors(
            texts, lambda good: all_or_one_by_one([*enumerate(good, first)], self._read)
        )

    def _text(self, row: Message) -> str:
        text: str = row["prompt"]
        if self._options.encoding.truncate_prompt_tokens is None:
            model = self._session.model
            refuse_far_too_long(text, model.tokenizer, model.config.max_model_len)
        return text

    def _read(self, numbered: Sequence[tuple[int, str]]) -> list[Made]:
        """A request for each (number, text); the numbers are consecutive."""
        texts, first = [text for _, text in numbered], numbered[0][0] if numbered else 0
        return self._pooling.reader.read(texts, "embed", self._options, first_number=first)

    def _answer(self, row: int, output: RequestOutput) -> Message:
        values = self._pooling.pooled(output, self._wanted)
        return answered(row, output, ["" if values is None else encode_vector(values)])
