"""The job directory of a batch: the same journal, manifest and records that `quire run` keeps, so
that `quire show` and `quire report` read it.

These calls block, and only one thread may make them at a time. The input in the directory is a hard
link to the uploaded file (or a copy), so the directory stays complete when that file is deleted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from quire.base.version import __version__
from quire.errors import JobChanged
from quire.jobs.input.files import find_files
from quire.jobs.input.rows import BadRow
from quire.jobs.input.work import Selection, Setting, Work, WorkRow
from quire.jobs.output.json_line import json_line
from quire.jobs.store.durable import make_directory, replacing, sync_directory
from quire.jobs.store.journal import Journal
from quire.jobs.store.lock import JobLock
from quire.jobs.store.manifest import NAME as MANIFEST
from quire.jobs.store.manifest import Manifest
from quire.jobs.store.record import ResultRecord
from quire.jobs.store.segments import RecordReader
from quire.jobs.store.stamps import FileStamp
from quire.jobs.supervise.metrics import MetricsFile
from quire.openai_api.fields import MESSAGES
from quire.params.rules import show
from quire.server.batch_engine import EngineFacts
from quire.server.batch_input import line_ids
from quire.server.batch_lines import SUMMED, line_of
from quire.server.batches import StoredBatch
from quire.server.storage import second_name

_UNANSWERED_GROUP = 4096  # lines without an answer that are synced together
_ABOUT_MODEL = ("model", "model_files", "tokenizer_files")


class LineAsking:
    """The request of a line is its body, which BatchEngine reads later."""

    def ask(self, row: Mapping[str, Any]) -> dict[str, Any]:
        if row.get("method", "POST") != "POST":
            raise BadRow("invalid_request", f"the method is POST, not {show(row['method'])}")
        if not isinstance(body := row.get("body"), Mapping):
            raise BadRow("invalid_request", "the line has no body, which is an object")
        return {"body": body}


@dataclass(frozen=True, slots=True)
class Written:
    path: Path
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a batch: its files (None instead of an empty one) and its counts."""

    output: Written | None
    errors: Written | None
    completed: int
    failed: int
    usage: dict[str, Any]
    causes: Mapping[str, int]  # type of error -> number of failed lines


def file_name(batch: StoredBatch, kind: str) -> str:
    """The name of a file of the batch, in its directory and for clients."""
    return f"{batch.id}_{kind}.jsonl"


def needed_files(batch: StoredBatch, directory: Path) -> list[Path]:
    """The files without which a batch that has begun cannot continue."""
    return [directory / MANIFEST, directory / file_name(batch, "input")]


def begin(
    batch: StoredBatch, directory: Path, source: Path, facts: EngineFacts, num_rows: int
) -> None:
    """Make the directory, its input and its manifest, or complete what a kill left of them."""
    make_directory(directory)
    kept = directory / file_name(batch, "input")
    second_name(source, kept)
    if (directory / MANIFEST).exists():
        return
    stamp = FileStamp.of(kept)
    Manifest(
        version=__version__,
        id=batch.id,
        created=datetime.fromtimestamp(batch.created_at, UTC).isoformat(timespec="seconds"),
        command=("quire", "serve", facts.model),
        kind="batch",
        # Names without folders: readers look in the job's directory, and a report for a client
        # must not show where the server keeps its files.
        inputs=(FileStamp(kept.name, stamp.size, stamp.stamp, batch.input_sha256),),
        chat=False,
        id_column="custom_id",
        output=file_name(batch, "output"),
        output_format="batch",
        num_rows=num_rows,
        **_model(facts),
    ).save(directory)


def _model(facts: EngineFacts) -> dict[str, Any]:
    def stamps(given: Sequence[Mapping[str, Any]]) -> tuple[FileStamp, ...]:
        return tuple(FileStamp(**each) for each in given)

    return {
        "model": facts.model,
        "model_files": stamps(facts.model_files),
        "tokenizer_files": stamps(facts.tokenizer_files),
        "arithmetic": dict(facts.arithmetic),
    }


