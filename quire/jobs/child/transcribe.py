"""Rows answered by transcribing: what is said in a piece of a sound, in one request, or in two
where the sound must tell its language first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.errors import NotSupported, QuireError
from quire.inputs.media.pieces import SoundPiece
from quire.inputs.transcripts import TranscriptTokens
from quire.jobs.child.requests import attempt, failed
from quire.jobs.transcripts import transcript_params
from quire.replicas.board import Board
from quire.replicas.child.driving import Asked, Driver, timings_of
from quire.replicas.child.feed import Feed, Rows
from quire.replicas.child.tally import session_facts
from quire.replicas.streams import Send
from quire.replicas.wire import Message
from quire.sampling.timestamps import TimestampRule
from quire.sampling_params import SamplingParams
from quire.session.making import suppressed_ids

if TYPE_CHECKING:
    from quire.outputs import RequestOutput
    from quire.request import Request
    from quire.run import Refused
    from quire.session.session import Session


class TranscriptEngine:
    """Transcribes rows with a session."""

    def __init__(self, session: Session, opening: Message, board: Board, files: Message) -> None:
        model, how = session.model, transcript_params(opening.get("settings", ({},))[0])
        if session.sound_rate is None or model.tokenizer is None:
            raise NotSupported(
                "this model transcribes nothing: quire transcribe takes one that attends to sounds."
            )
        self._session, self._files, self._tokenizer = session, files, model.tokenizer
        self._rate: int = session.sound_rate
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
        self._driver = Driver(session, board)
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

    def facts(self) -> Message:
        return {**session_facts(self._session), "chat": False, **self._files}

    def run(self, feed: Feed, send: Send) -> None:
        self._driver.run(feed, send, lambda rows: self._asked(rows, send), self._result)

    def plan(self, rows: Rows) -> str:
        raise NotSupported("--plan is for jobs that generate text; run it with --limit instead.")

    def _asked(self, rows: Rows, send: Send) -> Iterator[Asked]:
        """One window of these rows; those that cannot be asked are answered at once."""
        asked: Asked = []
        for row in rows:
            number, about = row["row"], row["sound"]
            place = Path(about["path"]), about["start"], about["end"], about["stamp"]
            self._pieces[number] = SoundPiece(*place, self._rate, self._children)
            if not self._tokens.needs_language(self._language):
                self._languages[number] = self._language or "en"
            request = self._request(number)
            if isinstance(request, QuireError):
                send(self._failed(number, request))
            else:
                asked.append((number, request))
        yield asked

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

    def _result(self, row: int, output: RequestOutput) -> Message | None:
        """None where the row goes on with another request."""
        if output.error is not None:
            return self._failed(row, output.error)
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
        return {
            "kind": "result",
            "row": row,
            "outputs": [" ".join(segment.text for segment in found)],
            "finish_reasons": [answer.finish_reason],
            "prompt_tokens": output.num_prompt_tokens,
            "output_tokens": len(answer.token_ids),
            "timings": timings_of(output),
            "transcript": {
                "language": language,
                "segments": [[one.start, one.end, one.text] for one in found],
            },
        }

    def _failed(self, row: int, error: QuireError) -> Message:
        self._pieces.pop(row, None)
        self._languages.pop(row, None)
        return failed(row, error)
