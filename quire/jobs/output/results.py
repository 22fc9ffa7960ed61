"""The stored results of one run, row by row, for scoring, reports and exports.

A run is a job (its OUTPUT or its directory), or any table with a column of answers; a table has no
manifest and no metrics.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from quire.base.notes import note
from quire.errors import InvalidOption
from quire.jobs.input.files import find_files
from quire.jobs.input.files import read_rows as read_input_rows
from quire.jobs.input.prompts import PromptMaker, rendered_prompt
from quire.jobs.input.rows import BadRow
from quire.jobs.output.columns import SETTING, ResultColumns
from quire.jobs.output.joined import joined
from quire.jobs.store.manifest import Manifest
from quire.jobs.store.record import ResultRecord
from quire.jobs.store.segments import ResultIndex, index_of
from quire.jobs.store.store import job_dir_of

OUTPUT_COLUMN = "output"
_SCORES_OF_A_TABLE = ".scores"


@dataclass(frozen=True, slots=True)
class StoredRow:
    """One row: the input's columns, its answers or error, its choices with log-probabilities."""

    columns: Mapping[str, Any]
    record: ResultRecord
    continuations: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class StoredRun:
    """One run on disk. `home` is where scores are kept: the job directory, or beside a table."""

    path: Path
    home: Path
    manifest: Manifest | None
    output_column: str = OUTPUT_COLUMN

    @classmethod
    def open(cls, path: str | Path, *, output_column: str | None = None) -> StoredRun:
        """The run at an OUTPUT, a job directory, or a table with a column `output_column`."""
        given, path = path, Path(path)
        try:
            job_dir = job_dir_of(given)
        except InvalidOption:
            if not path.is_file():
                raise
            home = path.with_name(path.name + _SCORES_OF_A_TABLE)
            return cls(path, home, None, output_column or OUTPUT_COLUMN)
        manifest = Manifest.load(job_dir)
        run = cls(path, job_dir, manifest, manifest.output_column)
        if manifest.status != "finished" and run.index is not None:
            so_far = sum(run.index.counts())
            note(f"{path} is not finished: what is read are the {so_far:,} rows answered so far")
        return run

    @property
    def name(self) -> str:
        """The name to show for the run: the file name of its output."""
        return Path(self.manifest.output).name if self.manifest else self.path.name

    @cached_property
    def index(self) -> ResultIndex | None:
        """Where each row's result is; None for a table."""
        if self.manifest is None:
            return None
        return index_of(self.home, self.manifest)

    def rows(self) -> Iterator[StoredRow]:
        """Every row that has a result, in the order of the input."""
        if self.manifest is None or self.index is None:
            yield from self._table_rows()
            return
        settings = [str(setting["name"]) for setting in self.manifest.settings]
        for values, record in joined(self.home, self.manifest, self.index):
            columns = (
                {**values, SETTING: settings[record.row % len(settings)]} if settings else values
            )
            yield StoredRow(columns, record, self._continuations(columns, record))

    def prompt(self, row: StoredRow) -> str:
        """The prompt of this row as readable text; empty for a table."""
        manifest = self.manifest
        if manifest is None:
            return ""
        body = row.columns.get("body") if manifest.kind == "batch" else None
        if not isinstance(body, Mapping):
            return rendered_prompt(manifest, row.columns)
        if "messages" in body:
            return rendered_prompt(manifest.changed(messages="messages"), body)
        prompt = body.get("prompt", "")
        return prompt if isinstance(prompt, str) else json.dumps(prompt)

    def table_row(self, row: StoredRow) -> dict[str, Any]:
        if self.manifest is None:
            return dict(row.columns)
        return {**row.columns, **self._added.values(row.record)}

    @cached_property
    def _added(self) -> ResultColumns:
        if self.manifest is None:
            raise InvalidOption(f"{self.path} is a table, not a job")
        return ResultColumns(self.manifest)

    @cached_property
    def _maker(self) -> PromptMaker | None:
        """Makes the prompts of rows again, for a job with continuations to score."""
        manifest = self.manifest
        if manifest is None or manifest.continuations is None:
            return None
        return PromptMaker(prompt=None, continuations=manifest.continuations)

    def _continuations(
        self, columns: Mapping[str, Any], record: ResultRecord
    ) -> tuple[tuple[str, float], ...]:
        scores = record.extra.get("continuations")
        if self._maker is None or not scores:
            return ()
        try:
            texts = self._maker.ask(columns)["continuations"]
        except BadRow:
            return ()
        # The space between question and answer does not count for the length of the answer.
        return tuple(
            (text.removeprefix(" "), float(logprob))
            for text, logprob in zip(texts, scores["logprobs"], strict=True)
        )

    def _table_rows(self) -> Iterator[StoredRow]:
        for row in read_input_rows(find_files([str(self.path)])):
            values = dict(row.values or {})
            if self.output_column not in values and row.error is None:
                raise InvalidOption(
                    f"{self.path} has no column {self.output_column!r} (it has "
                    f"{', '.join(values)}); --output-column names the one with the answers",
                    parameter="output_column",
                    value=self.output_column,
                )
            output = values.get(self.output_column)
            texts = output if isinstance(output, list) else [output]
            failed = row.error is not None or output is None
            yield StoredRow(
                values,
                ResultRecord(
                    row=row.number,
                    key=str(row.number),
                    content="",
                    epoch=0,
                    outputs=() if failed else tuple(str(text) for text in texts),
                    error=str(row.error or values.get("error") or "no answer") if failed else None,
                    error_type=str(values.get("error_type") or "no_output") if failed else None,
                ),
            )