class BatchJob:
    def __init__(self, batch: StoredBatch, directory: Path) -> None:
        self._batch, self._directory = batch, directory
        self._closing = ExitStack()

    def open(self) -> None:
        """Open the journal. The caller calls `close` even if this fails."""
        self._manifest = Manifest.load(self._directory)
        lock = JobLock.take(self._directory)
        self._closing.callback(lock.release)
        first_epoch, job = self._manifest.first_epoch, self._manifest.id
        self._journal = Journal.open(self._directory, lock, first_epoch=first_epoch, job=job)
        self._closing.callback(self._journal.close)
        self.epoch = lock.epoch  # read here, after the journal raised it above all records
        self._metrics = MetricsFile(self._directory)
        self._closing.callback(self._metrics.close)
        self._completed, self._failed = self._journal.index.counts()
        self._rows = self._left()

    def check_model(self, facts: EngineFacts) -> None:
        """Raise JobChanged if the existing rows were answered by another model, or in another
        arithmetic."""
        now = self._manifest.changed(**_model(facts))
        differences = [
            line
            for line in self._manifest.differences(now)[0]
            if line.partition(":")[0].partition(".")[0] in _ABOUT_MODEL
        ]
        then, arithmetic = self._manifest.arithmetic, now.arithmetic
        differences += [
            f"{name}: {then.get(name)!r} -> {arithmetic.get(name)!r}"
            for name in sorted({*then, *arithmetic})
            if then.get(name) != arithmetic.get(name)
        ]
        if differences:
            raise JobChanged("; ".join(differences))

    def _path(self, kind: str) -> Path:
        return self._directory / file_name(self._batch, kind)

    def _left(self) -> Iterator[WorkRow]:
        work = Work(
            find_files([str(self._path("input"))]),
            LineAsking(),
            [Setting(None, {})],
            Selection(id_column="custom_id"),
            seed=0,
            common="batch",
            reserved=frozenset(),
            done=self._journal.index,
        )
        return work.rows()

    def next_rows(self, most: int, most_bytes: int) -> list[WorkRow]:
        """Rows that have no result yet, in the order of the input; none when there are no more."""
        rows: list[WorkRow] = []
        size = 0
        while len(rows) < most and size < most_bytes:
            row = next(self._rows, None)
            if row is None:
                break
            rows.append(row)
            size += row.size
        return rows

    def keep(self, records: Sequence[ResultRecord]) -> tuple[int, int]:
        """Make the records durable; returns how many rows succeeded so far, and how many failed."""
        for record in records:
            self._append(record)
        self._journal.commit()
        return self.counts()

    def _append(self, record: ResultRecord, *, group: int = 0) -> ResultRecord:
        kept = self._journal.append(record, group=group)
        self._completed += not kept.failed
        self._failed += kept.failed
        return kept

    def counts(self) -> tuple[int, int]:
        """Rows in the journal: how many succeeded, and how many failed."""
        return self._completed, self._failed

    def tell(self, metrics: Mapping[str, Any]) -> None:
        """Write a line of metrics, for the curves of the report."""
        self._metrics.append(dict(metrics))

    def write(self, unanswered: tuple[str, str] | None = None) -> Outcome:
        """Write the batch's files in the order of the input; they are durable when this returns. A
        batch of messages has one file for answers and errors. `unanswered` is the code and the
        message of an error that every row without a result gets."""
        usage, causes = _Usage(), dict[str, int]()
        apart, endpoint = self._batch.endpoint != MESSAGES, self._batch.endpoint
        with ExitStack() as stack:
            answers = stack.enter_context(_writing(self._path("output")))
            errors = stack.enter_context(_writing(self._path("error")))
            reader = stack.enter_context(RecordReader(self._directory))
            for record in self._records(reader, unanswered):
                lines = errors if record.failed and apart else answers
                lines.add(line_of(endpoint, self._batch.id, record))
                usage.add(record)
                if record.failed:
                    cause = str(record.error_type)
                    causes[cause] = causes.get(cause, 0) + 1
        completed, failed = self.counts()
        self._manifest = self._manifest.changed(
            status="finished", num_rows=completed + failed, num_failed=failed
        )
        self._manifest.save(self._directory)
        return Outcome(
            answers.written(), errors.written(), completed, failed, usage.as_object(), causes
        )

    def _records(
        self, reader: RecordReader, unanswered: tuple[str, str] | None
    ) -> Iterator[ResultRecord]:
        """The records of all rows. New ones are not read back from the journal, nor are the bodies
        of their rows read from the input: most of the time would go there."""
        index = self._journal.index
        if unanswered is None:
            yield from map(reader.read, index.positions())
            return
        code, message = unanswered
        for row, key in line_ids(self._path("input")):
            if (position := index.position(row)) is not None:
                yield reader.read(position)
            else:
                record = ResultRecord(row, key, "", self.epoch, error=message, error_type=code)
                yield self._append(record, group=_UNANSWERED_GROUP)
        self._journal.commit()

    def close(self) -> None:
        self._closing.close()


class _Usage:
    def __init__(self) -> None:
        self._prompt = self._output = 0
        self._summed = dict.fromkeys(SUMMED, 0)

    def add(self, record: ResultRecord) -> None:
        self._prompt += record.prompt_tokens
        self._output += record.output_tokens
        for name in SUMMED:
            count = record.extra.get(name)
            self._summed[name] += count if type(count) is int else 0

    def as_object(self) -> dict[str, Any]:
        return {
            "input_tokens": self._prompt,
            "input_tokens_details": {"cached_tokens": self._summed["cached_tokens"]},
            "output_tokens": self._output,
            "output_tokens_details": {"reasoning_tokens": self._summed["reasoning_tokens"]},
            "total_tokens": self._prompt + self._output,
        }


class _Lines:
    """Lines on their way into a file."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file = path, file
        self._hash, self.size = hashlib.sha256(), 0

    def add(self, line: Mapping[str, Any]) -> None:
        data = json_line(line)
        self._hash.update(data)
        self.size += len(data)
        self._file.write(data)

    def written(self) -> Written | None:
        if not self.size:
            return None
        return Written(self._path, self.size, self._hash.hexdigest())


@contextmanager
def _writing(path: Path) -> Iterator[_Lines]:
    """A file that gets its name, complete and durable, if the block succeeds; an empty one is
    dropped."""
    with replacing(path) as file:
        lines = _Lines(path, file)
        yield lines
    if not lines.size:
        path.unlink()
        sync_directory(path.parent)
