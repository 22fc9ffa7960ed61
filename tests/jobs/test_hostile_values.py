"""More than 700 values that nobody means well with, from the file to the output: each costs its
own row at most, with an error of a known type, and never the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc

from quire.errors import InvalidOption
from quire.jobs.job import Job
from quire.jobs.output import arrow_table
from tests.jobs import drive, hostile
from tests.jobs.instant import InstantEngine

TYPES = {
    *("malformed_row", "row_too_long", "missing_column", "template_error", "row_error"),
    "null_value",
    *("invalid_prompt", "prompt_too_long", "invalid_params", "invalid_grammar", "not_supported"),
    *("invalid_request", "grammar_failed", None),
}
GOOD = b'{"value": "good", "talk": [{"role": "user", "content": "good"}]}'


def answered(source: Path | list[Path], output: Path, **options: Any) -> list[dict[str, Any]]:
    """The rows of the output; the engine never fell, and nothing is there that nobody foresaw."""
    job = Job(source, output, model="fake:chat=1", max_tokens=2, **options)
    job._engine_command = drive.command()
    report = job.run(progress=False)
    assert report.num_restarts == 0
    rows = [] if options.get("batch") else read_lines(output)
    assert {row["error_type"] for row in rows} <= TYPES
    return rows


def read_lines(path: Path) -> list[dict[str, Any]]:
    """By line feeds alone: a text may hold any other sign that ends a line elsewhere."""
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]


def write(path: Path, lines: list[bytes]) -> Path:
    path.write_bytes(b"\n".join([GOOD, *lines, GOOD]) + b"\n")
    return path


def test_json_of_every_kind_in_a_prompt(tmp_path: Path) -> None:
    lines = [f'{{"value": {value}}}'.encode() for value in hostile.JSON_VALUES]
    lines += [line for line in hostile.LINES if line.strip()]
    source = write(tmp_path / "in.jsonl", lines)
    rows = answered(source, tmp_path / "o.jsonl", prompt="{{ value }}")
    assert len(rows) == len(lines) + 2
    assert rows[0]["error"] is None and rows[-1]["output"] == rows[0]["output"]
    assert sum(row["error"] is None for row in rows) >= 60
    array = tmp_path / "in.json"
    array.write_text("[" + ", ".join(f'{{"value": {v}}}' for v in hostile.JSON_VALUES) + "]")
    elements = answered(array, tmp_path / "a.jsonl", prompt="{{ value }}")
    both = zip(rows[1:], elements, strict=False)
    assert all(one["error_type"] == other["error_type"] for one, other in both)


@pytest.mark.parametrize("as_text", [False, True])
def test_json_of_every_kind_in_a_conversation(tmp_path: Path, as_text: bool) -> None:
    """Objects of the row, and JSON text in a column, as CSV files have it."""
    values = hostile.JSON_VALUES[:: 3 if as_text else 1]
    talks = [place % value for place in hostile.PLACES for value in values]
    lines = [f'{{"talk": {json.dumps(talk) if as_text else talk}}}'.encode() for talk in talks]
    source = write(tmp_path / "in.jsonl", lines)
    rows = answered(source, tmp_path / "o.jsonl", messages="talk")
    assert len(rows) == len(lines) + 2 and (as_text or len(lines) >= 700)
    assert rows[0]["error"] is None and rows[-1]["output"] == rows[0]["output"]


def test_every_field_of_a_batch_line(tmp_path: Path) -> None:
    chat = '"messages": [{"role": "user", "content": "x"}]'
    lines = [
        f'{{"custom_id": "{name} {i}", "url": "/v1/chat/completions", "body": '
        f'{{{chat}, "max_tokens": 2, "temperature": 0, "{name}": {value}}}}}'
        for name in hostile.FIELDS
        for i, value in enumerate(hostile.FIELD_VALUES)
    ]
    source, output = tmp_path / "in.jsonl", tmp_path / "o.jsonl"
    source.write_text("\n".join(lines) + "\n")
    answered(source, output, batch=True, id="custom_id")
    errors = read_lines(tmp_path / "o.errors.jsonl")
    rejected = [line["response"]["body"]["error"] for line in errors if line["error"] is None]
    failed = [line["error"] for line in errors if line["error"] is not None]
    assert {error["code"] for error in rejected + failed} <= TYPES
    assert len(errors) + len(read_lines(output)) == len(lines) >= 700


def write_arrow(path: Path, column: pa.Array, name: str = "value") -> Path:
    """Beside a column of good text, in a file that no check was made of."""
    batch = pa.RecordBatch.from_arrays([pa.array(["a", "b", "c"]), column], names=["text", name])
    with ipc.new_file(path, batch.schema) as writer:
        writer.write_batch(batch)
    return path


def test_arrow_of_every_kind_in_a_prompt_and_beside_it(tmp_path: Path) -> None:
    columns = hostile.arrow_values().values()
    files = [write_arrow(tmp_path / f"{i:03}.arrow", c) for i, c in enumerate(columns)]
    for prompt in ("{{ value }}", "{{ text }}", "{{ row }}"):
        name = f"{len(prompt)}{'v' in prompt}.jsonl"
        rows = answered(files, tmp_path / name, prompt=prompt)
        assert len(rows) == 3 * len(files)
        assert sum(row["error"] is None for row in rows) > 100


def test_arrow_of_every_kind_in_a_conversation(tmp_path: Path) -> None:
    files = []
    for i, column in enumerate(hostile.arrow_values().values()):
        users = pa.array(["user"] * 3)
        for j, names in enumerate((["role", "content"], ["role", "content", "more"])):
            parts = [users, column] if j == 0 else [users, users, column]
            message = pa.StructArray.from_arrays(parts, names=names)
            talk = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), message)
            files.append(write_arrow(tmp_path / f"{i:03}-{j}.arrow", talk, "talk"))
    rows = answered(files, tmp_path / "o.jsonl", messages="talk")
    assert len(rows) == 3 * len(files)
    kinds = [row["error_type"] for row in rows]
    assert kinds.count(None) > 100 and "invalid_prompt" in kinds and "malformed_row" in kinds


UNREADABLE = {"times", "two fields of one name"}  # a damaged value in every row


@pytest.mark.parametrize("name", sorted(hostile.arrow_values()))
def test_any_column_goes_into_parquet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Alone, where it is kept as it is, and after a file of another schema, by its values."""
    monkeypatch.setattr("quire.jobs.supervise.starting.EngineProcess", InstantEngine)
    one = write_arrow(tmp_path / "one.arrow", hostile.arrow_values()[name])
    other = write_arrow(tmp_path / "other.arrow", pa.array([1, 2, 3]), "number")
    for files in ([one], [one, other]):
        output = tmp_path / f"{len(files)}.parquet"
        job = Job(files, output, model="m", prompt="{{ text }}")
        if name in UNREADABLE and files == [one]:  # not a row that can be asked
            with pytest.raises(InvalidOption, match="'value' cannot be read"):
                job.run(progress=False)
            continue
        job.run(progress=False)
        table = pq.read_table(output)
        assert table.num_rows == 3 * len(files)
        table.validate(full=True)
        assert ("value" in table.column_names) is (name not in UNREADABLE)


