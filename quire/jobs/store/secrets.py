"""What a job never stores: tokens. They are no part of what it is, so another token is the same
job, and they reach the engine over its stdin alone.

HF_TOKEN in the environment needs none of this; a token on the command line is also seen by
everybody who lists processes.
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
    """The options that make the job what it is."""
    return {name: value for name, value in options.items() if name not in SECRETS}


def of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that only the engine is told."""
    return {name: options[name] for name in SECRETS & options.keys()}


def described(command: Sequence[str]) -> tuple[str, ...]:
    """A command as it may be stored and shown. Our own secret options are left out (without them
    it still runs, with HF_TOKEN set); of other programs' words the values are."""
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
    """The next word, if there is one: the value of the word before it."""
    return [word for word in [next(iter(rest), None)] if word is not None]
