"""How prompts become token ids: `tokenization_kwargs`, checked."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.errors import InvalidRequest

_TOKENIZATION = ("add_special_tokens", "truncate_prompt_tokens", "truncation_side")


@dataclass(frozen=True, slots=True)
class Encoding:
    """How prompts become token ids: `tokenization_kwargs`, checked."""

    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    keep_start: bool = False


def read_tokenization(given: Mapping[str, Any] | None) -> Encoding:
    if given is None:
        return Encoding()
    for name in given:
        if name not in _TOKENIZATION:
            near = difflib.get_close_matches(str(name), _TOKENIZATION, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(_TOKENIZATION)}"
            raise InvalidRequest(
                f"tokenization_kwargs has no {name!r}; {meant}",
                parameter="tokenization_kwargs",
                value=name,
            )
    add, keep, side = (given.get(name) for name in _TOKENIZATION)
    rules = {
        "add_special_tokens": (isinstance(add, bool), "True or False"),
        "truncate_prompt_tokens": (
            isinstance(keep, int) and not isinstance(keep, bool) and (keep > 0 or keep == -1),
            "at least 1, or -1 for as many as fit",
        ),
        "truncation_side": (side in ("left", "right"), "'left' (keeps the end) or 'right'"),
    }
    for name, (good, rule) in rules.items():
        if given.get(name) is not None and not good:
            raise InvalidRequest(
                f"tokenization_kwargs[{name!r}] is {rule}, not {given[name]!r}",
                parameter="tokenization_kwargs",
                value=given[name],
            )
    return Encoding(True if add is None else add, keep, side == "right")