def test_of_many_columns_each_type_is_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.jobs.supervise.starting.EngineProcess", InstantEngine)
    tried: list[pa.ChunkedArray] = []

    def counted(column: pa.ChunkedArray) -> bool:
        tried.append(column)
        return True

    monkeypatch.setattr(arrow_table, "_is_written", counted)
    arrow_table._is_storable.cache_clear()
    row = {"text": "a"} | {f"c{i}": i % 2 or "b" for i in range(50)}
    (tmp_path / "in.jsonl").write_text(json.dumps(row))
    output = tmp_path / "o.parquet"
    Job(tmp_path / "in.jsonl", output, model="m", prompt="{{ text }}").run(progress=False)
    assert pq.read_table(output, columns=["c0", "c1"]).to_pylist() == [{"c0": "b", "c1": 1}]
    assert sorted(str(column.type) for column in tried) == ["int64", "string"]
    arrow_table._is_storable.cache_clear()


LATER: dict[str, list[Any]] = {
    "floats after whole numbers that no float holds": [2**60] * 1024 + [1.5],
    "numbers after text": ["a"] * 1024 + [1],
    "flags after numbers": [1] * 1024 + [True],
    "negative after unsigned": [2**63] * 1024 + [-1],
    "another shape": [[1]] * 1024 + [{"a": 1}],
    "the same, inside": [{"a": 2**60}] * 1024 + [{"a": 0.5}],
    "objects without fields": [{}] * 3 + [[{}]],
    "names that are no text": [dict(zip(("\ud800", "\udfff"), (1, 2), strict=True))],
    "deeper than Parquet goes": [hostile.DEEP_LIST],
    "text that is none": ["a", "\ud800"],
    "numbers without end": [10**30, [10**30]],
}


@pytest.mark.parametrize("name", LATER)
def test_a_column_of_json_goes_into_parquet_without_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As itself, or as JSON text where it has no one type that Parquet holds."""
    monkeypatch.setattr("quire.jobs.supervise.starting.EngineProcess", InstantEngine)
    source, output = tmp_path / "in.jsonl", tmp_path / "o.parquet"
    rows = [{"text": "x", "value": value, "\ud800": 1} for value in LATER[name]]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    Job(source, output, model="m", prompt="{{ text }}").run(progress=False)
    table = pq.read_table(output)
    found = table.column("value").to_pylist()
    for value, kept in zip(LATER[name], found, strict=True):
        if isinstance(value, str):
            assert kept == value.replace("\ud800", "\ufffd" * 3)
        else:
            assert (json.loads(kept) if isinstance(kept, str) else kept) == value
    assert table.column("\\ud800").to_pylist() == [1] * len(rows)


def test_results_that_went_into_parquet_come_out_as_lines_without_being_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.jobs.supervise.starting.EngineProcess", InstantEngine)
    monkeypatch.setattr(InstantEngine, "asked", [])
    source = write(tmp_path / "in.jsonl", [])
    first, second = tmp_path / "o.parquet", tmp_path / "o.jsonl"
    Job(source, first, model="m", prompt="{{ value }}").run(progress=False)
    job_dir = tmp_path / "o.parquet.quire"
    again = Job(source, second, model="m", prompt="{{ value }}", job=job_dir, reuse=True)
    assert again.run(progress=False).num_before == 2
    assert len(InstantEngine.asked) == 2 and len(read_lines(second)) == 2


def test_nothing_in_a_row_ends_its_line_for_whoever_splits_lines_by_unicode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.jobs.supervise.starting.EngineProcess", InstantEngine)
    text = "a".join(chr(code) for code in range(0x110000) if len(f"a{chr(code)}a".splitlines()) > 1)
    source, output = tmp_path / "in.jsonl", tmp_path / "o.jsonl"
    source.write_text(json.dumps({"text": text, text: 1}) + "\n")
    Job(source, output, model="m", prompt="{{ text }}").run(progress=False)
    [line] = output.read_text().splitlines()
    assert json.loads(line)["text"] == text and json.loads(line)[text] == 1
