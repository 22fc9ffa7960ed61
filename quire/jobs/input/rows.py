"""Rows of an input: their values or their error, and the key that names each for good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


class BadRow(Exception):
    """One row of the input that cannot become a request; `kind` is its error_type."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.message = kind, message


def repeated(names: Iterable[str]) -> list[str]:
    """Some of the names that come more than once; fast, since some tables have 100,000 columns."""
    return sorted(name for name, count in Counter(names).items() if count > 1)[:5]


@dataclass(frozen=True, slots=True)
class InputRow:
    """One row of the input, or what is wrong with it.

    `number` counts over all files, `in_file` within its own file. `values` is None if the row could
    not be read, or was not wanted.
    """

    number: int
    file: int
    in_file: int
    values: Mapping[str, Any] | None
    error: BadRow | None = None

    @property
    def key(self) -> str:
        return f"{self.file}:{self.in_file}"
