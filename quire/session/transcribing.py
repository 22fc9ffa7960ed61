"""Transcribes a piece of sound in several requests: first one for its language and whether anyone
speaks; then one for the text, again at a higher temperature if the text is not plausible, and again
from where the model stopped before the end of the piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.errors import NotSupported
from quire.inputs.media.pieces import SoundPiece
from quire.inputs.transcript_params import Wanted, compression_ratio
from quire.inputs.transcripts import Segment, TranscriptTokens
from quire.sampling.timestamps import TimestampRule
from quire.sampling_params import SamplingParams
from quire.session.making import suppressed_ids

if TYPE_CHECKING:
    from quire.outputs import CompletionOutput
    from quire.session.session import Session

_LEAST_REST = 1 / 30  # of a piece; a shorter rest is left out


@dataclass(frozen=True, slots=True)
class Hearing:
    """The state of transcribing the piece that begins at `start`: what its opening showed, the
    current temperature, and the segments found before the part that is heard now."""

    wanted: Wanted
    start: float
    piece: SoundPiece
    seed: int | None
    earlier: tuple[int, ...]  # tokens of the text before the sound
    is_opened: bool
    language: str | None
    no_speech: float = 0.0
    attempt: int = 0
    hottest: int = 0  # the highest attempt that earlier segments needed
    segments: tuple[Segment, ...] = ()
    num_tokens: int = 0
    is_over: bool = False

    @property
    def text(self) -> str:
        return _text(self.segments)

    @property
    def temperature(self) -> float:
        """The highest temperature that an answer was drawn at."""
        return self.wanted.temperatures[max(self.hottest, self.attempt)]

    def after(self, num_tokens: int, segments: Sequence[Segment] = ()) -> Hearing:
        """The state after an answer that was accepted."""
        said = (*self.segments, *segments)
        return replace(self, segments=said, num_tokens=self.num_tokens + num_tokens)

    def going_on(self, rest: SoundPiece, *, is_opened: bool) -> Hearing:
        """The state before hearing the rest of the piece, in the same language."""
        hottest = max(self.hottest, self.attempt)
        return replace(self, piece=rest, is_opened=is_opened, attempt=0, hottest=hottest)


class Transcriber:
    """Call `begin` for a piece, send the engine what `asked` returns, and give the answer to
    `after`, until the Hearing is over."""

    def __init__(self, session: Session) -> None:
        model = session.model
        if session.sound_rate is None or model.tokenizer is None:
            raise NotSupported(
                "this model transcribes nothing: that takes one whose decoder attends to sounds."
            )
        self._tokenizer, self._rate = model.tokenizer, session.sound_rate
        self._children = session.media.children
        self._tokens = TranscriptTokens.of(model.tokenizer, model.generation_config)
        self._most_earlier = model.config.max_model_len // 2 - 1
        never = *suppressed_ids(model)[0], self._tokens.no_times
        self._rule = _rule(self._tokens, never, model.generation_config)
        self._openings = {
            asks: self._opening_params(asks=asks) for asks in {False, bool(self._tokens.languages)}
        }

    def check(self, wanted: Wanted) -> None:
        """Raise InvalidOption for options that the model does not support."""
        self._tokens.check(wanted.language, wanted.task)
        self._earlier(wanted)

    def is_asked_once(self, wanted: Wanted) -> bool:
        """Whether one request is enough."""
        once = len(wanted.temperatures) == 1 and not wanted.timestamps
        return once and self._opening(wanted.language) is None

    def begin(self, wanted: Wanted, sound: Mapping[str, Any], seed: int | None) -> Hearing:
        """Begin with a piece of a file: {"path", "stamp", "start", "end"}."""
        place = Path(sound["path"]), sound["start"], sound["end"], sound["stamp"]
        known = None if self._tokens.needs_language(wanted.language) else wanted.language or "en"
        return Hearing(
            wanted,
            sound["start"],
            SoundPiece(*place, self._rate, self._children),
            seed,
            self._earlier(wanted),
            self._opening(wanted.language) is None,
            known,
        )

    def asked(self, hearing: Hearing) -> tuple[dict[str, Any], SamplingParams]:
        """The next prompt of a piece, and its parameters: for its opening, or for the text."""
        wanted = hearing.wanted
        ids, params = [self._tokens.start], self._opening(wanted.language)
        if hearing.is_opened or params is None:
            asked = self._tokens.prompt(hearing.language, wanted.task, times=wanted.timestamps)
            ids, params = [*hearing.earlier, *asked], self._sampling(hearing)
        return {"prompt_token_ids": ids, "multi_modal_data": {"audio": [hearing.piece]}}, params

    def after(self, hearing: Hearing, answer: CompletionOutput) -> Hearing:
        """The state after the answer to what was asked."""
        if not hearing.is_opened:
            return self._opened(hearing, answer)
        written, doubts = answer.token_ids, hearing.wanted.doubts
        logprob = (answer.cumulative_logprob or 0.0) / max(len(written), 1)
        said = self._segments(hearing, written, logprob)
        if doubts.is_silence(logprob, hearing.no_speech):
            return replace(hearing.after(len(written)), is_over=True)
        is_last = hearing.attempt + 1 == len(hearing.wanted.temperatures)
        if doubts.hold(_text(said), logprob) and not is_last:
            return replace(hearing, attempt=hearing.attempt + 1)
        rest, stop = self._rest(hearing, written)
        then = hearing.after(len(written), self._segments(hearing, written[:stop], logprob))
        if rest is None:
            return replace(then, is_over=True)
        return then.going_on(rest, is_opened=self._opening(hearing.wanted.language) is None)

    def _earlier(self, wanted: Wanted) -> tuple[int, ...]:
        if not wanted.initial_prompt:
            return ()
        text = wanted.initial_prompt
        return tuple(self._tokens.earlier(text, self._tokenizer, self._most_earlier))

    def _sampling(self, hearing: Hearing) -> SamplingParams:
        return SamplingParams(
            temperature=hearing.wanted.temperatures[hearing.attempt],
            seed=hearing.seed,
            max_tokens=None,
            logprobs=0,
            logits_processors=[self._rule] if hearing.wanted.timestamps else None,
        )

    def _opening(self, language: str | None) -> SamplingParams | None:
        return self._openings[self._tokens.needs_language(language)]

    def _opening_params(self, *, asks: bool) -> SamplingParams | None:
        """Parameters for the opening of an answer, which shows whether anyone speaks and, where
        the caller did not say it, the language. None if neither is needed."""
        tokens = self._tokens
        if not asks and tokens.no_speech is None:
            return None
        return SamplingParams(
            temperature=0.0,
            max_tokens=1,
            allowed_token_ids=[*tokens.languages.values()] if asks else None,
            logprob_token_ids=None if tokens.no_speech is None else [tokens.no_speech],
        )

    def _opened(self, hearing: Hearing, answer: CompletionOutput) -> Hearing:
        """The state with what the opening showed."""
        language, no_speech = hearing.language, 0.0
        if language is None:
            language = self._tokens.language_of(answer.token_ids[0])
        if self._tokens.no_speech is not None and answer.logprobs:
            no_speech = exp(answer.logprobs[0][self._tokens.no_speech].logprob)
        return replace(hearing, is_opened=True, language=language, no_speech=no_speech)

    def _segments(self, hearing: Hearing, written: Sequence[int], logprob: float) -> list[Segment]:
        """The segments of an answer, in seconds from the beginning of the piece."""
        piece = hearing.piece
        seconds = round(piece.end - piece.start, 4)
        found = self._tokens.segments(written, seconds, self._tokenizer.decode)
        temperature = hearing.wanted.temperatures[hearing.attempt]
        ratio = compression_ratio(_text(found))
        return [
            replace(
                one.later(piece.start - hearing.start),
                temperature=temperature,
                logprob=logprob,
                compression_ratio=ratio,
                no_speech=hearing.no_speech,
            )
            for one in found
        ]

    def _rest(
        self, hearing: Hearing, written: Sequence[int]
    ) -> tuple[SoundPiece | None, int | None]:
        """The rest of a piece if the model stopped early, and how many of the tokens it wrote
        belong to segments that have ended."""
        stop = self._tokens.stopped_at(written) if hearing.wanted.timestamps else None
        if stop is None:
            return None, None
        piece = hearing.piece
        start = round(piece.start + self._tokens.second_of(written[stop]), 4)
        if piece.end - start < _LEAST_REST * (piece.end - hearing.start):
            return None, None
        return replace(piece, start=start), stop + 1


def _rule(
    tokens: TranscriptTokens, never: tuple[int, ...], generation: Mapping[str, Any]
) -> TimestampRule:
    most = generation.get("max_initial_timestamp_index")
    most_initial = most if isinstance(most, int) else None
    return TimestampRule(tokens.first_time, tokens.end, never, most_initial)


def _text(segments: Sequence[Segment]) -> str:
    return " ".join(segment.text for segment in segments)
