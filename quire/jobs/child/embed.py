"""Rows answered by embedding: a vector for each row's text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from quire.errors import NotSupported, QuireError
from quire.jobs.child.requests import attempt, failed, refuse_far_too_long
from quire.jobs.vectors import encode_vector, pooling_params
from quire.replicas.board import Board
from quire.replicas.child.driving import Asked, Driver, timings_of
from quire.replicas.child.feed import Feed, Rows
from quire.replicas.child.tally import session_facts
from quire.replicas.streams import Send
from quire.replicas.wire import Message
from quire.session.pooling import text_options

if TYPE_CHECKING:
    from quire.outputs import RequestOutput
    from quire.pooling.reading import Made
    from quire.session.session import Session


class EmbeddingEngine:
    """Embeds rows with a session. What every row shares is checked before the first is read."""

    def __init__(self, session: Session, opening: Message, board: Board, files: Message) -> None:
        self._session, self._files, self._pooling = session, files, session.pooling
        given = dict(opening.get("settings", ({},))[0])
        params = pooling_params(given)
        self._pooling.check("embed")
        [self._wanted] = self._pooling.asked(params, "embed", 1)
        self._options = text_options(
            self._pooling, None, params.truncate_prompt_tokens, given.get("prompt_name")
        )
        self._pooling.reader.most(self._options)
        self._driver = Driver(session, board)

    def facts(self) -> Message:
        return {**session_facts(self._session), "chat": False, **self._files}

    def run(self, feed: Feed, send: Send) -> None:
        self._driver.run(feed, send, lambda rows: self._asked(rows, send), self._result)

    def plan(self, rows: Rows) -> str:
        raise NotSupported("--plan is for jobs that generate text; run it with --limit instead.")

    def _asked(self, rows: Rows, send: Send) -> Iterator[Asked]:
        """One window of these rows; those that cannot be asked are answered at once."""
        first = self._session.intake.take_numbers(len(rows))
        asked: Asked = []
        for row, made in zip(rows, self._made(rows, first), strict=True):
            if isinstance(made, QuireError):
                send(failed(row["row"], made))
            else:
                asked.append((row["row"], made))
        yield asked

    def _made(self, rows: Rows, first: int) -> list[Made]:
        """The request of each row, or what is wrong with it."""
        texts = [attempt(lambda row=row: self._text(row)) for row in rows]  # type: ignore[misc]
        good = [text for text in texts if not isinstance(text, QuireError)]
        made = iter(self._read(good, first))
        return [text if isinstance(text, QuireError) else next(made) for text in texts]

    def _text(self, row: Message) -> str:
        text: str = row["prompt"]
        if self._options.encoding.truncate_prompt_tokens is None:
            model = self._session.model
            refuse_far_too_long(text, model.tokenizer, model.config.max_model_len)
        return text

    def _read(self, texts: list[str], first: int) -> list[Made]:
        """If all fail together, one by one, to find whose fault it is."""
        states = self._pooling.spec.states("embed")
        read = self._pooling.reader.read
        found = attempt(lambda: read(texts, states, self._options, first_number=first))
        if not isinstance(found, QuireError):
            return found
        if len(texts) == 1:
            return [found]
        return [one for i, text in enumerate(texts) for one in self._read([text], first + i)]

    def _result(self, row: int, output: RequestOutput) -> Message:
        if output.error is not None:
            return failed(row, output.error)
        values = self._pooling.pooled(output, self._wanted)
        return {
            "kind": "result",
            "row": row,
            "outputs": ["" if values is None else encode_vector(values)],
            "finish_reasons": ["stop"],
            "prompt_tokens": output.num_prompt_tokens,
            "output_tokens": 0,
            "timings": timings_of(output),
        }
