"""How prompts become token ids: `tokenization_kwargs`, checked."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from quire.errors import InvalidRequest

_TOKENIZATION = ("add_special_tokens", "truncate_prompt_tokens", "truncation_side")


@dataclass(frozen=True, slots=True)
class Encoding:
    """How prompts become token ids: `tokenization_kwargs`, checked."""

    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    keep_start: bool = False


def named_options(given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """`tokenization_kwargs` as a mapping; InvalidRequest if it is none."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidRequest(
            f"tokenization_kwargs is a dict of names and values, not a {type(given).__name__}",
            parameter="tokenization_kwargs",
        )
    return given


def read_tokenization(given: Mapping[str, Any] | None) -> Encoding:
    if given is None:
        return Encoding()
    given = _in_our_words(named_options(given))
    for name in given:
        if name not in _TOKENIZATION:
            near = difflib.get_close_matches(str(name), _TOKENIZATION, n=1)
            known = ", ".join((*_TOKENIZATION, "truncation", "max_length", "padding"))
            meant = f"did you mean {near[0]!r}?" if near else f"known: {known}"
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
            _refuse(name, rule, given[name])
    return Encoding(True if add is None else add, keep, side == "right")


def _in_our_words(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Translates options of Transformers' tokenizers. With `truncation` a text is cut to
    `max_length` tokens, or to as many as fit; without it never. `padding` must be off."""
    words = dict(given)
    cut, most = words.pop("truncation", None), words.pop("max_length", None)
    if cut not in (None, True, False, "longest_first", "do_not_truncate"):
        _refuse("truncation", "True or False", cut)
    if cut in (True, "longest_first"):
        words["truncate_prompt_tokens"] = -1 if most is None else most
    elif most is not None and cut is None:
        _refuse("max_length", "given with truncation=True", most)
    if (pad := words.pop("padding", None)) not in (None, False, "do_not_pad"):
        _refuse("padding", "False: no row waits for a longer one", pad)
    return words


def _refuse(name: str, rule: str, value: Any) -> NoReturn:
    raise InvalidRequest(
        f"tokenization_kwargs[{name!r}] is {rule}, not {value!r}",
        parameter="tokenization_kwargs",
        value=value,
    )
