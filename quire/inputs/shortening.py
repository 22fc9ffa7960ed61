"""Of a prompt that is cut to so many tokens: those that stay, and the part of its text that gives
them, so that a text of megabytes is not encoded whole."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quire.errors import PromptTooLong
from quire.request import Ints

_SHORT = 1 << 18  # characters that are encoded whole, whatever they are
_SPARE = 64  # tokens beside those that stay: the ones at a cut may be others than in the text


def num_kept(truncate_prompt_tokens: int, max_tokens: int | None, max_model_len: int) -> int:
    """-1 keeps what fits beside the answer."""
    if truncate_prompt_tokens != -1:
        return truncate_prompt_tokens
    return max_model_len - min(max_tokens or 1, max_model_len - 1)


def kept_end(ids: Ints, keep: int, bos: int | None) -> Ints:
    """At most `keep` ids, of the end; those that begin with `bos` keep that, too."""
    if len(ids) <= keep:
        return ids
    if bos is not None and ids[0] == bos:
        return np.concatenate([ids[:1], ids[len(ids) - keep + 1 :]])
    return ids[-keep:]


def kept_part(
    text: str, keep: int, encode: Callable[[str], Ints], *, of_start: bool = False
) -> slice:
    """The part that has the same last `keep` tokens as the text, or the same first ones.

    What a token is depends on the text around it, but not from afar: a part that gives the same
    tokens with a character less at the cut is long enough. A run of one letter without end has
    no such part, and is refused where it is long."""
    size = 8 * keep + 1024
    longest = max(_SHORT, 4 * size)
    whole = len(text)
    if whole <= longest:
        return slice(0, whole)
    for most in (size, 2 * size, longest):
        parts = [slice(0, n) if of_start else slice(whole - n, whole) for n in (most, most - 1)]
        found = [encode(text[part]) for part in parts]
        one, other = [ids[:keep] if of_start else ids[-keep:] for ids in found]
        if min(map(len, found)) >= keep + _SPARE and np.array_equal(one, other):
            return parts[0]
    raise PromptTooLong(
        f"the prompt has {len(text):,} characters, and those at its "
        f"{'beginning' if of_start else 'end'} are a run without blanks or a run of blanks: which "
        f"{keep} tokens are to be kept would show only if all were encoded, which is done for up "
        f"to {longest:,}; shorten it",
        parameter="prompt",
        value=len(text),
    )
