"""Rows answered by transcribing: how a piece of a sound begins (its language, and whether anyone
speaks), then what is said in it, again at a higher temperature where that is not believed, and
again from where the model stopped before the piece ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.errors import NotSupported, QuireError
from quire.inputs.media.pieces import SoundPiece
from quire.inputs.transcripts import Segment, TranscriptTokens
from quire.jobs.child.job_engine import JobEngine, answered
from quire.jobs.child.requests import attempt
from quire.jobs.transcripts import doubts_of, transcript_params
from quire.replicas.board import Board
from quire.replicas.child.feed import Rows
from quire.replicas.wire import Message
from quire.sampling.timestamps import TimestampRule
from quire.sampling_params import SamplingParams
from quire.session.making import suppressed_ids

if TYPE_CHECKING:
    from quire.outputs import CompletionOutput, RequestOutput
    from quire.request import Request
    from quire.run import Refused
    from quire.session.session import Session

_LEAST_REST = 1 / 30  # of a piece; less is not heard by itself


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
        self._earlier: list[int] = []
        if how["initial_prompt"]:
            most = model.config.max_model_len // 2 - 1
            self._earlier = self._tokens.earlier(how["initial_prompt"], model.tokenizer, most)
        self._doubts = doubts_of(how)
        rules: list[Callable[..., Any]] = [self._rule(model.generation_config)]
        self._rules = rules if self._times else None
        self._temperatures: list[float] = how["temperature"]
        self._opening = self._opening_params()
        self._pieces: dict[int, _Hearing] = {}  # of rows that are being transcribed
        goes_on = self._opening is not None or len(self._temperatures) > 1 or self._times
        self._driver.rows_go_on = goes_on

    def _sampling(self, hearing: _Hearing) -> SamplingParams:
        return SamplingParams(
            temperature=self._temperatures[hearing.attempt],
            seed=hearing.seed,
            max_tokens=None,
            logprobs=0,
            logits_processors=self._rules,
        )

    def _opening_params(self) -> SamplingParams | None:
        """For what the beginning of an answer tells: the language, and whether anyone speaks."""
        tokens = self._tokens
        asks = self._language is None and bool(tokens.languages)
        if not asks and tokens.no_speech is None:
            return None
        return SamplingParams(
            temperature=0.0,
            max_tokens=1,
            allowed_token_ids=[*tokens.languages.values()] if asks else None,
            logprob_token_ids=None if tokens.no_speech is None else [tokens.no_speech],
        )

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
            piece = SoundPiece(*place, self._rate, self._children)
            known = None if self._tokens.needs_language(self._language) else self._language or "en"
            self._pieces[number] = _Hearing(
                about["start"], piece, row.get("seed"), self._opening is None, known
            )
        return [self._request(row["row"]) for row in rows]

    def _request(self, row: int) -> Request | Refused | QuireError:
        """The next of a row: how it begins, or what is said in it."""
        hearing = self._pieces[row]
        ids, params = [self._tokens.start], self._opening
        if hearing.is_opened or params is None:
            asked = self._tokens.prompt(hearing.language, self._task, times=self._times)
            ids, params = [*self._earlier, *asked], self._sampling(hearing)
        prompt = {"prompt_token_ids": ids, "multi_modal_data": {"audio": [hearing.piece]}}
        made = attempt(lambda: self._session.intake.window([prompt], [params], None))
        return made if isinstance(made, QuireError) else made[0]

    def _answer(self, row: int, output: RequestOutput) -> Message | None:
        [answer] = output.outputs
        hearing = self._pieces[row]
        if not hearing.is_opened:
            return self._go_on(row, self._opened(hearing, answer))
        written = answer.token_ids
        text = _text(self._segments(hearing, written))
        logprob = (answer.cumulative_logprob or 0.0) / max(len(written), 1)
        if self._doubts.is_silence(logprob, hearing.no_speech):
            return self._heard(row, hearing.after(len(written)), output)
        if self._doubts.hold(text, logprob) and hearing.attempt + 1 < len(self._temperatures):
            return self._go_on(row, replace(hearing, attempt=hearing.attempt + 1))
        rest, stop = self._rest(hearing, written)
        then = hearing.after(len(written), self._segments(hearing, written[:stop]))
        if rest is None:
            return self._heard(row, then, output)
        return self._go_on(row, then.going_on(rest, is_opened=self._opening is None))

    def _segments(self, hearing: _Hearing, written: Sequence[int]) -> list[Segment]:
        """From the beginning of the row's piece on."""
        piece = hearing.piece
        seconds = round(piece.end - piece.start, 4)
        found = self._tokens.segments(written, seconds, self._tokenizer.decode)
        return [segment.later(piece.start - hearing.start) for segment in found]

    def _rest(
        self, hearing: _Hearing, written: Sequence[int]
    ) -> tuple[SoundPiece | None, int | None]:
        """What is still to be heard of a piece where the model stopped early, and how much of what
        it wrote stands: texts that have ended."""
        stop = self._tokens.stopped_at(written) if self._times else None
        if stop is None:
            return None, None
        piece = hearing.piece
        start = round(piece.start + self._tokens.second_of(written[stop]), 4)
        if piece.end - start < _LEAST_REST * (piece.end - hearing.start):
            return None, None
        return replace(piece, start=start), stop + 1

    def _heard(self, row: int, hearing: _Hearing, output: RequestOutput) -> Message:
        """The result of a row that was heard to its end."""
        del self._pieces[row]
        segments = [[one.start, one.end, one.text] for one in hearing.segments]
        return answered(
            row,
            output,
            [_text(hearing.segments)],
            finish_reasons=[output.outputs[0].finish_reason],
            output_tokens=hearing.num_tokens,
            transcript={
                "language": hearing.language,
                "segments": segments,
                "temperature": self._temperatures[max(hearing.hottest, hearing.attempt)],
            },
        )

    def _opened(self, hearing: _Hearing, answer: CompletionOutput) -> _Hearing:
        """The same with what its beginning told."""
        language, no_speech = hearing.language, 0.0
        if language is None:
            language = self._tokens.language_of(answer.token_ids[0])
        if self._tokens.no_speech is not None and answer.logprobs:
            no_speech = exp(answer.logprobs[0][self._tokens.no_speech].logprob)
        return replace(hearing, is_opened=True, language=language, no_speech=no_speech)

    def _go_on(self, row: int, hearing: _Hearing) -> Message | None:
        """With the next request of a row."""
        self._pieces[row] = hearing
        request = self._request(row)
        if isinstance(request, QuireError):
            return self._failed(row, request)
        self._driver.follow.append((row, request))
        return None

    def _failed(self, row: int, error: QuireError) -> Message:
        self._pieces.pop(row, None)
        return super()._failed(row, error)


@dataclass(frozen=True, slots=True)
class _Hearing:
    """How far a row is, whose piece begins at `start`: what its beginning told, once it did, which
    temperature it is at, and what was said before the seconds that are heard now."""

    start: float
    piece: SoundPiece
    seed: int | None
    is_opened: bool
    language: str | None
    no_speech: float = 0.0
    attempt: int = 0
    hottest: int = 0  # of the attempts at what was said before
    segments: tuple[Segment, ...] = ()
    num_tokens: int = 0

    def after(self, num_tokens: int, segments: Sequence[Segment] = ()) -> _Hearing:
        """With an answer that stands."""
        said = (*self.segments, *segments)
        return replace(self, segments=said, num_tokens=self.num_tokens + num_tokens)

    def going_on(self, rest: SoundPiece, *, is_opened: bool) -> _Hearing:
        """With what is left of the piece, in the language that it began with."""
        hottest = max(self.hottest, self.attempt)
        return replace(self, piece=rest, is_opened=is_opened, attempt=0, hottest=hottest)


def _text(segments: Sequence[Segment]) -> str:
    return " ".join(segment.text for segment in segments)
