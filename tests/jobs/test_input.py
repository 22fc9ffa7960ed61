"""Every kind of input: rows in order, in bounded memory, and a bad one for what it is."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import tempfile
import time
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.errors import InvalidOption
from quire.jobs.input import arrow_values, delimited, jsonl
from quire.jobs.input.files import find_files, read_rows
from quire.jobs.input.spool import Spool

ROWS = [{"text": "a", "n": 1}, {"text": "b", "n": 2}, {"text": "ü", "n": 3}]


def values(*names: object, format: str | None = None) -> list[Any]:
    files = find_files([str(name) for name in names], format)
    return [row.error.kind if row.error else row.values for row in read_rows(files)]


def lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.json", "a.jsonl.gz"])
def test_json_lines(tmp_path: Path, name: str) -> None:
    data = b"\xef\xbb\xbf" + lines(ROWS).replace(b"\n", b"\r\n") + b"  \n\n"
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    assert values(tmp_path / name) == ROWS


def test_a_last_line_needs_no_newline(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(ROWS)[:-1])
    assert values(tmp_path / "a.jsonl") == ROWS


def test_a_line_without_end_is_skipped_without_being_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "LONGEST_ROW", 100)
    long = json.dumps({"text": "x" * 1000}).encode()
    (tmp_path / "a.jsonl").write_bytes(b'{"text": 1}\n' + long + b'\n{"text": 2}\n' + long)
    assert values(tmp_path / "a.jsonl") == [
        {"text": 1},
        "row_too_long",
        {"text": 2},
        "row_too_long",
    ]


def test_delimited_files_are_text_and_a_bad_row_costs_itself(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(
        b'\xef\xbb\xbftext,n\r\n"a, ""b""\nc",1\r\nonly\r\nx,2,3\r\n\r\n"q"uote,4\r\n'
        b"\xe9,5\r\nz,6\r\n"
    )
    assert values(tmp_path / "a.csv") == [
        {"text": 'a, "b"\nc', "n": "1"},
        "malformed_row",
        "malformed_row",
        "malformed_row",
        "malformed_row",
        {"text": "z", "n": "6"},
    ]
    (tmp_path / "a.tsv").write_text("text\tn\na\t1\n")
    assert values(tmp_path / "a.tsv") == [{"text": "a", "n": "1"}]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        # A quote that is never closed: the lines behind it are rows, so it costs its own.
        ('"x,1\ny,2\nz,3\n', ["line 2", "y2", "z3"]),
        ('x,1\n"y,2\nz,3\n"a","4"\nb,5\n', ["x1", "line 3", "z3", "a4", "b5"]),
        ('"x,1\ny,2\n"two\nlines",3\nz,4\n', ["line 2", "y2", "two\nlines3", "z4"]),
        # The lines behind it are no rows: they are one bad row together.
        ('"x,1\nprose, with, commas\nand more\n', ["lines 2 to 4"]),
        ('"one\ntwo" three,1\nz,3\n', ["lines 2 to 3", "z3"]),
        ('"He said "no" and\nleft",1\nz,3\n', ["lines 2 to 3", "z3"]),
        ('"x\ny"\nz,3\n', ["lines 2 to 3", "z3"]),
        # Within a line.
        ('"q"uote,1\nz,3\n', ["line 2", "z3"]),
        ("x\n1,2,3\n\nz,3\n", ["line 2", "line 3", "z3"]),
        ('5" pipe,1\n"say ""hi""",2\n"",3\n', ['5" pipe1', 'say "hi"2', "3"]),
        ("a\rb,1\r\nz,3\n", ["a\rb1", "z3"]),
        ("x\0y,1\n", ["x\0y1"]),
    ],
)
def test_a_row_whose_quotes_are_wrong_eats_and_invents_no_others(
    tmp_path: Path, text: str, rows: list[str]
) -> None:
    (tmp_path / "a.csv").write_text("a,b\n" + text, newline="")
    found = list(read_rows(find_files([str(tmp_path / "a.csv")])))
    assert len(found) == len(rows)
    for row, expected in zip(found, rows, strict=True):
        if row.error is None:
            assert "".join((row.values or {}).values()) == expected
        else:
            assert f"the row in {expected} is" in row.error.message


def test_a_delimited_row_without_end_is_skipped_without_being_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delimited, "LONGEST_ROW", 1000)
    long = '"' + "x\n" * 2000 + '",1\n'
    for text, rows in {
        long + "z,2\n": ["row_too_long", {"a": "z", "b": "2"}],
        "x" * 5000 + ",1\nz,2\n": ["row_too_long", {"a": "z", "b": "2"}],
        '"' + "x\n" * 2000: ["row_too_long"],
        '"x,1\n' + "y,2\n" * 2000: ["malformed_row", *[{"a": "y", "b": "2"}] * 2000],
    }.items():
        (tmp_path / "a.csv").write_text("a,b\n" + text)
        assert values(tmp_path / "a.csv") == rows


