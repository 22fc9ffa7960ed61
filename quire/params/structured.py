"""Parameters that constrain the text itself: StructuredOutputsParams and its older form, an
engine's settings for all of them, and RepetitionDetectionParams. They are checked when made. Knows
nothing of grammars."""

from __future__ import annotations

import json as json_module
from dataclasses import dataclass, field
from typing import Any

from quire.base.notes import warn
from quire.errors import InvalidParams, InvalidRequest
from quire.params.rules import fail, one_of, show, truth, whole, words

BACKEND = "guidance"  # llguidance's name where scripts name backends
CHOICE_MODES = ("whole", "tokens")
_CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
# What older scripts write after a backend's name, and the flag that it sets.
_BACKEND_WORDS = {
    "disable-any-whitespace": "disable_any_whitespace",
    "no-additional-properties": "disable_additional_properties",
}


@dataclass(frozen=True, slots=True)
class StructuredOutputsConfig:
    """Settings for every structured output of an engine, whatever its parameters say."""

    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False


def read_backend(error: type[InvalidRequest], name: str, value: Any) -> StructuredOutputsConfig:
    """The settings in "xgrammar:disable-any-whitespace"; the backend itself has no effect."""
    if not isinstance(value, str):
        fail(error, name, "the name of a backend", value)
    backend, _, behind = value.partition(":")
    asked = {word for word in behind.split(",") if word not in ("", "no-fallback")}
    if not asked <= set(_BACKEND_WORDS):
        fail(error, name, f"a backend's name, with {', '.join(_BACKEND_WORDS)} behind a :", value)
    if backend not in ("auto", BACKEND):
        warn(f"{name}={show(backend)} has no effect: {BACKEND} follows every grammar.")
    return StructuredOutputsConfig(**dict.fromkeys(map(_BACKEND_WORDS.__getitem__, asked), True))


@dataclass(slots=True)
class StructuredOutputsParams:
    """What the text must look like: exactly one of json, regex, choice, grammar, json_object
    or structural_tag. `json` is a schema: a dict, JSON text or a pydantic model.

    `choice_mode` says how a choice is made: "whole" takes the likeliest as a whole, "tokens"
    draws token after token among those that begin a choice; None takes the whole where it can
    (docs/outputs.md).
    """

    json: Any = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None
    backend: str | None = None
    choice_mode: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        given = [name for name in _CONSTRAINTS if getattr(self, name) is not None]
        if len(given) != 1:
            names = ", ".join(_CONSTRAINTS)
            got = " and ".join(given) or "none"
            raise InvalidParams(
                f"structured outputs take exactly one of {names}, got {got}.",
                parameter="structured_outputs",
                value=given,
            )
        for name in ("regex", "grammar", "structural_tag", "whitespace_pattern"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                fail(InvalidParams, name, "a non-empty string", value)
        if self.choice is not None:
            self.choice = words(InvalidParams, "choice", self.choice)
            if not self.choice:
                fail(InvalidParams, "choice", "a list of at least one string", self.choice)
        if self.choice_mode is not None:
            one_of(InvalidParams, "choice_mode", self.choice_mode, CHOICE_MODES)
            if self.choice is None:
                fail(InvalidParams, "choice_mode", "None without a choice", self.choice_mode)
        if self.json is not None:
            self.json = _schema_of(self.json)
            _check_schema(self.json)
        if self.json_object is not None and self.json_object is not True:
            fail(InvalidParams, "json_object", "True or None", self.json_object)
        for name in ("disable_any_whitespace", "disable_additional_properties"):
            setattr(self, name, truth(InvalidParams, name, getattr(self, name)))
        if self.backend is not None:
            behind = read_backend(InvalidParams, "backend", self.backend)
            self.disable_any_whitespace |= behind.disable_any_whitespace
            self.disable_additional_properties |= behind.disable_additional_properties

    @property
    def kind(self) -> str:
        """Which of the forms is given."""
        return next(name for name in _CONSTRAINTS if getattr(self, name) is not None)

    def all_constraints_none(self) -> bool:
        return all(getattr(self, name) is None for name in _CONSTRAINTS)

    def all_non_structural_tag_constraints_none(self) -> bool:
        return self.structural_tag is not None or self.all_constraints_none()


@dataclass(slots=True)
class GuidedDecodingParams(StructuredOutputsParams):
    """StructuredOutputsParams as older scripts spell it."""

    backend_was_auto: bool = False
    disable_fallback: bool = False

    @classmethod
    def from_optional(
        cls, json: Any = None, backend: str | None = None, **constraints: Any
    ) -> GuidedDecodingParams | None:
        """The params, or None when no constraint is given."""
        given = {"json": json, **constraints}
        if all(given.get(name) is None for name in _CONSTRAINTS):
            return None
        return cls(**given, backend=backend)


@dataclass(slots=True)
class RepetitionDetectionParams:
    """Ends an answer when a pattern of min_pattern_size .. max_pattern_size tokens comes
    min_count times in a row; a max_pattern_size of 0 turns it off."""

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    def __post_init__(self) -> None:
        for name in ("max_pattern_size", "min_pattern_size", "min_count"):
            setattr(self, name, whole(InvalidParams, name, getattr(self, name), low=0))
        if self.min_pattern_size > self.max_pattern_size:
            rule = f"at most max_pattern_size ({self.max_pattern_size})"
            fail(InvalidParams, "min_pattern_size", rule, self.min_pattern_size)
        if self.max_pattern_size > 0 and self.min_count < 2:
            hint = "Set max_pattern_size=0 to turn detection off."
            fail(InvalidParams, "min_count", "at least 2", self.min_count, hint)


def _schema_of(json: Any) -> Any:
    """The schema of a pydantic model; anything else as it is."""
    schema = getattr(json, "model_json_schema", None)
    return schema() if schema is not None else json


def _check_schema(schema: Any) -> None:
    rule = "a JSON schema, as a dict or as JSON text"
    if not isinstance(schema, str | dict) or schema == "":
        hint = "{} is the schema of any JSON, and json_object=True asks for any object."
        fail(InvalidParams, "json", rule, schema, hint if schema is True else "")
    try:
        if isinstance(schema, str):
            json_module.loads(schema)
        else:
            json_module.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        fail(InvalidParams, "json", rule, schema, f"It does not read as JSON: {error}.")
