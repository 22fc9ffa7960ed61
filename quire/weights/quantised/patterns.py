"""Matches modules with a config's lists of names. No torch.

Lists have names of modules, ends or beginnings of such names, and, after `re:`, regular
expressions. These come from unknown sources, and an expression may take years for a short name: one
that repeats a group, or has more than a few repeats, is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from quire.errors import UnsupportedModel

MOST_PATTERNS = 20_000
MOST_LENGTH = 500
MOST_REPEATS = 4
_REGEX = "re:"
_REPEATED_GROUP = re.compile(r"\)\s*[*+{]")
_REPEAT = re.compile(r"(?<!\\)[*+{]")
_BACKWARDS = re.compile(r"\\[1-9]|\(\?P=")


@dataclass(frozen=True, slots=True)
class Names:
    """A list of a config: whole names or parts of names between dots, and expressions."""

    parts: tuple[str, ...] = ()
    expressions: tuple[re.Pattern[str], ...] = ()

    def match(self, module: str) -> bool:
        dotted = f".{module}."
        if any(f".{part}." in dotted for part in self.parts):
            return True
        return any(expression.match(module) for expression in self.expressions)


def read_names(value: object, source: str, field: str) -> Names:
    """Read a list of names; null or absent means none."""
    listed = [] if value is None else value
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise UnsupportedModel(f"{source}: {field} must be a list of names, it is {_short(value)}")
    if len(listed) > MOST_PATTERNS:
        raise UnsupportedModel(
            f"{source}: {field} has {len(listed):,} names; quire reads up to {MOST_PATTERNS:,}"
        )
    parts = tuple(one.strip(".") for one in listed if not one.startswith(_REGEX))
    expressions = [one.removeprefix(_REGEX) for one in listed if one.startswith(_REGEX)]
    return Names(parts, tuple(expression(one, source, field) for one in expressions))


def expression(text: str, source: str, field: str) -> re.Pattern[str]:
    """Compile a regular expression of a config, if it cannot take long."""
    slow = len(text) > MOST_LENGTH or len(_REPEAT.findall(text)) > MOST_REPEATS
    if slow or _REPEATED_GROUP.search(text) or _BACKWARDS.search(text):
        raise UnsupportedModel(
            f"{source}: the expression {_short(text)} in {field} might take years: quire takes up "
            f"to {MOST_LENGTH} characters with {MOST_REPEATS} repeats, and no repeated groups. "
            "List the modules by name instead."
        )
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise UnsupportedModel(
            f"{source}: {field} has {_short(text)}, which is no regular expression: {error}"
        ) from None


def _short(value: object) -> str:
    return repr(value)[:100]