def test_lines_may_end_as_they_did_on_an_old_mac(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'a,b\rx,1\r"y\rz",2\r')
    assert values(tmp_path / "a.csv") == [{"a": "x", "b": "1"}, {"a": "y\rz", "b": "2"}]


@settings(max_examples=200)
@given(st.lists(st.tuples(*[st.text('ab",\n\r x\t', max_size=5)] * 3), max_size=5))
def test_whatever_python_writes_as_csv_is_read_as_it_was(rows: list[tuple[str, ...]]) -> None:
    written = io.StringIO(newline="")
    writer = csv.writer(written)
    writer.writerows([("a", "b", "c"), *rows])
    with tempfile.NamedTemporaryFile("w", suffix=".csv", newline="") as file:
        file.write(written.getvalue())
        file.flush()
        assert [tuple(row.values()) for row in values(file.name)] == rows


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(table, tmp_path / "a.parquet")
    with ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    for name in ("a.parquet", "a.arrow"):
        with pytest.raises(InvalidOption, match=r"names \['a'\] twice"):
            values(tmp_path / name)


def test_a_hundred_thousand_columns_are_compared_once(tmp_path: Path) -> None:
    names = [f"gene_{i}" for i in range(100_000)]
    (tmp_path / "a.csv").write_text(f"{','.join(names)}\n{',' * 99_999}\n")
    with ipc.new_file(tmp_path / "a.arrow", pa.schema([(name, pa.int8()) for name in names])):
        pass
    began = time.process_time()
    assert [len(row) for row in values(tmp_path / "a.csv")] == [100_000]
    assert list(values(tmp_path / "a.arrow")) == []
    assert time.process_time() - began < 20  # minutes, where each is looked for among all


@pytest.mark.parametrize("new", [ipc.new_file, ipc.new_stream])
def test_a_table_that_is_cut_while_it_is_read_is_a_read_error(tmp_path: Path, new: Any) -> None:
    """Mapped, it would end the process with SIGBUS."""
    table = pa.table({"text": [f"{i} " * 50 for i in range(20_000)]})
    path = tmp_path / "a.arrow"
    with new(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    rows = read_rows(find_files([str(path)]))
    next(rows)
    os.truncate(path, path.stat().st_size // 3)
    with pytest.raises(OSError, match="cut while it was read") as caught:
        list(rows)
    assert caught.value.filename == str(path)


def test_a_row_of_arrow_has_a_longest_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_values, "LONGEST_ROW", 1000)
    pq.write_table(pa.table({"text": ["a", "x" * 2000, "b"]}), tmp_path / "a.parquet")
    assert values(tmp_path / "a.parquet") == [{"text": "a"}, "row_too_long", {"text": "b"}]


@pytest.mark.parametrize("header", ["", "a,a\n"])
def test_a_header_that_names_nothing_is_refused(tmp_path: Path, header: str) -> None:
    (tmp_path / "a.csv").write_text(header)
    with pytest.raises(InvalidOption, match="header"):
        values(tmp_path / "a.csv")


def test_parquet_arrow_and_streams(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(ROWS)
    pq.write_table(table, tmp_path / "a.parquet")
    with ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    with ipc.new_stream(tmp_path / "b.arrow", table.schema) as writer:
        writer.write_table(table)
    for name in ("a.parquet", "a.arrow", "b.arrow"):
        assert values(tmp_path / name) == ROWS


def test_a_file_that_is_not_what_it_says_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("no")
    with pytest.raises(InvalidOption, match=r"a\.parquet"):
        values(tmp_path / "a.parquet")


def test_unwanted_rows_are_counted_and_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"nonsense\n" + lines(ROWS))
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "b.parquet")
    (tmp_path / "c.csv").write_text("text\nx\ny\n")
    files = find_files([str(tmp_path / name) for name in ("a.jsonl", "b.parquet", "c.csv")])
    found = list(read_rows(files, lambda number: number in (1, 5, 8)))
    assert [row.number for row in found] == list(range(9))
    assert [row.key for row in found][4:8] == ["1:0", "1:1", "1:2", "2:0"]
    assert {row.number: row.values for row in found if row.values} == {
        1: ROWS[0],
        5: ROWS[1],
        8: {"text": "y"},
    }
    assert all(row.error is None for row in found)


def test_a_folder_is_its_files_in_order(tmp_path: Path) -> None:
    for i in (2, 1):
        (tmp_path / f"part-{i}.jsonl").write_bytes(lines([{"part": i}]))
    (tmp_path / "._part-1.jsonl").write_bytes(b"what a Mac knows about part-1.jsonl")
    assert values(tmp_path) == [{"part": 1}, {"part": 2}]
    (tmp_path / "x.csv").write_text("a\n")
    with pytest.raises(InvalidOption, match="2 kinds"):
        values(tmp_path)


