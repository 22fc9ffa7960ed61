"""Jobs that need no engine start none: every row is answered already, or none can be asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quire.errors import JobChanged
from quire.jobs.store.manifest import Manifest
from quire.jobs.store.stamps import FileStamp
from tests.jobs.driving import read_lines, write_rows
from tests.jobs.test_job import answer, job_dir, make

NO_ENGINE = ("false",)  # in place of the command that starts an engine


@pytest.mark.parametrize(
    ("rows", "options", "num_failed"),
    [
        ([], {}, 0),
        ([{"text": "a"}], {"where": "text == 'b'"}, 0),
        ([{"text": "a", "n": 0}, {"text": "b", "n": 0}], {"prompt": "{{ 1 / n }}"}, 2),
    ],
    ids=["an empty input", "none selected", "none that can be asked"],
)
def test_a_job_without_a_row_for_an_engine_starts_none(
    tmp_path: Path, rows: list[Any], options: dict[str, Any], num_failed: int
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = make(source, output, **options)
    job._engine_command = NO_ENGINE
    report = job.run(progress=False)
    assert (report.num_failed, report.num_ok) == (num_failed, 0) and output.exists()


def test_reuse_of_every_row_starts_no_engine(tmp_path: Path) -> None:
    source, output = write_rows(tmp_path / "in.jsonl", 12), tmp_path / "out.jsonl"
    answer(source, output)
    lines = source.read_text().splitlines(keepends=True)
    source.write_text("".join(reversed(lines)))
    job = make(source, output, reuse=True)
    job._engine_command = NO_ENGINE
    assert job.run(progress=False).num_ok == 12
    assert [row["text"] for row in read_lines(output)] == [f"row {i}" for i in range(12)][::-1]


def test_answers_of_a_model_that_changed_are_not_written_out_unseen(tmp_path: Path) -> None:
    source, output = write_rows(tmp_path / "in.jsonl", 2), tmp_path / "out.jsonl"
    answer(source, output)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"old")
    manifest = Manifest.load(job_dir(output))
    manifest.changed(model_files=(FileStamp.of(weights).hashed(),)).save(job_dir(output))
    output.unlink()
    weights.write_bytes(b"other")
    job = make(source, output)
    job._engine_command = NO_ENGINE
    with pytest.raises(JobChanged, match=r"model\.safetensors"):
        job.run(progress=False)
    assert not output.exists()
