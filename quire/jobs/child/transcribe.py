"""Rows answered by transcribing: a row is a piece of a sound, and may take several requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.errors import QuireError
from quire.inputs.transcript_params import transcript_params, wanted_of
from quire.jobs.child.job_engine import JobEngine, answered
from quire.jobs.child.requests import result_or_error
from quire.replicas.board import Board
from quire.replicas.child.feed import Rows
from quire.replicas.wire import Message
from quire.session.transcribing import Hearing, Transcriber

if TYPE_CHECKING:
    from quire.outputs import RequestOutput
    from quire.request import Request
    from quire.run import Refused
    from quire.session.session import Session


class TranscriptEngine(JobEngine):
    def __init__(self, session: Session, opening: Message, board: Board, files: Message) -> None:
        self._wanted = wanted_of(transcript_params(opening.get("settings", ({},))[0]))
        self._transcriber = Transcriber(session)
        self._transcriber.check(self._wanted)
        super().__init__(session, board, files)
        self._pieces: dict[int, Hearing] = {}  # row number -> its piece, while it is transcribed
        self._driver.rows_go_on = not self._transcriber.is_asked_once(self._wanted)

    def _requests(self, rows: Rows) -> list[Request | Refused | QuireError]:
        for row in rows:
            begun = self._transcriber.begin(self._wanted, row["sound"], row.get("seed"))
            self._pieces[row["row"]] = begun
        return [self._request(row["row"]) for row in rows]

    def _request(self, row: int) -> Request | Refused | QuireError:
        prompt, params = self._transcriber.asked(self._pieces[row])
        made = result_or_error(lambda: self._session.intake.window([prompt], [params], None))
        return made if isinstance(made, QuireError) else made[0]

    def _answer(self, row: int, output: RequestOutput) -> Message | None:
        [answer] = output.outputs
        then = self._pieces[row] = self._transcriber.after(self._pieces[row], answer)
        if then.is_over:
            return self._heard(row, then, output)
        request = self._request(row)
        if isinstance(request, QuireError):
            return self._failed(row, request)
        self._driver.follow.append((row, request))
        return None

    def _heard(self, row: int, hearing: Hearing, output: RequestOutput) -> Message:
        """The result of a row whose piece was transcribed to its end."""
        del self._pieces[row]
        segments = [[one.start, one.end, one.text] for one in hearing.segments]
        return answered(
            row,
            output,
            [hearing.text],
            finish_reasons=[output.outputs[0].finish_reason],
            output_tokens=hearing.num_tokens,
            transcript={
                "language": hearing.language,
                "segments": segments,
                "temperature": hearing.temperature,
            },
        )

    def _failed(self, row: int, error: QuireError) -> Message:
        self._pieces.pop(row, None)
        return super()._failed(row, error)
