"""Grammars made by rule, each with a regex that says the same."""

from __future__ import annotations

import random
import re

_WORDS = ("yes", "no", "x", "The ", "a-b", "é", "0", ", ", "(", "]")
_CLASSES = ("[a-c]", "[0-9]", "[A-Z]", "[xyz_]")
_REPEATS = (("", ""), ("", ""), ("?", "?"), ("+", "{1,}"), ("*", "{0,}"))


class MadeUp:
    """One grammar as it grows: rules in GBNF or in Lark, and what they mean."""

    def __init__(self, rng: random.Random, *, lark: bool) -> None:
        self._rng, self._lark = rng, lark
        self._rules: list[str] = []
        first, self.regex = self._alternatives(2)
        define = "start: " if lark else "root ::= "
        self.text = "\n".join([define + first, *self._rules])

    def _alternatives(self, depth: int) -> tuple[str, str]:
        options = [self._sequence(depth) for _ in range(self._rng.randint(1, 3))]
        rules, meanings = zip(*options, strict=True)
        return " | ".join(rules), "(?:" + "|".join(meanings) + ")"

    def _sequence(self, depth: int) -> tuple[str, str]:
        items = [self._item(depth) for _ in range(self._rng.randint(1, 3))]
        rules, meanings = zip(*items, strict=True)
        return " ".join(rules), "".join(meanings)

    def _item(self, depth: int) -> tuple[str, str]:
        rng = self._rng
        repeat, meaning = rng.choice(_REPEATS)
        if depth and rng.random() < 0.5:
            rule, inner = self._alternatives(depth - 1)
            if rng.random() < 0.5:
                name = f"r{len(self._rules)}"
                self._rules.append(f"{name}: {rule}" if self._lark else f"{name} ::= {rule}")
                return f"{name}{repeat}", f"(?:{inner}){meaning}"
            return f"({rule}){repeat}", f"(?:{inner}){meaning}"
        if rng.random() < 0.4:
            chosen = rng.choice(_CLASSES)
            return (f"/{chosen}/" if self._lark else chosen) + repeat, chosen + meaning
        word = rng.choice(_WORDS)
        return f'"{word}"{repeat}', f"(?:{re.escape(word)}){meaning}"


def made_up_grammars(count: int) -> dict[str, tuple[str, str]]:
    """Name -> (grammar, regex); Lark and GBNF in turn, the same ones each time."""
    made = {}
    for number in range(count):
        lark = number % 2 == 0
        one = MadeUp(random.Random(f"grammar {number}"), lark=lark)
        made[f"made up {number} ({'lark' if lark else 'gbnf'})"] = (one.text, one.regex)
    return made
