"""The verbs that read what is stored: score, report, export, ls, show, diff."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quire.cli import main
from quire.cli.show import word_diff
from quire.errors import Interrupted
from tests.jobs.stored import stored_job
from tests.report.pages import scored_run

ROWS = [
    {"question": "1+1?", "answer": "2", "kind": "sum"},
    {"question": "2*3?", "answer": "6", "kind": "product"},
    {"question": "2+3?", "answer": "5", "kind": "sum"},
]


@pytest.fixture
def output(tmp_path: Path) -> str:
    outputs = ["2", "5", ValueError("too long")]
    return str(stored_job(tmp_path, ROWS, outputs, num_failed=1))


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def test_score_prints_a_table_with_errors_and_groups(
    output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("score", output, "--by", "exact", "--truth", "answer", "--group", "kind") == 0
    printed = capsys.readouterr()
    lines = [line.split() for line in printed.out.splitlines()]
    assert lines[0] == ["run", "n-shot", "filter", "metric", "value", "stderr", "n"]
    assert lines[2] == ["out.jsonl", "none", "exact_match", "0.3333", "±", "0.3333", "3"]
    assert lines[4][:2] == ["-", "sum"]
    assert "1 failed rows count as 0" in printed.err


def test_what_reads_an_unfinished_run_says_that_it_is_one(
    tmp_path: Path, output: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "quire")
    begun = str(stored_job(tmp_path / "begun", ROWS, ["2", "5"], status="stopped", num_rows=None))
    table = str(tmp_path / "some.csv")
    assert run("export", begun, "--to", table) == 0
    said = "begun/out.jsonl is not finished: what is read are the 2 rows answered so far"
    assert said in caplog.text
    caplog.clear()
    assert run("diff", output, begun) == 0
    assert caplog.text.count("is not finished") == 1


def test_score_as_json_is_one_object(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("score", output, "--by", "f1", "--truth", "answer", "--skip-failed", "--json") == 0
    [metric] = json.loads(capsys.readouterr().out)["metrics"]
    assert (metric["metric"], metric["mean"]["num"], metric["num_failed"]) == ("f1", 2, 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["score", "{}", "--by", "exat"], "Did you mean 'exact'"),
        (["score", "{}", "--by", "exact"], "needs --truth COLUMN"),
        (["score", "{}", "--by", "judge"], "--by judge needs --judge-model"),
        (["score", "{}.other", "--by", "json"], "there is no job at"),
        (["report", "{}", "{}", "{}"], "a report has one run or two, not 3"),
        (["report", "{}", "--rows", "-1"], "--rows is 0 or more"),
        (["export", "{}"], "one of --to and --push-to-hub is needed"),
        (["export", "{}", "--to", "x.xlsx"], "the ending tells the format"),
        (["show", "{}", "--where", "nothing > 1"], "--where cannot be asked of row 0"),
        (["diff", "{}", "{}", "--on", "id"], "has no column 'id'"),
        (["ls", "{}"], "is no folder"),
        (["show", ""], "the name of a run is empty"),
        (["report", ""], "the name of a run is empty"),
        (["merge", ""], "the name of a run is empty"),
        (["show", "/"], "there is no job at /"),
        (["eval", "mmul", "-m", "smollm2"], "no task is called 'mmul'"),
        (["eval", "gsm8k", "-m", "smollm2", "--limit", "0"], "--limit is at least 1"),
        (["eval", "gsm8k", "mmlu", "-m", "m", "-o", "x.jsonl"], "--output goes with one task"),
        (["eval", "gsm8k", "-m", "m", "--option", "dtype"], "--option is NAME=VALUE"),
    ],
)
def test_what_cannot_be_is_one_line_and_code_2(
    arguments: list[str], words: str, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(output).write_text("")  # the output itself, so that `ls` finds a file
    assert run(*(argument.format(output) for argument in arguments)) == 2
    described = capsys.readouterr().err
    assert words in described and "Traceback" not in described


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["eval", "gsm8k", "-m", "m"], "quire.evals.tasks.evaluate.evaluate"),
        (["score", "{}", "--by", "judge", "--judge-model", "m"], "quire.evals.scoring.judge.judge"),
    ],
)
def test_a_ctrl_c_says_how_to_go_on(
    arguments: list[str],
    where: str,
    output: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stopped(*given: object, **named: object) -> None:
        raise Interrupted("stopped: 3 rows are on disk. To continue:\n  quire ...")

    monkeypatch.setattr(where, stopped)
    assert run(*(argument.format(output) for argument in arguments)) == 75
    assert "To continue:" in capsys.readouterr().err


def test_report_writes_one_file_beside_the_run(
    output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("report", output) == 0
    page = Path(output).with_suffix(".html")
    assert capsys.readouterr().out.startswith(str(page))
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert run("report", output, output, "-o", str(page.with_name("two.html")), "--json") == 0
    assert json.loads(capsys.readouterr().out)["bytes"] > 50_000


def test_an_evaluation_s_options_are_checked_before_its_questions_are_fetched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fetched(*given: object, **named: object) -> None:
        raise RuntimeError("86 MB were fetched")

    monkeypatch.setattr("quire.evals.tasks.evaluate.rows_of", fetched)
    for wrong, words in ((["-o", "x.txt"], "ends in none"), (["--option", "no_such=1"], "no_such")):
        assert run("eval", "gsm8k", "-m", "m", *wrong) == 2
        assert words in capsys.readouterr().err


def test_the_folder_of_a_job_may_be_the_present_one(
    output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(output + ".quire")
    assert run("show", ".") == 0
    assert run("report", ".") == 0
    assert (
        capsys.readouterr()
        .out.rstrip()
        .splitlines()[-1]
        .startswith(str(Path(output).with_suffix(".html")))
    )


def test_export_by_ending(output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "copy.csv"
    assert run("export", output, "--to", str(target)) == 0
    assert capsys.readouterr().out == f"3 rows: {target}\n"
    assert run("export", output, "--to", str(target)) == 2


def test_ls_shows_every_run_below(
    output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored_job(tmp_path / "deep" / "er", ROWS, ["2"], name="half.jsonl", status="running")
    broken = tmp_path / "broken.jsonl.quire"
    broken.mkdir()
    (broken / "manifest.json").write_text("{")
    run("score", output, "--by", "exact", "--truth", "answer", "--json")
    capsys.readouterr()
    assert run("ls", str(tmp_path), "--json") == 0
    found: dict[str, Any] = {
        Path(each["run"]).name: each for each in json.loads(capsys.readouterr().out)
    }
    assert found["out.jsonl"]["score"] == "exact_match 0.3333"
    assert (found["out.jsonl"]["rows"], found["out.jsonl"]["failed"]) == (3, 1)
    # It says that it runs, but nobody holds it: it was killed.
    half, broken_one = found["half.jsonl"], found["broken.jsonl"]
    assert (half["status"], half["rows"], half["of"]) == ("stopped", 1, 3)
    assert (broken_one["status"], broken_one["rows"]) == ("damaged", None)
    assert run("ls", str(tmp_path)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and "1 of 3" in "".join(lines) and "None" not in "".join(lines)


def as_anybody(*arguments: str) -> list[str]:
    """The command as one whom modes of files bind, which they do not bind root to."""
    command = [sys.executable, "-m", "quire", *arguments]
    if os.geteuid() != 0:
        return command
    if shutil.which("setpriv") is None:
        pytest.skip("nothing here takes root's powers away")
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *command]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["ls", "."], 0, r"out\.jsonl +unreadable"),
        (["show", "out.jsonl"], 74, r"out\.jsonl\.quire/manifest\.json: Permission denied"),
        (["run", "in.jsonl", "-o", "new.jsonl", "-m", "x", "--prompt", "y", "--schema", "secret"],)
        + (74, "quire: secret: Permission denied"),
    ],
)
def test_what_may_not_be_read_is_named(
    arguments: list[str], code: int, said: str, output: str, tmp_path: Path
) -> None:
    job_dir, secret = Path(f"{output}.quire"), tmp_path / "secret"
    secret.write_text("{}")
    for each in (job_dir, secret):
        each.chmod(0)
    try:
        command = as_anybody(*arguments)
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    finally:
        job_dir.chmod(0o700)
    assert done.returncode == code and re.search(said, done.stdout + done.stderr), done


def test_show_filters_rows(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", output, "--failed") == 0
    printed = capsys.readouterr().out
    assert "Rows            3, 1 of them failed" in printed
    assert ">> ValueError: too long" in printed and "2*3?" not in printed
    assert run("show", output, "--where", "kind == 'sum'", "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["question"] for row in rows] == ["1+1?", "2+3?"]
    assert run("show", output, "--row", "1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["output"] == "5"


def test_a_batch_file_shows_what_it_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bodies: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": "Who?"}]},
        {"prompt": "Once upon"},
        {"prompt": [1, 2]},
    ]
    rows = [{"custom_id": str(n), "body": body} for n, body in enumerate(bodies)]
    output = stored_job(tmp_path, rows, ["a", "b", "c"], kind="batch", prompt=None)
    assert run("show", str(output)) == 0
    printed = capsys.readouterr().out
    assert "Who?\n\n>> a" in printed and "Once upon\n\n>> b" in printed and "[1, 2]" in printed


def test_an_answer_cannot_drive_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = stored_job(tmp_path, ROWS[:1], ["\x1b]0;owned\x07\x1b[2Jhello"])
    assert run("show", str(output)) == 0
    printed = capsys.readouterr().out
    assert "hello" in printed and "\x1b" not in printed and "\x07" not in printed


def test_diff_shows_scores_and_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(scored_run(tmp_path, 60, seed=s, name=f"{s}.jsonl").path) for s in (1, 2)]
    assert run("diff", *runs, "-n", "1") == 0
    printed = capsys.readouterr().out
    assert "60 rows in both" in printed and "exact_match,strict-match" in printed
    assert printed.count("--- row") == 1 and "[-" in printed and "{+" in printed
    assert run("diff", *runs, "--json") == 0
    assert json.loads(capsys.readouterr().out)["num_both"] == 60


def test_the_word_diff_marks_words() -> None:
    found = word_diff("the red cat", "the blue cat sat", colour=False)
    assert found == "the [-red-]{+blue+} cat{+ sat+}"
    assert "\x1b[31m[-red-]\x1b[0m" in word_diff("red", "blue", colour=True)


def test_reading_verbs_start_without_torch_or_pyarrow(output: str) -> None:
    code = (
        "import sys\nfrom quire.cli import main\n"
        "try: main(sys.argv[1:])\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'pyarrow', 'transformers', 'rich'} & set(sys.modules)))"
    )
    for arguments in (["score", output, "--by", "json"], ["show", output], ["report", output]):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[-1] == "[]"
