"""Rows answered by transcribing: what is said in a piece of a sound, in one request, or in two
where the sound must tell its language first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.errors import NotSupported, QuireError
from quire.inputs.media.pieces import SoundPiece
from quire.inputs.transcripts import TranscriptTokens
from quire.jobs.child.job_engine import JobEngine, answered
from quire.jobs.child.requests import attempt
from quire.jobs.transcripts import transcript_params
from quire.replicas.board import Board
from quire.replicas.child.feed import Rows
from quire.replicas.wire import Message
from quire.sampling.timestamps import TimestampRule
from quire.sampling_params import SamplingParams
from quire.session.making import suppressed_ids

if TYPE_CHECKING:
    from quire.outputs import RequestOutput
    from quire.request import Request
    from quire.run import Refused
    from quire.session.session import Session


class TranscriptEngine(JobEngine):
    """Transcribes rows with a session."""

    def __init__(self, session: Session, opening: Message, board: Board, files: Message) -> None:
        model, how = session.model, transcript_params(opening.get("settings", ({},))[0])
        if session.sound_rate is None or model.tokenizer is None:
            raise NotSupported(
                "this model transcribes nothing: quire transcribe takes one that attends to sounds."
            )
        super().__init__(session, board, files)
        self._tokenizer, self._rate = model.tokenizer, session.sound_rate
        self._children = session.media.children
        self._tokens = TranscriptTokens.of(model.tokenizer, model.generation_config)
        self._language, self._task = how["language"], how["task"]
        self._tokens.check(self._language, self._task)
        self._times: bool = how["timestamps"]
        rule = self._rule(model.generation_config) if self._times else None
        self._params = SamplingParams(
            temperature=0.0, max_tokens=None, logits_processors=None if rule is None else [rule]
        )
        languages = [*self._tokens.languages.values()] or None
        self._naming = SamplingParams(temperature=0.0, max_tokens=1, allowed_token_ids=languages)
        self._pieces: dict[int, SoundPiece] = {}  # of rows that are being transcribed
        self._languages: dict[int, str | None] = {}  # theirs, once it is known
        self._driver.rows_go_on = self._tokens.needs_language(self._language)

    def _rule(self, generation: Any) -> TimestampRule:
        never = *suppressed_ids(self._session.model)[0], self._tokens.no_times
        most = generation.get("max_initial_timestamp_index")
        return TimestampRule(
            self._tokens.first_time,
            self._tokens.end,
            never,
            most if isinstance(most, int) else None,
        )

    def _requests(self, rows: Rows) -> list[Request | Refused | QuireError]:
        for row in rows:
            number, about = row["row"], row["sound"]
            place = Path(about["path"]), about["start"], about["end"], about["stamp"]
            self._pieces[number] = SoundPiece(*place, self._rate, self._children)
            if not self._tokens.needs_language(self._language):
                self._languages[number] = self._language or "en"
        return [self._request(row["row"]) for row in rows]

    def _request(self, row: int) -> Request | Refused | QuireError:
        """The next of a row: which language it is in, or what is said in it."""
        ids, params = [self._tokens.start], self._naming
        if row in self._languages:
            ids = self._tokens.prompt(self._languages[row], self._task, times=self._times)
            params = self._params
        sound = {"audio": [self._pieces[row]]}
        prompt = {"prompt_token_ids": ids, "multi_modal_data": sound}
        made = attempt(lambda: self._session.intake.window([prompt], [params], None))
        return made if isinstance(made, QuireError) else made[0]

    def _answer(self, row: int, output: RequestOutput) -> Message | None:
        [answer] = output.outputs
        if row not in self._languages:
            self._languages[row] = self._tokens.language_of(answer.token_ids[0])
            request = self._request(row)
            if isinstance(request, QuireError):
                return self._failed(row, request)
            self._driver.follow.append((row, request))
            return None
        piece, language = self._pieces.pop(row), self._languages.pop(row)
        seconds = round(piece.end - piece.start, 4)
        found = self._tokens.segments(answer.token_ids, seconds, self._tokenizer.decode)
        return answered(
            row,
            output,
            [" ".join(segment.text for segment in found)],
            finish_reasons=[answer.finish_reason],
            output_tokens=len(answer.token_ids),
            transcript={
                "language": language,
                "segments": [[one.start, one.end, one.text] for one in found],
            },
        )

    def _failed(self, row: int, error: QuireError) -> Message:
        self._pieces.pop(row, None)
        self._languages.pop(row, None)
        return super()._failed(row, error)
