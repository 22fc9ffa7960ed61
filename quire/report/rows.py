"""Rows in the page: tables of columns, compressed in chunks.

The content of rows is JSON in gzip in base64. The browser puts it into the page as text, so that
markup in a prompt or an answer is never parsed.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.evals.scoring.scores import RowScore
from quire.jobs.output.json_line import json_line
from quire.jobs.output.results import StoredRow, StoredRun

CHUNK = 1000
CHUNK_CHARACTERS, MOST_CHARACTERS = 8 << 20, 256 << 20  # of all texts in a chunk, in the page
LONGEST_TEXT = 20_000  # characters of one cell
_Scores = Mapping[str, RowScore]


@dataclass(frozen=True, slots=True)
class PageRow:
    """One row of the page: the prompt, and the answers of each run."""

    key: str
    row: int
    prompt: str
    truth: str | None
    columns: Mapping[str, str | None]
    sides: Sequence[tuple[StoredRow, _Scores] | None]
    pictures: tuple[str, ...] = ()  # thumbnails of its images, JPEGs in base64

    @property
    def num_characters(self) -> int:
        """About how many characters of the page it takes."""
        texts = [len(text or "") + len(name) for name, text in self.columns.items()]
        answers = [min(len(t), LONGEST_TEXT) for s in self.sides if s for t in s[0].record.outputs]
        return len(self.prompt) + sum(texts) + sum(answers) + sum(map(len, self.pictures))


def page_row(
    run: StoredRun,
    key: str,
    row: StoredRow,
    sides: Sequence[tuple[StoredRow, _Scores] | None],
    truth: str | None,
    pictures: tuple[str, ...] = (),
) -> PageRow:
    """The row as asked by `run`."""
    wanted = row.columns.get(truth) if truth else None
    return PageRow(
        key=key,
        row=row.record.row,
        prompt=_short(run.prompt(row)),
        truth=None if wanted is None else _text(wanted),
        columns={name: _text(value) for name, value in row.columns.items()},
        sides=sides,
        pictures=pictures,
    )


def chunks(rows: Iterable[PageRow], metrics: Sequence[Sequence[str]]) -> Iterator[tuple[int, str]]:
    """Chunks as (number of rows, base64 of gzip); `metrics` are those of each run. It ends early if
    the page would become too large for a browser."""
    rows, left = iter(rows), MOST_CHARACTERS
    while left > 0 and (table := _chunk(rows, min(left, CHUNK_CHARACTERS))):
        left -= sum(row.num_characters for row in table)
        content = json_line(_table(table, metrics))
        # Without a time stamp, so that the same run makes the same page.
        yield len(table), base64.b64encode(gzip.compress(content, 6, mtime=0)).decode()


def _chunk(rows: Iterator[PageRow], room: int) -> list[PageRow]:
    table: list[PageRow] = []
    while room > 0 and len(table) < CHUNK and (row := next(rows, None)) is not None:
        table.append(row)
        room -= row.num_characters
    return table


def _table(rows: Sequence[PageRow], metrics: Sequence[Sequence[str]]) -> dict[str, Any]:
    names = dict.fromkeys(name for row in rows for name in row.columns)
    return {
        "key": [row.key for row in rows],
        "row": [row.row for row in rows],
        "prompt": [row.prompt for row in rows],
        "truth": [row.truth for row in rows],
        **({"pictures": [row.pictures for row in rows]} if any(r.pictures for r in rows) else {}),
        "columns": {name: [row.columns.get(name) for row in rows] for name in names},
        "sides": [
            _side([row.sides[number] for row in rows], names_of_side)
            for number, names_of_side in enumerate(metrics)
        ],
    }


def _side(
    rows: Sequence[tuple[StoredRow, _Scores] | None], metrics: Sequence[str]
) -> dict[str, Any]:
    def each(value: Any) -> list[Any]:
        return [None if row is None else value(row[0]) for row in rows]

    return {
        "outputs": each(lambda row: [_short(text) for text in row.record.outputs]),
        "finish": each(lambda row: list(row.record.finish_reasons)),
        "prompt_tokens": each(lambda row: row.record.prompt_tokens),
        "output_tokens": each(lambda row: row.record.output_tokens),
        "error": each(lambda row: row.record.error or "" if row.record.failed else None),
        "error_type": each(lambda row: row.record.error_type),
        "choices": each(lambda row: row.continuations or None),
        "scores": {
            metric: [None if row is None else _score(row[1].get(metric)) for row in rows]
            for metric in metrics
        },
    }


def _score(score: RowScore | None) -> list[Any] | None:
    if score is None or score.value is None:
        return None
    return [score.value, score.read, score.reason]


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return None if value is None else _short(value)
    return _short(json_line(value).decode().strip())


def _short(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]}\n… {len(text) - LONGEST_TEXT:,} more characters, in the output"


def as_json(value: Any) -> str:
    """JSON that is safe inside a script element: no tag can begin in it."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