def test_a_data_set_that_was_saved_to_disk(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(ROWS)
    folder = tmp_path / "saved" / "train"
    folder.mkdir(parents=True)
    names = []
    for i in range(3):
        names.append({"filename": f"data-{i}.arrow"})
        with ipc.new_stream(folder / f"data-{i}.arrow", table.schema) as writer:
            writer.write_table(table.slice(i, 1))
    (folder / "state.json").write_text(json.dumps({"_data_files": names}))
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert values(folder) == ROWS
    with pytest.raises(InvalidOption, match="saved/train"):
        values(tmp_path / "saved")


@pytest.mark.parametrize(
    "state",
    [
        *(b"", b"[]", b"{}", b"\xff", b'{"_data_files": 5}', b'{"_data_files": [{}]}', b"[" * 9000),
        *(b'{"_data_files": [{"filename": "../a.arrow"}]}', b'{"_data_files": ["a"]}'),
        b'{"_data_files": [{"filename": "/etc/passwd"}]}',
    ],
)
def test_a_saved_data_set_that_is_none_is_refused(tmp_path: Path, state: bytes) -> None:
    (tmp_path / "state.json").write_bytes(state)
    with pytest.raises(InvalidOption, match=r"state\.json is not what"):
        values(tmp_path)


def test_rows_of_a_program_may_hold_what_json_lacks(tmp_path: Path) -> None:
    rows = [{"at": date(2020, 1, 2), "x": float("nan"), "many": (Decimal("1.5"), None)}]
    assert values(Spool(tmp_path).rows(rows)) == [
        {"at": "2020-01-02", "x": None, "many": ["1.5", None]}
    ]
    numbers = [{"n": np.int64(5), "is": np.bool_(True), "all": np.array([[1.5], [np.nan]])}]
    assert values(Spool(tmp_path).rows(numbers)) == [{"n": 5, "is": True, "all": [[1.5], [None]]}]
    for row in ({"x": object()}, {"x": b"bytes"}, {"x": {1, 2}}):
        with pytest.raises(InvalidOption, match="row 0 of the input does not go into JSON"):
            Spool(tmp_path).rows([row])


def test_a_data_set_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the real client, from a cache that holds it."""
    import huggingface_hub.constants as hub

    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    repo, commit = tmp_path / "datasets--me--rows", "0" * 40
    snapshot = repo / "snapshots" / commit
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    (snapshot / "main").mkdir(parents=True)
    (snapshot / "other").mkdir()
    table = pa.Table.from_pylist(ROWS)
    pq.write_table(table.slice(0, 2), snapshot / "main" / "train-00000-of-00002.parquet")
    pq.write_table(table.slice(2), snapshot / "main" / "train-00001-of-00002.parquet")
    pq.write_table(table.slice(0, 1), snapshot / "other" / "test-00000-of-00001.parquet")
    assert values("hf:me/rows/main:train") == ROWS
    assert values("hf:me/rows") == ROWS
    assert values("hf:me/rows/other:test") == ROWS[:1]
    with pytest.raises(InvalidOption, match="validation"):
        values("hf:me/rows:validation")
    with pytest.raises(InvalidOption, match="me/nothing"):
        values("hf:me/nothing")
    with pytest.raises(InvalidOption, match="of the form"):
        values("hf:nobody")


def test_the_format_is_told_by_the_ending_or_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(lines(ROWS))
    with pytest.raises(InvalidOption, match="--format"):
        values(tmp_path / "a.txt")
    assert values(tmp_path / "a.txt", format="jsonl") == ROWS
    with pytest.raises(InvalidOption, match="jsonl, json, csv, tsv, parquet, arrow"):
        values(tmp_path / "a.txt", format="xml")
    with pytest.raises(InvalidOption, match="there is no input"):
        values(tmp_path / "missing.jsonl")
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "part-00000")
    assert values(tmp_path / "part-00000", format="parquet") == ROWS
    (tmp_path / "answer").write_text(json.dumps(ROWS))
    assert values(tmp_path / "answer", format="json") == ROWS
    table = pa.Table.from_pylist(ROWS)
    with ipc.new_stream(str(tmp_path / "a.arrows"), table.schema) as stream:
        stream.write_table(table)
    assert values(tmp_path / "a.arrows") == ROWS


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "text\nGröße\n"),
        ("a.jsonl", '{"text": "Größe"}\n'),
        ("a.json", '[{"text": "Größe"}]'),
    ],
)
def test_what_was_saved_in_another_encoding_says_how_to_change_it(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_bytes(text.encode("cp1252"))
    [row] = read_rows(find_files([str(tmp_path / name)]))
    assert row.error is not None and "iconv -f WINDOWS-1252 -t UTF-8" in row.error.message


def test_stdin_is_spooled_and_an_empty_one_leaves_the_spool(tmp_path: Path) -> None:
    (tmp_path / "pipe").write_bytes(lines(ROWS))
    with open(tmp_path / "pipe", "rb") as stream:
        spooled = Spool(tmp_path).stream(stream, "jsonl")
    with open("/dev/null", "rb") as stream:
        assert Spool(tmp_path, spooled).stream(stream, "jsonl") == spooled
    assert values(spooled) == ROWS
    with pytest.raises(InvalidOption, match="stdin is packed with gzip"):
        Spool(tmp_path).stream(io.BytesIO(gzip.compress(lines(ROWS))), "csv")
