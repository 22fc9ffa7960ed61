"""Where contexts are cut into pieces if attention must not depend on the batch: at the same
positions for all. Short pieces keep all cores of a device busy; larger ones further on keep the
number of pieces of a long context small."""

from __future__ import annotations

# Tokens of a piece: SHORT up to position FIRST_END, MIDDLE up to SECOND_END, then LARGE.
SHORT, MIDDLE, LARGE = 512, 2048, 8192
FIRST_END, SECOND_END = 4096, 32768


def most_pieces(length: int) -> int:
    """The number of pieces of a context, at least one: 512 -> 1, 5000 -> 9"""
    shorts = -(-min(length, FIRST_END) // SHORT)
    middles = -(-min(max(length - FIRST_END, 0), SECOND_END - FIRST_END) // MIDDLE)
    return max(1, shorts + middles + -(-max(length - SECOND_END, 0) // LARGE))


def whole_pieces(length: int, more: int = 0) -> int:
    """The number of tokens in whole pieces of a context, or in `more` pieces than these: 600 ->
    512, or 1024 with one more"""
    shorts = min(length, FIRST_END) // SHORT
    middles = min(max(length - FIRST_END, 0), SECOND_END - FIRST_END) // MIDDLE
    number = shorts + middles + max(length - SECOND_END, 0) // LARGE + more
    first, second = FIRST_END // SHORT, (SECOND_END - FIRST_END) // MIDDLE
    begin = min(number, first) * SHORT + min(max(number - first, 0), second) * MIDDLE
    return begin + max(number - first - second, 0) * LARGE
