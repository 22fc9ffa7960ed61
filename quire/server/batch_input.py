"""The lines of a batch's input, checked before anything is computed.

A line that could not be matched to its answer (no JSON, a missing or repeated `custom_id`, another
url) fails the whole batch, and all such lines are listed. An error inside a `body` fails only its
own line, later.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from quire.jobs.input.jsonl import LONGEST_ROW, lines_of, parse_line
from quire.jobs.input.rows import BadRow
from quire.jobs.store.keys import KeyTable
from quire.params.rules import show

MOST_ERRORS = 1000  # errors that a batch lists; further ones are counted
LONGEST_ID = 512  # characters of a custom_id
_LOOK_EVERY = 1000  # lines between two checks of whether the batch was cancelled


class _JustId(msgspec.Struct):
    """A line of which only this is read: no object is made of its body."""

    custom_id: str


_JUST_ID = msgspec.json.Decoder(_JustId)


@dataclass(slots=True)
class Checked:
    """The number of lines, and their errors."""

    num_rows: int = 0
    num_wrong: int = 0
    stopped: bool = False  # before the end, because the batch was cancelled
    errors: list[dict[str, Any]] = field(default_factory=list)

    def add(self, code: str, message: str, *, line: int | None, param: str | None) -> None:
        self.num_wrong += 1
        if len(self.errors) < MOST_ERRORS:
            error = {"code": code, "line": line, "message": message, "param": param}
            self.errors.append(error)

    def listed(self) -> list[dict[str, Any]]:
        """The errors, and how many more there are if not all are listed."""
        more = self.num_wrong - len(self.errors)
        if not more:
            return self.errors
        message = f"{more:,} more lines are wrong and not listed here"
        return [
            *self.errors,
            {"code": "more_errors", "line": None, "message": message, "param": None},
        ]


def check_lines(path: Path, endpoint: str, is_wanted: Callable[[], bool]) -> Checked:
    """Check the whole file, with about sixteen bytes of memory for each line."""
    checked, ids = Checked(), KeyTable()
    with open(path, "rb") as file:
        again = os.dup(file.fileno())
        try:
            for number, start, line in lines_of(file):
                if number % _LOOK_EVERY == 0 and not is_wanted():
                    checked.stopped = True
                    return checked
                checked.num_rows += 1
                row = parse_line(line)
                if isinstance(row, BadRow):
                    checked.add("invalid_json_line", row.message, line=number, param=None)
                    continue
                _check_id(row.get("custom_id"), number, start, ids, again, checked)
                if row.get("url") != endpoint:
                    message = f"the url is the batch's endpoint {endpoint}, not "
                    message += show(row.get("url"))
                    checked.add("url_mismatch", message, line=number, param="url")
        finally:
            os.close(again)
    if not checked.num_rows:
        checked.add("empty_file", "the file has no lines", line=None, param="input_file_id")
    return checked


def line_ids(path: Path) -> Iterator[tuple[int, str]]:
    """The number of each row of a file that was checked, from 0 on, and its custom_id."""
    with open(path, "rb") as file:
        for row, (_, _, line) in enumerate(lines_of(file)):
            named = _id_of(line)
            # A line that was changed on disk since then gets the usual key of a job's row.
            yield row, named if isinstance(named, str) else f"0:{row}"


def _id_of(line: bytes | BadRow) -> Any:
    with suppress(msgspec.MsgspecError, TypeError, RecursionError):  # it is stricter than `parse`
        return _JUST_ID.decode(line).custom_id  # type: ignore[arg-type]
    found = parse_line(line)
    return None if isinstance(found, BadRow) else found.get("custom_id")


def _check_id(
    found: Any, number: int, start: int, ids: KeyTable, file: int, checked: Checked
) -> None:
    if found is None:
        checked.add(
            "missing_required_parameter",
            "the line has no custom_id to match its answer with",
            line=number,
            param="custom_id",
        )
        return
    if not isinstance(found, str) or not 1 <= len(found) <= LONGEST_ID or not _is_text(found):
        checked.add(
            "invalid_custom_id",
            f"custom_id is a text of 1 to {LONGEST_ID} characters, not {show(found)}",
            line=number,
            param="custom_id",
        )
        return
    earlier = ids.get(found)
    ids.put(found, start)
    # The table has fingerprints only; the line itself tells whether the ids are really equal.
    if earlier is not None and _id_at(file, earlier) == found:
        checked.add(
            "duplicate_custom_id",
            f"an earlier line has the same custom_id {show(found)}",
            line=number,
            param="custom_id",
        )


def _is_text(text: str) -> bool:
    """Whether the text can be written as UTF-8: half of a surrogate pair cannot."""
    with suppress(UnicodeEncodeError):
        return bool(text.encode())
    return False


def _id_at(file: int, start: int) -> Any:
    data = bytearray()
    while len(data) <= LONGEST_ROW and (piece := os.pread(file, 1 << 16, start + len(data))):
        data += piece
        if b"\n" in piece:
            break
    return _id_of(bytes(data[: data.find(b"\n") + 1 or None]))
