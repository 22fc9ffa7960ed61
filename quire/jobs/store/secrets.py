"""Keeps tokens and passwords out of everything that a job stores. They are no part of a job, so a
job may continue with another token; the engine gets them over its stdin only.

HF_TOKEN in the environment is safer: a token on the command line is visible to every user who
lists processes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quire.safe_text import HIDDEN, without_secrets

SECRETS = frozenset({"hf_token"})  # options of the engine
# Names whose value is a secret: --api-key, hf_token, DB_PASSWORD; not --max-tokens, eos_token_id.
_SECRET_NAME = re.compile(
    r"(?:^|[-_])(?:token|secret|passw(?:or)?d|api[-_]?key|credentials?)$", re.IGNORECASE
)
_OUR_OPTIONS = ("--option", "--judge-option")


def without(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without secrets: these are stored with the job."""
    return {name: value for name, value in options.items() if name not in SECRETS}


def of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The secret options, which only the engine gets."""
    return {name: options[name] for name in SECRETS & options.keys()}


def described(command: Sequence[str]) -> tuple[str, ...]:
    """A command without its secrets, to be stored and shown. Our own secret options are left out:
    the command still runs with HF_TOKEN set. Of other secret words the value is left out."""
    words: list[str] = []
    rest = iter(command)
    for word in rest:
        name, equals, value = word.partition("=")
        if word in _OUR_OPTIONS:
            given = next(rest, None)
            if given is None or not _is_secret(given):
                words += [word] if given is None else [word, _plain(given)]
        elif name in _OUR_OPTIONS and equals and _is_secret(value):
            continue
        elif equals and _SECRET_NAME.search(name):
            words.append(f"{name}={HIDDEN}")
        elif word.startswith("-") and _SECRET_NAME.search(word):
            words += [word, *(HIDDEN for _ in _taken(rest))]
        else:
            words.append(_plain(word))
    return tuple(words)


def _is_secret(assignment: str) -> bool:
    return assignment.partition("=")[0].strip().replace("-", "_") in SECRETS


def _plain(word: str) -> str:
    return without_secrets(word)


def _taken(rest: Iterable[str]) -> list[str]:
    """The value of the option before it: the next word, if there is one."""
    return [word for word in [next(iter(rest), None)] if word is not None]
