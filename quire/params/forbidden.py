"""Which parameters of a request forbid tokens, and what is said where they leave none to draw.

What the parameters alone rule out is refused before anything runs. A grammar, a bad word of several
tokens and a logits processor forbid different tokens at each step, so that only the step shows it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.errors import InvalidParams, NoTokenLeft
from quire.params.row_sampling import FORBIDDING_BIAS
from quire.params.rules import show

if TYPE_CHECKING:
    from quire.sampling_params import SamplingParams

_SUPPRESSED = "the model's own files (suppress_tokens)"
_WAY_OUT = "Take tokens out of one of them"


@dataclass(frozen=True, slots=True)
class _Forbidding:
    """A parameter in the words of an error, and the tokens that no answer may begin with by it."""

    parameter: str
    words: str
    token_ids: Collection[int]


def check_some_token_left(
    params: SamplingParams, end_ids: Collection[int], vocab_size: int
) -> None:
    """Raise InvalidParams if the parameters forbid every token that an answer may begin with.
    `end_ids` end an answer."""
    allowed = params.allowed_token_ids
    forbidding = [one for one in _forbidding(params, end_ids) if one.token_ids]
    most = vocab_size if allowed is None else 1
    if sum(len(one.token_ids) for one in forbidding) < most:
        return
    left = set(range(vocab_size) if allowed is None else allowed)
    guilty = [one for one in forbidding if not left.isdisjoint(one.token_ids)]
    for one in guilty:
        left.difference_update(one.token_ids)
    if left or not guilty:
        return
    first = "the whole vocabulary" if allowed is None else f"allowed_token_ids={show(allowed)}"
    raise InvalidParams(
        f"{first} leaves no token to draw: {_listed(one.words for one in guilty)} "
        f"forbid{'s' * (len(guilty) == 1)} them all. {_WAY_OUT}",
        parameter=guilty[0].parameter if allowed is None else "allowed_token_ids",
        value=allowed,
    )


def no_token_left(params: SamplingParams, num_outputs: int, *, processors: bool) -> NoTokenLeft:
    """The error of a row that had no token to draw as output number `num_outputs`, from 0.
    `processors`: functions edit its logits."""
    named = []
    if (wanted := params.structured_outputs) is not None:
        named.append(f"structured_outputs ({wanted.kind})")
    if params.allowed_token_ids is not None:
        named.append(f"allowed_token_ids={show(params.allowed_token_ids)}")
    named += [one.words for one in _forbidding(params, (), num_outputs)]
    if processors or not named:
        named.append("logits_processors")
    together = " together" if len(named) > 1 else ""
    so_far = f"{num_outputs} token{'s' * (num_outputs != 1)} of the answer"
    return NoTokenLeft(
        f"after {so_far} no token was left to draw, because "
        f"{_listed(named)}{together} forbid{'s' * (len(named) == 1)} all of them; the other rows "
        f"went on. {'Loosen one of them' if together else 'Loosen it'}"
    )


def _forbidding(
    params: SamplingParams, end_ids: Collection[int], num_outputs: int = 0
) -> list[_Forbidding]:
    """Parameters that forbid some tokens as this output."""
    found = []

    def add(name: str, value: Any, token_ids: Collection[int]) -> None:
        found.append(_Forbidding(name, f"{name}={show(value)}", token_ids))

    if params.bad_words:
        ids = params._bad_words_token_ids or ()
        add("bad_words", params.bad_words, {word[0] for word in ids if len(word) == 1})
    bias = {t: b for t, b in (params.logit_bias or {}).items() if b <= FORBIDDING_BIAS}
    if bias:
        add("logit_bias", bias, bias)
    if num_outputs < params.min_tokens:
        about = " (until then no token may end the answer)"
        words = f"min_tokens={params.min_tokens}{about}"
        found.append(_Forbidding("min_tokens", words, end_ids))
    never, not_first = params._suppressed_token_ids
    suppressed = {*never, *not_first} if num_outputs == 0 else set(never)
    if suppressed:
        found.append(_Forbidding("prompt", _SUPPRESSED, suppressed))
    return found


def _listed(names: Iterable[str]) -> str:
    *some, last = names
    return f"{', '.join(some)} and {last}" if some else last
