"""Forms that ask for the text of a sound, and the bodies that answer them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from quire.errors import InvalidOption
from quire.inputs.transcript_params import TASKS, transcript_params
from quire.inputs.transcripts import Segment, Transcript
from quire.openai_api.asks import Row, check_model, name_model
from quire.openai_api.errors import bad, not_supported
from quire.openai_api.field import Field, checked_fields
from quire.openai_api.form_fields import FORMS, TRANSLATIONS
from quire.openai_api.shapes import (
    SoundUsage,
    TranscribedSegment,
    Transcription,
    VerboseTranscription,
)
from quire.params.rules import MAX_SEED, show

TIMED, PLAIN = ("srt", "vtt", "verbose_json"), ("json", "text")
_GRANULARITIES = "timestamp_granularities[]"
_TRUE, _FALSE = ("true", "True", "1"), ("false", "False", "0")
FIELDS = {"initial_prompt": "prompt"}  # parameter -> its other name in a form
_ASKED = {"language": "language", "initial_prompt": "prompt", "temperature": "temperature"}


@dataclass(frozen=True, slots=True)
class TranscriptAsked:
    """A form that was read; `params` are those of transcript_params."""

    model: str | None
    params: Mapping[str, Any]
    format: str = "json"
    stream: bool = False
    seed: int | None = None

    def rows(self, pieces: Iterable[Mapping[str, Any]], names: Collection[str]) -> list[Row]:
        """The row for the engine for each piece of the sound."""
        common: Row = {"hear": self.params, "params": {}}
        if self.seed is not None:
            common["seed"] = self.seed
        rows: list[Row] = [{**common, "sound": dict(piece)} for piece in pieces]
        name_model(rows, self.model, names)
        return rows


def read_transcript_form(
    endpoint: str,
    fields: Mapping[str, str],
    lists: Mapping[str, list[str]],
    names: Collection[str],
) -> TranscriptAsked:
    """Read a form; raises ApiError."""
    known = FORMS[endpoint]
    values: dict[str, Any] = {name: _value(known[name], text) for name, text in fields.items()}
    given = checked_fields(known, {**values, **lists})
    check_model(given.get("model"), names)
    format, stream = given.get("response_format", "json"), bool(given.get("stream"))
    if format not in (*PLAIN, *TIMED):
        known_formats = ", ".join((*PLAIN, *TIMED))
        raise bad(
            f"response_format is one of {known_formats}, not {show(format)}",
            param="response_format",
        )
    if stream and format not in PLAIN:
        raise not_supported(
            f"a stream is of text alone: leave response_format={format} out, or stream",
            param="stream",
        )
    _check_granularities(given.get(_GRANULARITIES, ()), format)
    seed = given.get("seed")
    if seed is not None and not 0 <= seed <= MAX_SEED:
        raise bad(f"seed is from 0 to {MAX_SEED}, not {seed}", param="seed")
    task = TASKS[endpoint == TRANSLATIONS]
    asked: dict[str, Any] = {"task": task, "timestamps": format in TIMED}
    asked |= {name: given[field] for name, field in _ASKED.items() if given.get(field)}
    try:
        params = transcript_params(asked)
    except InvalidOption as error:
        raise bad(str(error), param=FIELDS.get(error.parameter or "", error.parameter)) from None
    return TranscriptAsked(given.get("model"), params, format, stream, seed)


def _value(field: Field, text: str) -> Any:
    """The value of a form's field, converted to its type; other text is refused by the check."""
    if field.value == "true or false" and text in (*_TRUE, *_FALSE):
        return text in _TRUE
    if field.value in ("a number", "a whole number"):
        try:
            return int(text) if field.value == "a whole number" else float(text)
        except ValueError:
            return text
    return text


def _check_granularities(wanted: Sequence[str], format: str) -> None:
    for one in wanted:
        if one == "word":
            raise not_supported(
                f"{_GRANULARITIES}: words have no times here; ask for segment",
                param=_GRANULARITIES,
            )
        if one != "segment":
            raise bad(f"{_GRANULARITIES} are segment, not {show(one)}", param=_GRANULARITIES)
    if wanted and format != "verbose_json":
        raise bad(
            f"{_GRANULARITIES} needs response_format to be verbose_json", param=_GRANULARITIES
        )


def usage_of(made: Transcript) -> SoundUsage:
    return {"type": "duration", "seconds": ceil(made.seconds)}


def transcription(made: Transcript) -> Transcription:
    return {"text": made.text, "usage": usage_of(made)}


def verbose_transcription(made: Transcript, asked: TranscriptAsked) -> VerboseTranscription:
    return {
        "task": asked.params["task"],
        "language": made.language or "en",
        "duration": round(made.seconds, 2),
        "text": made.text,
        "segments": [_segment(i, one) for i, one in enumerate(made.segments)],
        "usage": usage_of(made),
    }


def _segment(number: int, one: Segment) -> TranscribedSegment:
    return {
        "id": number,
        "seek": round(one.start * 100),  # in hundredths of a second
        "start": one.start,
        "end": one.end,
        "text": one.text,
        "tokens": list(one.token_ids),
        "temperature": one.temperature,
        "avg_logprob": one.logprob,
        "compression_ratio": one.compression_ratio,
        "no_speech_prob": one.no_speech,
    }


def text_delta(text: str) -> dict[str, Any]:
    return {"type": "transcript.text.delta", "delta": text}


def text_done(made: Transcript) -> dict[str, Any]:
    return {"type": "transcript.text.done", "text": made.text}
