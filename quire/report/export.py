"""Exports results: as Parquet, JSON lines or CSV, or as a data set on the Hub with its card.

Only huggingface_hub reads the Hub's token (HF_TOKEN, or the one that its login stored); it is never
read, logged or written here.
"""

from __future__ import annotations

import csv
import io
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from quire.errors import InvalidOption, NotSupported
from quire.jobs.output.json_line import json_line
from quire.jobs.output.output import ROW_GROUP
from quire.jobs.output.results import StoredRun
from quire.jobs.refusals import refuse_over_run
from quire.jobs.store.durable import replacing
from quire.report.card import card

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_BYTES_PER_FILE = 500_000_000  # of a data set on the Hub
_SPLIT_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.")


# Signs with which a formula begins in spreadsheets, full-width ones too, or that may precede one.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class HubError(OSError):
    """The Hub refused the request, or could not be reached."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """A data set that is now on the Hub."""

    url: str
    num_rows: int
    private: bool

    @property
    def seen_by(self) -> str:
        return "private" if self.private else "public"


def export_file(
    run: StoredRun, target: Path, *, overwrite: bool = False, keep_formulas: bool = False
) -> int:
    """Write the run's table, in the format of `target`'s ending; returns the number of rows.

    In CSV, a text that a spreadsheet would take for a formula gets an apostrophe before it, unless
    `keep_formulas` is set.
    """
    writers: dict[str, Callable[[StoredRun, BinaryIO], int]] = {
        ".parquet": _write_parquet,
        ".jsonl": _write_lines,
        ".ndjson": _write_lines,
        ".csv": partial(_write_csv, keep_formulas=keep_formulas),
    }
    write = writers.get(target.suffix.lower())
    if write is None:
        raise InvalidOption(
            f"{target} ends in none of {', '.join(writers)}; the ending tells the format",
            parameter="to",
            value=str(target),
        )
    refuse_over_run(run, target)
    if os.path.lexists(target) and not overwrite:
        raise InvalidOption(f"{target} exists; --overwrite replaces it", parameter="to")
    with replacing(target, shared=True) as file:
        return write(run, file)


def _write_lines(run: StoredRun, file: BinaryIO) -> int:
    num_rows = 0
    for row in run.rows():
        file.write(json_line(run.table_row(row)))
        num_rows += 1
    return num_rows


def _write_csv(run: StoredRun, file: BinaryIO, *, keep_formulas: bool) -> int:
    """Write CSV: lists and objects become JSON, and null an empty field."""
    safe = _unchanged if keep_formulas else _no_formula
    names = list(dict.fromkeys(name for row in run.rows() for name in run.table_row(row)))
    text = io.TextIOWrapper(
        file, encoding="utf-8", errors="replace", newline="", write_through=True
    )
    writer = csv.writer(text)
    writer.writerow(map(safe, names))
    num_rows = 0
    for row in run.rows():
        values = run.table_row(row)
        writer.writerow([safe(_cell(values.get(name))) for name in names])
        num_rows += 1
    text.detach()
    return num_rows


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float) and not isinstance(value, bool):
        return "" if value is None else value
    return json_line(value).decode().strip()


def _no_formula(cell: Any) -> Any:
    """The cell, safe for a spreadsheet: =1+1 becomes '=1+1; plain numbers stay numbers."""
    is_formula = isinstance(cell, str) and cell.startswith(_FORMULA) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if is_formula else cell


def _unchanged(cell: Any) -> Any:
    return cell


def _batches(run: StoredRun) -> Iterator[RecordBatch]:
    from quire.jobs.store.store import read_batches

    if run.manifest is None:
        raise NotSupported(f"{run.path} is a table already; export takes a job")
    return read_batches(run.home)


def _write_parquet(run: StoredRun, file: BinaryIO) -> int:
    return sum(_parquet_parts(_batches(run), lambda number: file, most_bytes=None))


