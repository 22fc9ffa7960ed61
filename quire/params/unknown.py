"""Errors for keywords that a class does not take: they name the nearest one that it does."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from quire.errors import UnknownOption
from quire.params.rules import PARAMS_STATUS, show

Given = ParamSpec("Given")
Made = TypeVar("Made")
_STRUCTURED = "Say it as structured_outputs=StructuredOutputsParams(...)."
_BEAMS = "Beams are searched by LLM.beam_search(prompts, BeamSearchParams(...))."
# Names from other libraries and older scripts.
_INSTEAD = {
    "max_new_tokens": "It is max_tokens here.",
    "max_length": "It is max_tokens here, of the answer alone.",
    "do_sample": "temperature=0 is greedy, above 0 it samples.",
    "num_return_sequences": "It is n here.",
    "stop_sequences": "It is stop here.",
    **dict.fromkeys(("use_beam_search", "length_penalty", "early_stopping", "num_beams"), _BEAMS),
    **dict.fromkeys(
        ("response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
        _STRUCTURED,
    ),
    "guided_options_request": _STRUCTURED,
}
_OLDER = {
    "LoRARequest": {"lora_local_path": "It is lora_path here."},
    "PoolingParams": {"normalize": "It is use_activation here."},
    "SamplingParams": _INSTEAD,
}
# Arguments of methods: their older names, and what they are called now.
_RENAMED = {
    "inputs": {"prompt", "prompts"},
    "prompt": {"prompts"},
    "prompt_token_ids": {"prompt"},  # where one prompt is taken: {"prompt_token_ids": [...]}
    "sampling_params": {"params"},
}
# Older arguments that have no effect with these values.
_NOTHING = {"use_beam_search": False, "length_penalty": 1.0, "early_stopping": False}


def explains_unknown_keywords(made: Any) -> Any:
    """Wrap a class's constructor so that its error for an unknown keyword says what was meant."""
    init = made.__init__
    known = frozenset([*inspect.signature(init).parameters][1:])

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **keywords: Any) -> None:
        for name in keywords.keys() - known:
            if not _asks_nothing(made.__name__, name, keywords[name]):
                raise _unknown(made.__name__, name, keywords[name], known)
            del keywords[name]
        init(self, *args, **keywords)

    made.__init__ = checked
    return made


def explains_unknown_arguments(method: Callable[Given, Made]) -> Callable[Given, Made]:
    """Wrap a method so that its error for an unknown keyword says where it belongs."""
    taken = inspect.signature(method).parameters
    known = frozenset(taken)
    by_place = [n for n, one in taken.items() if one.kind is one.POSITIONAL_OR_KEYWORD]

    @functools.wraps(method)
    def checked(*args: Given.args, **keywords: Given.kwargs) -> Made:
        owner = type(args[0]).__name__ if args else ""
        for name in keywords.keys() - known:
            raise _unknown(f"{owner}.{method.__name__}", name, keywords[name], known)
        if len(args) > len(by_place):
            raise UnknownOption(
                f"{owner}.{method.__name__} takes {', '.join(by_place[1:])} by their places, and "
                f"here are {len(args) - len(by_place)} more: name them, as in use_tqdm=False.",
                parameter=method.__name__,
                value=len(args) - 1,
            )
        return method(*args, **keywords)

    return checked


def _asks_nothing(owner: str, name: str, value: Any) -> bool:
    if owner != "SamplingParams" or name not in _NOTHING:
        return False
    return value is None or (isinstance(value, int | float) and value == _NOTHING[name])


def _unknown(owner: str, name: str, value: Any, known: frozenset[str]) -> UnknownOption:
    hint = _OLDER.get("SamplingParams" if "." in owner else owner, {}).get(name, "")
    if "." in owner and (hint or name in PARAMS_STATUS):
        hint = f"That is said in sampling_params=SamplingParams(...). {hint}".rstrip()
    if "." in owner and (here := _RENAMED.get(name, set()) & known):
        hint = f"It is {min(here)} here."
    hint = hint or _nearest(name, known)
    return UnknownOption(f"{owner} takes no {show(name)}. {hint}", parameter=name, value=value)


def meant_by(name: str, known: Iterable[str]) -> str:
    """What to write instead of a sampling parameter that does not exist."""
    return _INSTEAD.get(name) or _nearest(name, known)


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"Did you mean {near[0]!r}?" if near else "docs/api.md lists them all."
