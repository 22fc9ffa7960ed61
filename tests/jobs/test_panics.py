"""What a tokenizer or a template raises for one row, whatever it is, costs that row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quire.errors import EngineError, InvalidParams, InvalidPrompt, NotEnoughMemory, RowError
from quire.jobs.child.requests import failed, row_error, sampling_params
from quire.jobs.job import Job
from tests.jobs import drive
from tests.jobs.driving import read_lines, write_rows
from tests.jobs.panicking import PanicException

TEXTS = ["good 0", "panic", "good 2", "raise", "deep", "good 5"]
WRONG = {"panic": "unwrap", "raise": "foresaw", "deep": "too deeply"}


@pytest.mark.parametrize("model", ["fake", "fake:chat=1"])
@pytest.mark.parametrize("options", [{}, {"continuations": ["yes", "no"]}])
def test_a_panic_costs_its_row_and_not_the_engine(
    tmp_path: Path, model: str, options: dict[str, Any]
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    write_rows(source, len(TEXTS), TEXTS.__getitem__)
    job = Job(source, output, model=model, prompt="{{ text }}", max_tokens=2, **options)
    job._engine_command = drive.command("tests.jobs.panicking:make")
    report = job.run(progress=False)
    assert (report.num_ok, report.num_failed, report.num_restarts) == (3, 3, 0)
    for row in read_lines(output):
        if row["text"] in WRONG:
            assert WRONG[row["text"]] in row["error"]
            assert row["error_type"] in ("row_error", "invalid_prompt")
        else:
            assert row["error"] is None


@pytest.mark.parametrize(
    "error",
    [MemoryError(), KeyboardInterrupt(), SystemExit(1), NotEnoughMemory("no"), EngineError("gone")],
)
def test_what_is_about_the_process_is_no_row_s_fault(error: BaseException) -> None:
    with pytest.raises(type(error)):
        row_error(error)


def test_an_error_of_a_row_says_what_it_was() -> None:
    typed = InvalidPrompt("no")
    assert row_error(typed) is typed
    made = row_error(PanicException("row 7"))
    assert isinstance(made, RowError) and "row 7" not in str(made)  # servers send it elsewhere
    assert failed(7, made)["error"].endswith("PanicException: row 7")  # a job's owner sees it


@pytest.mark.parametrize(
    ("name", "meant"),
    [("temprature", "Did you mean 'temperature'"), ("max_new_tokens", "max_tokens")],
)
def test_a_parameter_that_there_is_not_says_what_was_meant(name: str, meant: str) -> None:
    with pytest.raises(InvalidParams, match=f"no sampling parameter '{name}'. .*{meant}"):
        sampling_params({name: 1})
