r"""Character classes that need Unicode's tables, such as \p{L}, as ranges of code points.

Python's tables are not those of llguidance, and differ between Python versions. So llguidance
itself is asked, with a vocabulary of the 256 bytes: which bytes may come first, which after each of
these, and so on. A class takes some tenths of a second, once, so this is only used for forms that
nothing waits for.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from quire.grammar.limits import GrammarLimits, parser_limits
from quire.grammar.parts import Ranges, joined
from quire.grammar.regex import in_slashes
from quire.grammar.vocabulary import Vocabulary, open_vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_END = 256  # the token after the bytes


@lru_cache(maxsize=64)
def ranges_of(regex: str) -> Ranges | None:
    """The ranges of a regex for one character; None if llguidance cannot read it."""
    from llguidance import LLMatcher

    limits = parser_limits(GrammarLimits().lexer_states)
    matcher = LLMatcher(_bytes(), f"start: {in_slashes(regex)}\n", log_level=0, limits=limits)
    if matcher.is_error():
        return None
    found: list[tuple[int, int]] = []
    for first in _following(matcher):
        if first < 0x80:
            found.append((first, first))
            continue
        # 110xxxxx leads one byte, 1110xxxx two, 11110xxx three.
        num_more = 1 + (first >= 0xE0) + (first >= 0xF0)
        matcher.consume_token(first)
        found += _ranges(matcher, first & (0x3F >> num_more), num_more)
        matcher.rollback(1)
    return joined(found)


def _ranges(matcher: LLMatcher, code: int, num_more: int) -> list[tuple[int, int]]:
    """Ranges of characters that begin with the bits `code` and have `num_more` more bytes."""
    found: list[tuple[int, int]] = []
    for byte in _following(matcher):
        here = code << 6 | byte & 0x3F
        if num_more == 1:
            found.append((here, here))
            continue
        matcher.consume_token(byte)
        found += _ranges(matcher, here, num_more - 1)
        matcher.rollback(1)
    return found


def _following(matcher: LLMatcher) -> list[int]:
    mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)[: _END // 8]
    return np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()


@cache
def _bytes() -> LLTokenizer:
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    size = len(tokens)
    return open_vocabulary(Vocabulary(size, size, (_END,), (_END,), ("<end>",), tokens=tokens))
