"""Jobs that somebody else made: whatever their files hold is read in bounded memory, and said."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.cli import main
from quire.errors import CorruptJob, InvalidOption
from quire.evals.scoring.scores import MetricScore, keep_summary, read_row_scores, read_scores
from quire.evals.scoring.statistics import Mean
from quire.jobs.output.results import StoredRun
from quire.jobs.store.bounded import bounded_lines, read_bounded
from quire.jobs.store.lock import holder
from quire.jobs.store.manifest import MOST_BYTES, NAME, Manifest
from quire.jobs.store.stamps import FileStamp
from quire.jobs.store.store import read_metrics
from quire.report import rows as page_rows
from quire.report.page import report
from quire.report.series import series_of
from tests.jobs.stored import stored_job

HUGE = 4 << 30  # bytes, none of them on disk
ENOUGH = 40 << 20


@pytest.fixture
def output(tmp_path: Path) -> Path:
    made = stored_job(tmp_path, [{"question": "q"}] * 2, ["a", "b"])
    home = Path(f"{made}.quire")
    keep_summary(home, [MetricScore("exact", Mean(0.5, 0.1, 2))])
    (home / "scores").mkdir()
    (home / "scores" / "exact.jsonl").write_text('{"row": 0, "key": "0:0", "value": 1.0}\n')
    return made


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def peak_of(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


FILES = (NAME, "metrics.jsonl", "scores.json", "scores/exact.jsonl", "lock")
# A device is opened as a pipe is: one file that is read whole, and one that is read by lines.
KINDS = [(name, kind) for kind in ("endless", "pipe") for name in FILES]


@pytest.mark.parametrize(("name", "kind"), [*KINDS, (NAME, "device"), ("metrics.jsonl", "device")])
def test_no_file_of_a_job_takes_gigabytes_or_for_ever(
    name: str, kind: str, output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(f"{output}.quire") / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.touch()
        if name.endswith(".jsonl"):  # read to its end, in pieces
            path.write_bytes(b"x" * (48 << 20))
        else:
            os.truncate(path, HUGE)

    def look() -> None:
        for arguments in (["show", str(output)], ["ls", str(output.parent)]):
            assert run(*arguments) in (0, 2)
        assert run("report", str(output), "-o", str(output.with_suffix(".html"))) in (0, 2)
        holder(path.parent)

    if kind == "pipe":  # nobody writes into it: it is waited for, or it is not
        look()
    else:
        assert peak_of(look) < ENOUGH
    assert "a bug" not in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[" * 200_000, "[]", "5", '{"a": 1}', "", "\xff", '{"version"'])
def test_a_manifest_that_is_something_else_is_said_to_be_damaged(text: str, output: Path) -> None:
    (Path(f"{output}.quire") / NAME).write_text(text, encoding="latin-1")
    with pytest.raises(CorruptJob, match="does not read as a manifest"):
        Manifest.load(Path(f"{output}.quire"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("created", 5),
        ("seed", "x"),
        ("seed", True),
        ("first_epoch", None),
        ("command", "quire"),
        ("command", [1]),
        ("settings", [{}]),
        ("settings", ["x"]),
        ("sampling", []),
        ("inputs", [{"path": 5, "size": 1, "stamp": ""}]),
        ("few_shot", [["a", 5]]),
        ("status", "sleeping"),
        ("shard", [1]),
        ("num_rows", 1.5),
        ("output", None),
    ],
)
def test_a_manifest_with_a_wrong_value_names_it(field: str, value: Any, output: Path) -> None:
    path = Path(f"{output}.quire") / NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    named = field.removesuffix("s")  # also "a setting without a name"
    with pytest.raises(CorruptJob, match=rf"does not read as a manifest \(.*{named}"):
        Manifest.load(path.parent)


def test_what_is_written_can_be_read_back(output: Path) -> None:
    """A job whose manifest nobody could load again is refused when it begins."""
    manifest = Manifest.load(Path(f"{output}.quire"))
    stamps = (FileStamp("/data/" + "x" * 200, 1, "stamp"),) * (MOST_BYTES // 200)
    with pytest.raises(InvalidOption, match="Join the input into fewer files"):
        manifest.changed(inputs=stamps).save(Path(f"{output}.quire"))


def test_a_bad_folder_does_not_keep_the_others_from_being_listed(
    output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = stored_job(output.parent / "other", [{"question": "q"}], ["a"])
    (Path(f"{other}.quire") / NAME).write_text("{")
    assert run("ls", str(output.parent)) == 0
    listed = capsys.readouterr().out
    assert "damaged" in listed and "finished" in listed


def test_lines_that_are_too_long_are_left_out_and_the_others_are_not(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\n" + b"x" * 50 + b"\ntwo\n" + b"y" * 10 + b"\nend")
    assert list(bounded_lines(path, 10)) == [b"one\n", b"two\n", b"y" * 10 + b"\n", b"end"]
    assert read_bounded(path, 1000).startswith(b"one\n")
    with pytest.raises(CorruptJob, match="over 10 bytes"):
        read_bounded(path, 10)


def test_figures_that_are_none_are_no_bug(output: Path) -> None:
    path = Path(f"{output}.quire") / "metrics.jsonl"
    odd = ['"x"', "null", "[]", "{}", "NaN", "Infinity", "1e400", "-5", "true", "9" * 400]
    lines = [
        f'{{"time": {i}.5, "{name}": {value}}}'
        for i, value in enumerate(odd)
        for name in ("began", "finished", "kv_use", "running")
    ]
    lines += [f'{{"time": {value}}}' for value in odd] + ["{", "[1]", "[" * 50_000]
    path.write_text("\n".join(lines))
    assert "<html" in report([StoredRun.open(output)])
    assert len(list(read_metrics(output))) >= 40


def test_weeks_of_metrics_take_no_more_than_minutes() -> None:
    def lines(num: int) -> Iterator[dict[str, Any]]:
        for second in range(num):
            began = 1.0 if second < num // 2 else num / 2 + 0.5
            done = second if second < num // 2 else second - num // 2
            yield {
                "time": second + 1.5,
                "began": began,
                "output_tokens": 10 * done,
                "finished": done,
                "prompt_tokens": 0,
                "running": 4,
                "waiting": second % 2,
                "kv_use": 0.5,
            }

    series = series_of(lines(40_000))
    assert 300 <= len(series.seconds) <= 600
    assert series.num_output_tokens == pytest.approx(10 * 40_000, rel=0.001)
    assert series.working_seconds == pytest.approx(40_000, rel=0.001)
    assert len(series.restarts) == 1
    by_title = {chart.title: chart for chart in series.charts}
    rates = by_title["Tokens of finished rows, per second"].lines[0].values
    assert all(rate == pytest.approx(10, rel=0.1) for rate in rates[5:-5] if rate is not None)
    [running, waiting] = by_title["Requests"].lines
    assert set(running.values) == {4.0} and waiting.values[0] == pytest.approx(0.5, abs=0.01)
    assert peak_of(lambda: series_of(lines(5_000))) < 2 << 20


@pytest.mark.parametrize(
    "text",
    [
        "[]", '{"metrics": [5]}', '{"metrics": [{"metric": "m"}]}', "[" * 100_000,
        '{"metrics": [{"metric": "m", "mean": {"value": NaN, "stderr": 0, "num": 1}, '
        '"pass_at": {}, "groups": {}}]}',
        '{"metrics": [{"metric": 5, "mean": {"value": 1, "stderr": 0, "num": 1}, '
        '"pass_at": {}, "groups": []}]}',
    ],
)  # fmt: skip
def test_scores_that_are_something_else_are_said_to_be(text: str, output: Path) -> None:
    home = Path(f"{output}.quire")
    (home / "scores.json").write_text(text)
    with pytest.raises(CorruptJob, match="does not read as scores"):
        read_scores(home)
    (home / "scores" / "exact.jsonl").write_text(text[:1000].replace("\n", ""))
    with pytest.raises(CorruptJob, match="does not read as scores"):
        list(read_row_scores(home, "exact"))


def test_a_page_shows_as_many_rows_as_a_browser_can_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"question": "q" * 1000, "n": i} for i in range(50)]
    stored = StoredRun.open(stored_job(tmp_path, rows, ["a"] * 50))
    monkeypatch.setattr(page_rows, "MOST_CHARACTERS", 20_000)
    monkeypatch.setattr(page_rows, "CHUNK_CHARACTERS", 8_000)
    html = report([stored])
    assert "The first 10 of 50 rows" in html
    assert '"num":10,' in html
