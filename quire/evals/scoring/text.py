"""Extracts the part of an answer that is judged, and compares two texts."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def extract(pattern: re.Pattern[str], text: str, *, last: bool = False) -> str | None:
    """The first (or last) match: its first non-empty group where it has groups, else all of it.

    r"answer is (\\d+)|= (\\d+)" on "2 + 2 = 4" gives "4".
    """
    matches = pattern.finditer(text)
    found = next(matches, None)
    if last:
        found = max(matches, key=re.Match.start, default=found)
    if found is None:
        return None
    if not pattern.groups:
        return found.group().strip()
    return next((group.strip() for group in found.groups() if group), None)


def normalised(text: str) -> str:
    """Lower case, without punctuation, articles and superfluous spaces."""
    bare = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def f1(answer: str, truth: str) -> float:
    """Overlap of the normalised words, as the harmonic mean of precision and recall."""
    words, wanted = normalised(answer).split(), normalised(truth).split()
    if not words or not wanted:
        return float(words == wanted)
    common = (Counter(words) & Counter(wanted)).total()
    return 2 * common / (len(words) + len(wanted))


def truths(value: object) -> list[str]:
    """The texts that count as right: all values of a list; none for null."""
    if value is None:
        return []
    if isinstance(value, str):
        return [value]
    if isinstance(value, Iterable) and not isinstance(value, bytes | dict):
        return [text for item in value for text in truths(item)]
    if isinstance(value, bool):
        return ["true" if value else "false"]
    if isinstance(value, float) and value.is_integer():
        return [str(int(value))]  # Arrow makes 18 a float if another row has a null
    return [str(value)]
