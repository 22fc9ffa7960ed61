"""The parameters of transcripts, checked."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from quire.errors import InvalidOption

TASKS = ("transcribe", "translate")


@dataclass(frozen=True, slots=True)
class Doubts:
    """When an answer is doubtful, as in Whisper's own program: it repeats itself, so that it
    compresses well, or its tokens are unlikely. Unlikely tokens together with a high probability of
    no speech mean silence."""

    compression_ratio_threshold: float = 2.4
    logprob_threshold: float = -1.0  # for the mean over an answer's tokens and its end token
    no_speech_threshold: float = 0.6

    def is_silence(self, logprob: float, no_speech: float) -> bool:
        return no_speech > self.no_speech_threshold and logprob < self.logprob_threshold

    def hold(self, text: str, logprob: float) -> bool:
        is_repeated = compression_ratio(text) > self.compression_ratio_threshold
        return is_repeated or logprob < self.logprob_threshold


def compression_ratio(text: str) -> float:
    data = text.encode("utf-8", "replace")
    return len(data) / len(zlib.compress(data))


@dataclass(frozen=True, slots=True)
class Wanted:
    """The settings for a sound. Each temperature is used if the answer at the one before is
    doubtful."""

    language: str | None = None  # None: recognised
    task: str = TASKS[0]
    timestamps: bool = False
    initial_prompt: str | None = None
    temperatures: tuple[float, ...] = (0.0,)
    doubts: Doubts = Doubts()


_DOUBTS = asdict(Doubts())
PARAMS = ("language", "task", "timestamps", "initial_prompt", "temperature", *_DOUBTS)
TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # tried in turn while the answer is doubtful


def transcript_params(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters, checked and complete."""
    if strange := sorted(set(given) - set(PARAMS)):
        raise wrong(strange[0], f"is none of a transcript's: {', '.join(PARAMS)}", None)
    task = given.get("task", TASKS[0])
    for name, rule in (("language", "is a code such as en"), ("initial_prompt", "is a text")):
        if not isinstance(given.get(name), str | None):
            raise wrong(name, rule, given[name])
    if task not in TASKS:
        raise wrong("task", f"is {' or '.join(TASKS)}", task)
    doubts = {name: given.get(name, usual) for name, usual in _DOUBTS.items()}
    for name, value in doubts.items():
        if not _is_number(value):
            raise wrong(name, "is a number", value)
    return {
        "language": given.get("language"),
        "task": task,
        "timestamps": bool(given.get("timestamps")),
        "initial_prompt": given.get("initial_prompt"),
        "temperature": _temperatures(given.get("temperature", TEMPERATURES)),
        **{name: float(value) for name, value in doubts.items()},
    }


def wanted_of(params: Mapping[str, Any]) -> Wanted:
    """What such parameters ask for."""
    names = ("language", "task", "timestamps", "initial_prompt")
    return Wanted(
        **{name: params[name] for name in names},
        temperatures=tuple(params["temperature"]),
        doubts=Doubts(**{name: params[name] for name in _DOUBTS}),
    )


def _temperatures(given: Any) -> list[float]:
    """One or several temperatures, as numbers or as text of a command line."""
    several = given if isinstance(given, list | tuple) else [given]
    try:
        tried = [float(one) for one in several]
    except (TypeError, ValueError):
        tried = []
    if not tried or not all(0 <= one <= 2 for one in tried):
        raise wrong("temperature", "is a number from 0 to 2, or several to try in turn", given)
    return tried


def _is_number(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and isfinite(given)


def wrong(name: str, rule: str, value: Any) -> InvalidOption:
    """The error for a parameter that breaks its rule."""
    said = "" if value is None else f", not {value!r}"
    return InvalidOption(f"{name} {rule}{said}", parameter=name, value=value)
