"""Where contexts are cut if attention must not depend on a batch: at the same positions for all.
Short pieces keep every core of a device busy, and larger ones further on keep the pieces of a long
context few."""

from __future__ import annotations

# Tokens of a piece: SHORT up to position FIRST_END, then MIDDLE up to SECOND_END, then LARGE.
SHORT, MIDDLE, LARGE = 512, 2048, 8192
FIRST_END, SECOND_END = 4096, 32768


def most_pieces(length: int) -> int:
    """How many pieces a context of so many tokens has, at least one: 512 -> 1, 5000 -> 9"""
    shorts = -(-min(length, FIRST_END) // SHORT)
    middles = -(-min(max(length - FIRST_END, 0), SECOND_END - FIRST_END) // MIDDLE)
    return max(1, shorts + middles + -(-max(length - SECOND_END, 0) // LARGE))


def whole_pieces(length: int, more: int = 0) -> int:
    """How many of so many tokens are in pieces that end there, or with `more` pieces than those:
    600 -> 512, or 1024 with one more"""
    shorts = min(length, FIRST_END) // SHORT
    middles = min(max(length - FIRST_END, 0), SECOND_END - FIRST_END) // MIDDLE
    number = shorts + middles + max(length - SECOND_END, 0) // LARGE + more
    first, second = FIRST_END // SHORT, (SECOND_END - FIRST_END) // MIDDLE
    begin = min(number, first) * SHORT + min(max(number - first, 0), second) * MIDDLE
    return begin + max(number - first - second, 0) * LARGE
