"""Images, sounds and videos of a table's rows: paths beside the table, encoded bytes, `data:` text,
and the structs that datasets write, as URLs with a hash of what they lead to."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from quire.errors import InvalidPrompt
from quire.inputs.media.allowed import WORDS
from quire.inputs.media.files import allowed_file, read_file
from quire.jobs.input.files import InputFile
from quire.jobs.input.rows import BadRow

MOST_BYTES = 256 << 20  # of one item


class MediaCells:
    """The media in some columns of each row, by kind; a cell may hold a list, or nothing."""

    def __init__(self, columns: Mapping[str, tuple[str, ...]], folder: Path) -> None:
        """`columns` of each kind. Paths are relative to `folder`, and lead nowhere else."""
        self._columns, self._folder = columns, folder

    def of(self, row: Mapping[str, Any]) -> dict[str, list[dict[str, str]]]:
        """What the row has, under "images", "sounds" and "videos"; nothing where it has none."""
        found: dict[str, list[dict[str, str]]] = {}
        for kind, columns in self._columns.items():
            for column in columns:
                if column not in row:
                    raise BadRow("missing_column", f"the row has no column {column!r}")
                value = row[column]
                for cell in value if isinstance(value, list | tuple) else [value]:
                    if cell is not None:
                        one = self._one(cell, column, kind)
                        found.setdefault(WORDS[kind][1], []).append(one)
        return found

    def _one(self, cell: Any, column: str, kind: str) -> dict[str, str]:
        if isinstance(cell, Mapping):  # bytes first: the path may be a bare name
            given = cell.get("bytes")
            cell = cell.get("path") if given is None else given
        if isinstance(cell, bytes):
            url = f"data:{kind};base64," + base64.b64encode(cell).decode("ascii")
            return {"url": url, "hash": _hash(cell)}
        if not isinstance(cell, str) or not cell:
            what = "an empty text" if cell == "" else type(cell).__name__
            raise BadRow(
                "invalid_prompt",
                f"column {column!r} holds {what}; {kind} is a path, bytes, or text "
                "that begins with data:",
            )
        if cell.startswith("data:"):
            return {"url": cell, "hash": _hash(cell.encode("utf-8", "replace"))}
        if "://" in cell:
            raise BadRow(
                "invalid_prompt",
                f"column {column!r} holds a URL, and jobs fetch nothing: save what it names beside "
                "the table, and give its path there",
            )
        try:
            path = allowed_file(str(self._folder / cell), str(self._folder))
            return {"url": path.as_uri(), "hash": _hash(read_file(path, MOST_BYTES))}
        except InvalidPrompt as error:
            raise BadRow("invalid_prompt", f"column {column!r}: {error.message}") from None


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=32).hexdigest()


def media_folder(files: Sequence[InputFile]) -> Path:
    """What paths of media are relative to: the folder that holds the input's files."""
    return folder_of(file.path for file in files)


def folder_of(paths: Iterable[Path]) -> Path:
    folders = [str(path.absolute().parent) for path in paths]
    return Path(os.path.commonpath(folders)) if folders else Path.cwd()
