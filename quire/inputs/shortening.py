"""Truncates prompts to a number of tokens: the tokens that remain, and the part of the text that
gives them, so that a text of megabytes need not be encoded whole."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quire.errors import PromptTooLong
from quire.request import Ints

_SHORT = 1 << 18  # characters that are encoded whole, whatever they are
_SPARE = 64  # extra tokens: those at the cut may differ from the tokens of the whole text


def num_kept(truncate_prompt_tokens: int, max_tokens: int | None, max_model_len: int) -> int:
    """The number of tokens to keep; -1 keeps as many as fit beside the answer."""
    if truncate_prompt_tokens != -1:
        return truncate_prompt_tokens
    return max_model_len - min(max_tokens or 1, max_model_len - 1)


def kept_end(ids: Ints, keep: int, bos: int | None) -> Ints:
    """The last `keep` ids; if the ids begin with `bos`, it is kept as the first of them."""
    if len(ids) <= keep:
        return ids
    if bos is not None and ids[0] == bos:
        return np.concatenate([ids[:1], ids[len(ids) - keep + 1 :]])
    return ids[-keep:]


def kept_part(
    text: str, keep: int, encode: Callable[[str], Ints], *, of_start: bool = False
) -> slice:
    """The part that has the same last `keep` tokens as the text, or the same first ones.

    A token depends only on the text near it: a part is long enough if it gives the same tokens with
    one character less at the cut. A long run of a single letter has no such part, and is refused.
    """
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
