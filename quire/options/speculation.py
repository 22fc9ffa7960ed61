"""speculative_config: how it is read, and what becomes of it on a device."""

from __future__ import annotations

from typing import Any

from quire.config import Speculation
from quire.errors import InvalidOption, NotSupported
from quire.options.checks import mapping
from quire.param_rules import fail, show

# Where nothing is said. A single token that agrees is enough, because each guess has to be worth
# its cost anyway; copies of a text go on for longer than any guess.
USUAL = Speculation(num_tokens=16, shortest=1, longest=8)
MOST_TOKENS, MOST_AGREEING = 64, 64
_KEYS = ("method", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max")
_OFF = "{'num_speculative_tokens': 0} turns guessing off."


def speculation(name: str, value: Any) -> Speculation | None:
    """{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3} and the like;
    0 tokens turn it off, an empty dict says nothing."""
    given = {key: one for key, one in mapping(name, value).items() if one is not None}
    if not given:
        return None
    method = given.get("method", "ngram")
    others = [key for key in given if key not in _KEYS]
    if method != "ngram" or others:
        what = f"{others[0]!r} in it" if method == "ngram" else f"method {show(method)}"
        raise NotSupported(
            f"{name} with {what} is not built: tokens are guessed from a row's own text alone. "
            f"Use method 'ngram' with {', '.join(_KEYS[1:])}, or leave it out. {_OFF}"
        )

    def number(key: str, usual: int, low: int, high: int) -> int:
        one = given.get(key, usual)
        if not isinstance(one, int) or isinstance(one, bool) or not low <= one <= high:
            rule = f"a dict whose {key} is a whole number from {low} to {high}"
            fail(InvalidOption, name, rule, value, _OFF)
        return one

    # One of the two lengths stands for both.
    least, most = given.get("prompt_lookup_min"), given.get("prompt_lookup_max")
    usual = (USUAL.shortest if most is None else most, USUAL.longest if least is None else least)
    shortest = number("prompt_lookup_min", usual[0], 1, MOST_AGREEING)
    longest = number("prompt_lookup_max", usual[1], 1, MOST_AGREEING)
    if shortest > longest:
        fail(InvalidOption, name, "a dict whose prompt_lookup_min is at most the max", value)
    num_tokens = number("num_speculative_tokens", USUAL.num_tokens, 0, MOST_TOKENS)
    return Speculation(num_tokens, shortest, longest)


def speculation_for(
    asked: Speculation | None,
    *,
    device: str,
    batch_invariant: bool,
    has_processors: bool,
    notes: list[str],
) -> Speculation | None:
    """What was asked for, if it can be done. If nothing was: the usual, where it changes no bit of
    any result. `has_processors`: logits processors look at every row."""
    if asked is None:
        unseen = device == "cpu" and batch_invariant and not has_processors
        return USUAL if unseen else None
    if asked.num_tokens == 0:
        return None
    if device != "cpu":
        raise NotSupported(
            "speculative_config is built for CPUs. Leave it out, or set device='cpu'; the text is "
            "the same without it."
        )
    if has_processors:
        raise NotSupported(
            "speculative_config beside logits_processors: these see each token before the next is "
            "drawn. Leave one of the two out."
        )
    if not batch_invariant:
        notes.append(
            "tokens are guessed ahead: near ties may fall differently, as they do from batch to "
            "batch (batch_invariant=True keeps them)"
        )
    return asked
