"""A job folder that somebody else made: lines with good checksums and bad intentions."""

from __future__ import annotations

import json
import os
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest

from quire.errors import CorruptJob
from quire.jobs.store import record as records
from quire.jobs.store.record import DamagedRecord, decode, encode, fitted
from quire.jobs.store.segments import ResultIndex, scan, segment_name, segments
from tests.jobs.test_journal import filled, opened, record, rows_in

FIELDS: dict[str, Any] = {
    "epoch": 1,
    "row": 0,
    "key": "0:0",
    "content": "c",
    "outputs": ["a"],
    "finish_reasons": ["stop"],
    "prompt_tokens": 1,
    "output_tokens": 1,
}


def signed(body: bytes) -> bytes:
    """A line with the checksum that it should have."""
    return b'{"crc":"%08x",%s\n' % (zlib.crc32(body), body)


def line(**changes: Any) -> bytes:
    fields = {name: value for name, value in {**FIELDS, **changes}.items() if value != "absent"}
    return signed(json.dumps(fields).encode()[1:])


WRONG: list[bytes] = [
    *(line(row=value) for value in (-1, 2**60, True, 1.5, "0", None, [0], 10**400, "absent")),
    *(line(epoch=value) for value in (-1, 2**60, False, "1", None)),
    *(line(outputs=value) for value in ("a", [1], None, [], {"a": 1}, ["a", "b"], "absent")),
    *(line(finish_reasons=value) for value in ("stop", [1], [], None)),
    *(line(key=value) for value in (1, None)),
    *(line(content=value) for value in (1, None, "absent")),
    *(line(prompt_tokens=value) for value in ("1", None, -1, 1e300)),
    *(line(extra=value) for value in ("x", 5, None)),
    *(line(error_type=value) for value in (1, None, ["x"], "malformed_row")),
    *(signed(body) for body in (b"}", b"", b"]", b'"a":1', b"\xff}", b'"a":' + b"[" * 100_000)),
    signed(b'"row":' + b"9" * 5000 + b"}"),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_record_is_damaged_however_good_its_checksum(wrong: bytes) -> None:
    decode(line())
    with pytest.raises(DamagedRecord):
        decode(wrong)


def test_what_was_made_up_is_told_and_its_row_is_computed_again(tmp_path: Path) -> None:
    whole = filled(tmp_path, 3)
    first, *others = whole.splitlines(keepends=True)
    (tmp_path / segment_name(1)).write_bytes(first + b"".join(WRONG) + b"".join(others))
    found = scan(tmp_path, first_epoch=1)
    assert found.index.counts() == (3, 0) and len(found.damages) == 1
    assert found.damages[0].end - found.damages[0].start == sum(map(len, WRONG))


def test_a_far_row_a_long_line_and_endless_lines_take_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.jobs.store.segments.LONGEST_LINE", 1 << 20)
    good = line()
    with open(tmp_path / segment_name(1), "wb") as file:
        file.write(good + line(row=2**47) + b"\n" * 20_000)
        file.seek(50 << 20, os.SEEK_CUR)  # nothing but zeros, and no disk
        file.write(b"\n" + good)
    tracemalloc.start()
    found = scan(tmp_path, first_epoch=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.index.counts() == (2, 0) and len(found.damages) == 1
    assert peak < 5 << 20


def test_names_that_are_no_segments_are_none(tmp_path: Path) -> None:
    for name in ("results-00001.jsonl", "results-99999999999999999999.jsonl", "results-1.jsonl"):
        (tmp_path / name).write_bytes(line())
    assert segments(tmp_path) == [1]
    os.mkfifo(tmp_path / "results-00002.jsonl")
    with pytest.raises(CorruptJob, match="is no regular file"):
        scan(tmp_path, first_epoch=1)


def test_a_result_that_is_too_long_is_an_error_and_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "LONGEST_LINE", 1000)
    with opened(tmp_path) as journal:
        kept = [journal.append(each) for each in (record(0), record(1, text="x" * 2000), record(2))]
    assert [each.error_type for each in kept] == [None, "result_too_long", None]
    found = rows_in(tmp_path)
    assert found[1].failed and "may take 1000" in str(found[1].error)
    assert scan(tmp_path, first_epoch=1).index.counts() == (2, 1)
    assert fitted(record(3)) == (record(3), encode(record(3)))


def test_an_index_of_rows_far_apart_keeps_their_order() -> None:
    index, rows = ResultIndex(), [2**40, 5, 0, 255, 256, 10**9]
    for place, row in enumerate(rows):
        index.put(row, place << 40 | row % 1000)
    assert index.counts() == (5, 1)
    assert list(index.positions()) == [index.position(row) for row in sorted(rows)]
    assert all(row in index for row in rows) and 1 not in index and 2**41 not in index
    assert index.failed(2**40) and not index.failed(5) and index.position(6) is None
