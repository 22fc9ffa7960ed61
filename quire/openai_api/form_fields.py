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
        ("prompt", "text", "What was said before: names and words as they are to be written."),
        ("response_format", "text", "json, text, srt, vtt, verbose_json."),
        ("temperature", "a number", "0, and higher where an answer is doubted; else this one."),
        ("language", "text", "The sound's, as a code; without it the sound tells."),
        ("seed", "a whole number", "The same seed gives the same text above temperature 0."),
        (
            "stream",
            "true or false",
            "Events as OpenAI has them, for each piece of at most 30 seconds; json or text alone.",
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
        ("chunking_strategy", "text", "Long sounds are cut where it is quiet."),
        ("user", "text", "Accounts are the key's."),
    ),
    *table(
        "refused",
        (TRANSCRIPTIONS,),
        ("include[]", "a list", "Leave it out; verbose_json has the mean of logprobs."),
        ("known_speaker_names[]", "a list", "Speakers are not told apart."),
        ("known_speaker_references[]", "a list", "Speakers are not told apart."),
    ),
]

FORMS: Mapping[str, Body] = {
    endpoint: body_of(field for field in _FORM_FIELDS if endpoint in field.endpoints)
    for endpoint in _BOTH_FORMS
}
