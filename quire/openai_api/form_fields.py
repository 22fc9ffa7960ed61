"""The fields of forms, beside their file: each is honoured, moot or refused, as in fields.py."""

from __future__ import annotations

from collections.abc import Mapping

from quire.openai_api.field import Body, body_of, table

TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
_BOTH_FORMS = (TRANSCRIPTIONS, TRANSLATIONS)
_FORM_FIELDS = [
    *table(
        "honoured",
        _BOTH_FORMS,
        ("model", "text", "One of the served names; any other is 404 `model_not_found`."),
        ("prompt", "text", "Text said before; names and words are then spelled as in it."),
        ("response_format", "text", "json, text, srt, vtt, verbose_json."),
        ("temperature", "a number", "By default 0, and higher if an answer looks wrong."),
        ("language", "text", "The code of the spoken language; by default it is detected."),
        ("seed", "a whole number", "The same seed gives the same text above temperature 0."),
        (
            "stream",
            "true or false",
            "Events as in OpenAI's API, for each piece of at most 30 s; only json and text.",
        ),
    ),
    *table(
        "honoured",
        (TRANSCRIPTIONS,),
        ("timestamp_granularities[]", "a list", "`segment`, in verbose_json; words have no times."),
    ),
    *table(
        "moot",
        _BOTH_FORMS,
        ("chunking_strategy", "text", "Long recordings are cut where they are quiet."),
        ("user", "text", "Requests are counted by API key."),
    ),
    *table(
        "refused",
        (TRANSCRIPTIONS,),
        ("include[]", "a list", "Leave it out; verbose_json has the mean of logprobs."),
        ("known_speaker_names[]", "a list", "Speakers are not distinguished."),
        ("known_speaker_references[]", "a list", "Speakers are not distinguished."),
    ),
]

FORMS: Mapping[str, Body] = {
    endpoint: body_of(field for field in _FORM_FIELDS if endpoint in field.endpoints)
    for endpoint in _BOTH_FORMS
}