def _parquet_parts(
    batches: Iterator[RecordBatch], open_part: Callable[[int], BinaryIO], most_bytes: int | None
) -> Iterator[int]:
    """Write batches into one file, or several of about `most_bytes`; yields the rows of each."""
    import pyarrow as pa
    from pyarrow import parquet

    writer = None
    number = num_rows = 0
    for batch in batches:
        if writer is None:
            file = open_part(number)
            writer = parquet.ParquetWriter(file, batch.schema, compression="zstd")
            number, num_rows = number + 1, 0
        writer.write_table(pa.Table.from_batches([batch]), row_group_size=ROW_GROUP)
        num_rows += batch.num_rows
        if most_bytes is not None and file.tell() >= most_bytes:
            writer.close()
            writer = None
            yield num_rows
    if writer is not None:
        writer.close()
        yield num_rows
    elif number == 0:
        raise InvalidOption("the run has no rows yet; there is nothing to export")


def push(
    run: StoredRun,
    repo: str,
    *,
    private: bool = True,
    split: str = "train",
    license: str | None = None,
) -> Pushed:
    """Upload the run's table and a card to the Hub, in one commit."""
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    if run.manifest is None:
        raise NotSupported(f"{run.path} is a table already; export takes a job")
    if not split or not set(split) <= _SPLIT_LETTERS:
        raise InvalidOption(f"--split is letters, digits, _ and ., not {split!r}")
    with tempfile.TemporaryDirectory(prefix="quire-export-") as folder:
        parts, num_rows = _write_parts(run, Path(folder))
        text = card(run, repo, num_rows=num_rows, split=split, license=license)
        operations = [CommitOperationAdd("README.md", text.encode())]
        for number, part in enumerate(parts):
            name = f"data/{split}-{number:05}-of-{len(parts):05}.parquet"
            operations.append(CommitOperationAdd(name, str(part)))
        unreachable: Any = HfHubHTTPError.__bases__  # the client's errors, whichever it uses
        try:
            return _commit(HfApi(), repo, operations, private, num_rows)
        except LocalTokenNotFoundError:
            raise HubError(
                "the Hub wants to know who you are: set HF_TOKEN, or run `hf auth login`"
            ) from None
        except HFValidationError as error:
            raise InvalidOption(str(error), parameter="push_to_hub", value=repo) from None
        except HfHubHTTPError as error:
            raise HubError(_described(error, repo)) from None
        except unreachable as error:
            raise HubError(
                f"the Hub could not be reached: {type(error).__name__}: {error}"
            ) from None


def _commit(api: Any, repo: str, operations: list[Any], private: bool, num_rows: int) -> Pushed:
    url = api.create_repo(repo, repo_type="dataset", private=private, exist_ok=True)
    is_private = bool(api.repo_info(repo, repo_type="dataset").private)
    if private and not is_private:
        # The data set existed before and stays public, so its new rows would be public, too.
        raise InvalidOption(
            f"{repo} is there already and everyone can see it; --public agrees to that, another "
            "name makes a private one",
            parameter="push_to_hub",
            value=repo,
        )
    api.create_commit(
        repo, operations, repo_type="dataset", commit_message=f"{num_rows:,} rows by quire"
    )
    return Pushed(str(url), num_rows, is_private)


def _write_parts(run: StoredRun, folder: Path) -> tuple[list[Path], int]:
    paths: list[Path] = []
    files: list[BinaryIO] = []

    def open_part(number: int) -> BinaryIO:
        paths.append(folder / f"{number}.parquet")
        files.append(paths[-1].open("wb"))
        return files[-1]

    try:
        num_rows = sum(_parquet_parts(_batches(run), open_part, _BYTES_PER_FILE))
    finally:
        for file in files:
            file.close()
    return paths, num_rows


def _described(error: Any, repo: str) -> str:
    """The Hub's error, without headers or other parts of the request."""
    status: int = getattr(error.response, "status_code", 0)
    reasons = {
        401: "the token is missing or wrong: set HF_TOKEN, or run `hf auth login`",
        403: f"the token may not write to {repo}",
        404: f"{repo} is not there, or not yours",
    }
    said = reasons.get(status) or error.server_message or "no reason given"
    return f"the Hub answered {status} for {repo}: {said}"
