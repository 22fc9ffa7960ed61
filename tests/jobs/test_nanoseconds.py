"""Columns in nanoseconds: no digit is lost, and pandas has no say in how they are written."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from quire.jobs.input.arrow_values import values_of
from quire.jobs.input.templates import RowTemplate
from quire.jobs.job import Job
from quire.jobs.output.json_line import json_line
from tests.jobs.driving import read_lines
from tests.jobs.instant import InstantEngine

MOMENT = pa.timestamp("ns")


def values(column: pa.Array) -> list[Any]:
    batch = pa.RecordBatch.from_arrays([column], names=["x"])
    return [row["x"] for row in values_of(batch, list(range(len(column))))]  # type: ignore[index]


@pytest.mark.parametrize(
    ("column", "written", "plain"),
    [
        (pa.array([1, 2000], MOMENT), "1970-01-01T00:00:00.000000001", datetime),
        (
            pa.array([1, 2000], pa.timestamp("ns", "Europe/Berlin")),
            "1970-01-01T01:00:00.000000001+01:00",
            datetime,
        ),
        (
            pa.array([-1, 2000], pa.timestamp("ns", "Mars/Phobos")),
            "1969-12-31T23:59:59.999999999+00:00",
            datetime,
        ),
        (pa.array([1_000_001, 0], pa.time64("ns")), "00:00:00.001000001", time),
        (pa.array([2_000_000_007, 0], pa.duration("ns")), "0:00:02.000000007", timedelta),
        (pa.array([-1, 0], pa.duration("ns")), "-1 day, 23:59:59.999999999", timedelta),
    ],
)
def test_nanoseconds_are_written_and_whole_microseconds_are_plain(
    column: pa.Array, written: str, plain: type
) -> None:
    fine, whole, none = values(pa.concat_arrays([column, pa.nulls(1, column.type)]))
    assert json_line(fine).decode() == f'"{written}"\n'
    assert RowTemplate("{{ x }}", "--prompt").render({"x": fine}) == written.replace("T", " ")
    assert type(whole) is plain and none is None


def test_nanoseconds_within_lists_and_objects_are_written() -> None:
    row = pa.struct([("at", MOMENT), ("all", pa.list_(MOMENT)), ("by", pa.map_("string", MOMENT))])
    found = values(pa.array([{"at": 5, "all": [None, 6], "by": [("k", 7)]}, None], row))
    assert [value if value is None else json_line(value).decode() for value in found] == [
        '{"at": "1970-01-01T00:00:00.000000005", '
        '"all": [null, "1970-01-01T00:00:00.000000006"], '
        '"by": [["k", "1970-01-01T00:00:00.000000007"]]}\n',
        None,
    ]


def test_a_template_may_ask_a_fine_moment_for_its_year() -> None:
    [moment] = values(pa.array([1], MOMENT))
    assert RowTemplate("{{ x.year }} {{ x.nanosecond }}", "--prompt").render({"x": moment}) == (
        "1970 1"
    )


def test_tables_whose_columns_differ_lose_no_nanosecond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.jobs.supervise.starting.EngineProcess", InstantEngine)
    pq.write_table(pa.table({"at": pa.array([1], MOMENT)}), tmp_path / "a.parquet")
    feather.write_feather(pa.table({"at": pa.array([2], MOMENT), "b": [1]}), tmp_path / "b.arrow")
    inputs = [tmp_path / "a.parquet", tmp_path / "b.arrow"]
    for output in (tmp_path / "out.parquet", tmp_path / "out.jsonl"):
        Job(inputs, output, model="m", prompt="{{ at }}").run(progress=False)
    texts = [f"1970-01-01T00:00:00.00000000{n}" for n in (1, 2)]
    assert [row["at"] for row in read_lines(tmp_path / "out.jsonl")] == texts
    in_table = pq.read_table(tmp_path / "out.parquet").column("at").to_pylist()
    assert in_table == [f'"{text}"' for text in texts]
