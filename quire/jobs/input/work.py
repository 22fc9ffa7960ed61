"""The work of a job: rows of the input, selected, given keys, and made into requests.

One input row makes one work row per sampling setting. Rows that are done are skipped without
being parsed; the whole input is never in memory.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from quire.jobs.input.files import InputFile, read_rows
from quire.jobs.input.plain import askable
from quire.jobs.input.rows import BadRow, InputRow
from quire.jobs.input.templates import RowTest
from quire.jobs.store.keys import ContentHash, KeyTable, row_seed
from quire.jobs.supervise.evaluation_limit import EvaluationLimit
from quire.params.rules import show

LONGEST_ID = 1 << 16  # characters that name a row


class Asking(Protocol):
    """What makes a request of a row; raises BadRow."""

    def ask(self, row: Mapping[str, Any]) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class WorkRow:
    """One row to answer: `asked` goes to the engine, or `error` says why it cannot be asked."""

    row: int
    key: str
    content: str
    asked: Mapping[str, Any]
    error: BadRow | None = None
    size: int = 0  # bytes, about


@dataclass(frozen=True, slots=True)
class Setting:
    """One way of sampling: its name (None if it is the only one) and its parameters."""

    name: str | None
    params: Mapping[str, Any]

    @property
    def draws(self) -> bool:
        """Whether its answers depend on noise."""
        said = self.params.get("temperature", 0.0)  # of a transcript, a list to try in turn
        return max(map(float, said if isinstance(said, list) else [said])) > 0.0


@dataclass(frozen=True, slots=True)
class Selection:
    where: str | None = None
    limit: int | None = None
    shard: tuple[int, int] | None = None
    id_column: str | None = None

    def in_shard(self, number: int) -> bool:
        return self.shard is None or number % self.shard[1] == self.shard[0] - 1

    def expected(self, num_rows: int) -> int | None:
        """How many of so many input rows are selected; None if they must be read to know that."""
        if self.where is not None:
            return None
        index, count = self.shard or (1, 1)
        mine = len(range(index - 1, num_rows, count))
        return mine if self.limit is None else min(mine, self.limit)


class Done(Protocol):
    def __contains__(self, row: int) -> bool: ...


class Work:
    """Reads the input once, from the start, and gives every work row that is not done."""

    def __init__(
        self,
        files: Sequence[InputFile],
        asking: Asking,
        settings: Sequence[Setting],
        selection: Selection,
        *,
        seed: int,
        common: Any,
        reserved: frozenset[str],
        done: Done,
    ) -> None:
        """`common` is part of every row's content hash; `reserved` are the columns that the output
        adds, which no row may have."""
        self._files, self._asking, self._settings = files, asking, settings
        self._selection, self._seed, self._done = selection, seed, done
        self._hashes = [ContentHash([common, dict(s.params)]) for s in settings]
        self._reserved = reserved
        self._where = None if selection.where is None else RowTest(selection.where, "--where")
        self._ids = None if selection.id_column is None else KeyTable()
        self.evaluation_limit = EvaluationLimit()  # limits the time of each template evaluation
        self.num_selected = 0  # input rows so far
        self.finished = False

    @property
    def num_rows(self) -> int:
        """Work rows so far, the done ones included."""
        return self.num_selected * len(self._settings)

    def rows(self) -> Generator[WorkRow]:
        """The rows that are left, in the order of the input."""
        for row in self._within(read_rows(self._files, self._wanted)):
            yield from self.made(row)
        self.finished = True

    def first_rows(self, count: int) -> Generator[tuple[InputRow, BadRow | None]]:
        """The selected ones of the first `count` input rows, each with its error, if it has one."""
        for row in self._within(islice(read_rows(self._files), count)):
            for made in islice(self.made(row), 1):
                yield row, made.error

    def _within(self, rows: Iterable[InputRow]) -> Iterator[InputRow]:
        """The rows of this shard, up to the limit."""
        limit = self._selection.limit
        for row in rows:
            if limit is not None and self.num_selected >= limit:
                break
            if self._selection.in_shard(row.number):
                yield row

    def total(self, num_input_rows: int | None) -> int | None:
        """The number of all work rows, as far as it is known by now."""
        if self.finished:
            return self.num_rows
        if num_input_rows is None:
            return None
        expected = self._selection.expected(num_input_rows)
        return None if expected is None else expected * len(self._settings)

    def _wanted(self, number: int) -> bool:
        """Whether a row's values are needed."""
        if not self._selection.in_shard(number):
            return False
        return self._ids is not None or not self._all_done(number)

    def _all_done(self, number: int) -> bool:
        first = number * len(self._settings)
        return all(first + i in self._done for i in range(len(self._settings)))

    def made(self, row: InputRow) -> Iterator[WorkRow]:
        """The work rows of one input row that are not done yet."""
        if self._ids is None and self._all_done(row.number):
            self.num_selected += 1
            return
        error, key, values = row.error, row.key, row.values or {}
        if error is None:
            try:
                if not self._counts(values):
                    return
                key = self._key(row, values)
                self._check_columns(values)
            except BadRow as bad:
                error = bad
            except Exception as strange:  # whatever a row holds, the error is that of the row
                error = _unforeseen(strange)
        self.num_selected += 1
        for i, setting in enumerate(self._settings):
            number = row.number * len(self._settings) + i
            if number not in self._done:
                named = key if setting.name is None else f"{key}#{setting.name}"
                yield self._work_row(number, named, values, i, error)

    def _counts(self, values: Mapping[str, Any]) -> bool:
        where = self._where
        return where is None or self.evaluation_limit.allow(lambda: where.holds(values))

    def _work_row(
        self, number: int, key: str, values: Mapping[str, Any], i: int, error: BadRow | None
    ) -> WorkRow:
        if error is not None:
            return WorkRow(number, key, "", {}, error)
        seed = row_seed(self._seed, key) if self._settings[i].draws else None
        try:
            asked = self.evaluation_limit.allow(lambda: askable(self._asking.ask(values)))
            content, size = self._hashes[i].of(asked, seed)
        except BadRow as bad:
            return WorkRow(number, key, "", {}, bad)
        except Exception as strange:  # as above
            return WorkRow(number, key, "", {}, _unforeseen(strange))
        if i or len(self._settings) > 1:
            asked = {**asked, "setting": i}
        if seed is not None:
            asked = {**asked, "seed": seed}
        return WorkRow(number, key, content, asked, size=size)

    def _key(self, row: InputRow, values: Mapping[str, Any]) -> str:
        column = self._selection.id_column
        if column is None or self._ids is None:
            return row.key
        found = values.get(column)
        if isinstance(found, bool) or not isinstance(found, str | int) or found == "":
            raise BadRow("missing_id", f"column {column!r} has no text or whole number to name it")
        if len(named := str(found)) > LONGEST_ID:
            raise BadRow(
                "missing_id",
                f"column {column!r} has {len(named)} characters; a name may have {LONGEST_ID}",
            )
        if self._ids.put(named, row.number):
            raise BadRow("duplicate_id", f"an earlier row has the same {column!r}: {show(found)}")
        return named

    def _check_columns(self, values: Mapping[str, Any]) -> None:
        if clash := sorted(self._reserved & values.keys()):
            raise BadRow(
                "column_clash",
                f"the row has a column {clash[0]!r}, which the output adds; rename it, or set "
                "--output-column",
            )


def _unforeseen(error: Exception) -> BadRow:
    """An unexpected error, as the error of the row that raised it."""
    return BadRow("row_error", f"the row cannot be asked: {type(error).__name__}: {error}")
