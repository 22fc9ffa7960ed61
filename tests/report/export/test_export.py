"""Results leave quire: as files that other tools read, and to the Hub through its real client."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from huggingface_hub import DatasetCard

from quire.errors import InvalidOption, NotSupported
from quire.evals.scoring.named import ScorerOptions, scorers_by_name
from quire.evals.scoring.scores import ScoreOptions, score
from quire.jobs.output.results import StoredRun
from quire.report import export as exporting
from quire.report.card import card
from quire.report.export import export_file
from tests.jobs.stored import stored_job
from tests.report.export.hub import TOKEN, FakeHub

ROWS = [
    {"question": 'a, b\nor "c"?', "stars": 3, "tags": ["x", "y"]},
    {"question": "naïve 日本語 🙂", "stars": None, "tags": []},
    {"question": "fails", "stars": 5, "tags": ["z"]},
]


@pytest.fixture
def run(tmp_path: Path) -> StoredRun:
    outputs = ["first\nanswer", 'second, "quoted"', ValueError("too long")]
    return StoredRun.open(stored_job(tmp_path, ROWS, outputs, num_failed=1))


def test_parquet_keeps_types_and_every_row(run: StoredRun, tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    assert export_file(run, target) == 3
    rows = pq.read_table(target).to_pylist()
    assert [row["stars"] for row in rows] == [3, None, 5]
    assert [row["tags"] for row in rows] == [["x", "y"], [], ["z"]]
    assert [row["output"] for row in rows] == ["first\nanswer", 'second, "quoted"', None]
    assert rows[2]["error_type"] == "ValueError"


def test_json_lines_are_the_rows_of_the_output(run: StoredRun, tmp_path: Path) -> None:
    target = tmp_path / "out.copy.jsonl"
    export_file(run, target)
    rows = [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]
    assert [row["question"] for row in rows] == [row["question"] for row in ROWS]
    assert rows[1]["finish_reason"] == "stop"


def test_csv_survives_commas_quotes_and_line_breaks(run: StoredRun, tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    export_file(run, target)
    rows = list(csv.DictReader(io.StringIO(target.read_text(encoding="utf-8"))))
    assert rows[0]["question"] == ROWS[0]["question"]
    assert rows[1]["output"] == 'second, "quoted"'
    assert (rows[0]["tags"], rows[1]["stars"], rows[2]["output"]) == ('["x", "y"]', "", "")


FORMULAS = [
    "=1+1",
    "+1-555",
    "-2+3",
    "@SUM(1)",
    "\t=1",
    "\r=1",
    "\n=1",
    "\uff1d1",
    "=cmd|' /C x'!A0",
]
HARMLESS = ["-5", "+3.25", "-1e-3", "a=b", "'quoted", "1-2", ""]


def test_a_spreadsheet_finds_no_formula_in_a_csv(tmp_path: Path) -> None:
    texts = FORMULAS + HARMLESS
    rows = [{"question": text, "=header()": i - 9} for i, text in enumerate(texts)]
    run = StoredRun.open(stored_job(tmp_path, rows, texts))
    for keep in (False, True):
        target = tmp_path / f"{keep}.csv"
        export_file(run, target, keep_formulas=keep)
        read = list(csv.reader(io.StringIO(target.read_bytes().decode(), newline="")))
        mark = "" if keep else "'"
        expected = [mark + text for text in FORMULAS] + HARMLESS
        assert [row[0] for row in read[1:]] == expected
        assert [row[2] for row in read[1:]] == expected  # what the model wrote
        assert read[0][1] == mark + "=header()"
        assert [int(row[1]) for row in read[1:]] == [i - 9 for i in range(len(texts))]


def test_a_file_is_not_replaced_unasked(run: StoredRun, tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    export_file(run, target)
    with pytest.raises(InvalidOption, match="exists; --overwrite"):
        export_file(run, target)
    assert export_file(run, target, overwrite=True) == 3
    with pytest.raises(InvalidOption, match="the ending tells the format"):
        export_file(run, tmp_path / "out.xlsx")


def test_a_table_is_no_job(tmp_path: Path) -> None:
    table = tmp_path / "theirs.jsonl"
    table.write_text('{"output": "x"}\n')
    with pytest.raises(NotSupported, match="is a table already"):
        export_file(StoredRun.open(table), tmp_path / "x.parquet")


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv"])
@pytest.mark.parametrize("package", ["pandas", "polars", "datasets"])
def test_others_read_the_results_without_quire(
    package: str, ending: str, run: StoredRun, tmp_path: Path
) -> None:
    library = pytest.importorskip(package, reason=f"{package} is not installed")
    target = tmp_path / f"export.{ending}"
    export_file(run, target)
    columns, rows = _read_with(library, package, ending, target, tmp_path)
    assert {"question", "output", "error_type"} <= set(columns)
    assert rows == 3


def _read_with(
    library: Any, package: str, ending: str, target: Path, folder: Path
) -> tuple[list[str], int]:
    if package == "datasets":
        kind = {"jsonl": "json"}.get(ending, ending)
        found = library.load_dataset(kind, data_files=str(target), cache_dir=str(folder / "cache"))
        return found["train"].column_names, found["train"].num_rows
    if package == "polars":
        reader = {"parquet": "read_parquet", "jsonl": "read_ndjson", "csv": "read_csv"}[ending]
        frame = getattr(library, reader)(target)
        return frame.columns, frame.height
    if ending == "jsonl":
        frame = library.read_json(target, lines=True)
    else:
        frame = getattr(library, f"read_{ending}")(target)
    return list(frame.columns), len(frame)


def test_a_large_push_is_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "_BYTES_PER_FILE", 1)
    rows = [{"question": str(n)} for n in range(2500)]
    run = StoredRun.open(stored_job(tmp_path / "job", rows, ["a"] * 2500))
    parts, num_rows = exporting._write_parts(run, tmp_path)
    assert (len(parts), num_rows) == (3, 2500)
    found = [row for part in parts for row in pq.read_table(part).column("question").to_pylist()]
    assert found == [row["question"] for row in rows]


def test_the_card_says_how_the_rows_were_made(run: StoredRun) -> None:
    score(run, scorers_by_name(["json"], ScorerOptions()), ScoreOptions())
    text = card(run, "me/answers", num_rows=3, split="train", license="cc-by-4.0")
    front = DatasetCard(text).data.to_dict()
    assert (front["license"], front["size_categories"]) == ("cc-by-4.0", ["n<1K"])
    [config] = front["configs"]
    assert config["data_files"] == [{"split": "train", "path": "data/train-*"}]
    assert "quire run out.jsonl.input.jsonl --model smollm2" in text
    assert "{{ question }}" in text and "rows that failed: 1" in text
    assert "| json\\_valid | 0.0000 | 0.0000 | 3 |" in text
    assert str(run.home.parent) not in text  # no folders of whoever ran it


def test_a_prompt_cannot_break_out_of_its_block_in_the_card(tmp_path: Path) -> None:
    prompt = "{{ question }}\n```\n# not a heading\n````"
    output = stored_job(tmp_path, ROWS[:1], ["x"], prompt=prompt)
    text = card(StoredRun.open(output), "me/x", num_rows=1, split="train")
    assert f"`````\n{prompt}\n`````" in text


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    hub = FakeHub()
    yield hub
    hub.close()


def export_to(hub: FakeHub, run: StoredRun, home: Path, *arguments: str, token: str = TOKEN) -> Any:
    """`quire export` in a process of its own: the client reads its environment when imported."""
    given = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home / "hf"), "HF_HUB_DISABLE_XET": "1"}
    if token:
        given["HF_TOKEN"] = token
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    return subprocess.run(
        [sys.executable, "-m", "quire", "export", str(run.path), *arguments],
        env={**inherited, **given},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_push_is_private_and_whole(hub: FakeHub, run: StoredRun, tmp_path: Path) -> None:
    done = export_to(hub, run, tmp_path, "--push-to-hub", "me/answers")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"3 rows: {hub.url}/datasets/me/answers (private)"
    assert hub.private == {"me/answers": True}
    assert sorted(hub.files) == ["README.md", "data/train-00000-of-00001.parquet"]
    table = pq.read_table(io.BytesIO(hub.files["data/train-00000-of-00001.parquet"]))
    assert table.column("question").to_pylist() == [row["question"] for row in ROWS]
    assert hub.files["README.md"].startswith(b"---\n")
    assert hub.tokens == {f"Bearer {TOKEN}", ""}  # the upload of a large file carries none
    assert TOKEN not in done.stdout + done.stderr


def test_public_is_asked_for_by_name(hub: FakeHub, run: StoredRun, tmp_path: Path) -> None:
    done = export_to(hub, run, tmp_path, "--push-to-hub", "me/open", "--public", "--split", "test")
    assert done.returncode == 0, done.stderr
    assert hub.private == {"me/open": False}
    assert "data/test-00000-of-00001.parquet" in hub.files


def test_rows_never_land_in_the_open_by_surprise(
    hub: FakeHub, run: StoredRun, tmp_path: Path
) -> None:
    hub.private["me/open"] = False
    done = export_to(hub, run, tmp_path, "--push-to-hub", "me/open")
    assert done.returncode == 2
    assert "is there already and everyone can see it" in done.stderr
    assert hub.files == {}


@pytest.mark.parametrize(("status", "words"), [(401, "set HF_TOKEN"), (403, "may not write")])
def test_a_refusal_is_one_line_without_the_token(
    hub: FakeHub, run: StoredRun, tmp_path: Path, status: int, words: str
) -> None:
    hub.refuse_with = status
    done = export_to(hub, run, tmp_path, "--push-to-hub", "me/answers")
    assert done.returncode == 74
    assert words in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert TOKEN not in done.stdout + done.stderr


def test_without_a_token_no_row_leaves(hub: FakeHub, run: StoredRun, tmp_path: Path) -> None:
    hub.refuse_with = 401
    done = export_to(hub, run, tmp_path, "--push-to-hub", "me/answers", token="")
    assert done.returncode == 74
    assert "HF_TOKEN" in done.stderr
    assert not any("upload" in path or "commit" in path for _, path in hub.requests)


def test_a_hub_that_is_away_is_told(hub: FakeHub, run: StoredRun, tmp_path: Path) -> None:
    hub.close()
    done = export_to(hub, run, tmp_path, "--push-to-hub", "me/answers")
    assert done.returncode == 74
    assert "could not be reached" in done.stderr
