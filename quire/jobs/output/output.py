"""The finished output: written under another name, counted, then renamed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from quire.errors import CorruptJob, InvalidOption
from quire.jobs.output.columns import ResultColumns
from quire.jobs.output.joined import joined
from quire.jobs.output.json_line import json_line
from quire.jobs.store.durable import replacing
from quire.jobs.store.manifest import Manifest
from quire.jobs.store.segments import ResultIndex

FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
ROW_GROUP = 8192


def output_format(output: Path) -> str:
    found = FORMATS.get(output.suffix.lower())
    if found is None:
        raise InvalidOption(
            f"the output {str(output)!r} ends in none of {', '.join(FORMATS)}; the ending tells "
            "the format. For others, `quire export` writes a finished output as .csv",
            parameter="output",
            value=str(output),
        )
    return found


def write_output(job_dir: Path, manifest: Manifest, index: ResultIndex, num_rows: int) -> None:
    """Write the whole output in the order of the input; CorruptJob if a row is missing."""
    with replacing(Path(manifest.output), shared=True) as file:
        if manifest.output_format == "parquet":
            written = _write_parquet(file, job_dir, manifest, index)
        else:
            written = _write_lines(file, job_dir, manifest, index)
        check_complete(written, num_rows)


def check_complete(written: int, num_rows: int) -> None:
    """Raise CorruptJob if a row is missing, before the output has its name."""
    if written != num_rows:
        raise CorruptJob(
            f"the output would have {written} rows, and the job has {num_rows}; it was not "
            "written. Run the same command: what is missing is computed again."
        )


def _write_lines(file: BinaryIO, job_dir: Path, manifest: Manifest, index: ResultIndex) -> int:
    columns, written = ResultColumns(manifest), 0
    for values, record in joined(job_dir, manifest, index):
        file.write(json_line({**values, **columns.values(record)}))
        written += 1
    return written


def _write_parquet(file: BinaryIO, job_dir: Path, manifest: Manifest, index: ResultIndex) -> int:
    from pyarrow import ArrowException, Table, parquet

    from quire.jobs.output.arrow_table import batches

    written = 0
    try:
        schema, found = batches(job_dir, manifest, index)
        with parquet.ParquetWriter(file, schema, compression="zstd", version="2.6") as writer:
            for group in _groups(found):
                writer.write_table(Table.from_batches(group, schema), row_group_size=ROW_GROUP)
                written += sum(batch.num_rows for batch in group)
    except ArrowException as error:
        raise InvalidOption(
            f"the table does not go into Parquet: {error}. No result is lost: the same command "
            f"with an OUTPUT that ends in .jsonl, --job {job_dir} and --reuse writes them as lines "
            "of JSON.",
            parameter="output",
            value=manifest.output,
        ) from error
    return written


def _groups(batches: Iterator[Any]) -> Iterator[list[Any]]:
    """Batches in lists of exactly ROW_GROUP rows each; the last list may have fewer."""
    group: list[Any] = []
    room = ROW_GROUP
    for batch in batches:
        while batch.num_rows >= room:
            yield [*group, batch.slice(0, room)]
            batch, group, room = batch.slice(room), [], ROW_GROUP
        if batch.num_rows:
            group.append(batch)
            room -= batch.num_rows
    if group:
        yield group
