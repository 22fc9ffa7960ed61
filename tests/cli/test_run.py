"""`quire run` as a user types it, with an engine that needs no model."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.jobs.driving import ENVIRONMENT, ROOT, command, read_lines, run, write_rows


def quire_run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run(command("run", *arguments))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "in.jsonl", 5)


def test_a_run_says_what_it_did_on_stderr_and_as_json_on_stdout(
    source: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    usual = (source, "-m", "fake", "-p", "{{ text }}", "-o", output, "--max-tokens", 2)
    done = quire_run(*usual)
    assert done.returncode == 0 and done.stdout == ""
    assert "5 of 5 rows answered" in done.stderr and str(output) in done.stderr
    assert f"5 of 5 rows answered, all of them before: {output}" in quire_run(*usual).stderr
    facts = json.loads(quire_run(*usual, "--json").stdout)
    assert (facts["rows"], facts["ok"], facts["before"]) == (5, 5, 5)


def test_a_toml_file_holds_the_same_options_and_flags_win(source: Path, tmp_path: Path) -> None:
    config = tmp_path / "job.toml"
    config.write_text(
        f'input = ["{source}"]\noutput = "{tmp_path / "out.jsonl"}"\nmodel = "fake"\n'
        'prompt = "{{ text }}"\nmax-tokens = 3\nlimit = 2\n'
        '[[settings]]\nname = "cold"\n[[settings]]\nname = "hot"\ntemperature = 1.0\n'
    )
    assert quire_run("--config", config, "--limit", 3, "-q").returncode == 0
    found = read_lines(tmp_path / "out.jsonl")
    assert [row["setting"] for row in found] == ["cold", "hot"] * 3
    assert {row["output_tokens"] for row in found} == {3}


def test_parameters_and_options_by_name(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    done = quire_run(
        *(source, "-m", "fake", "-p", "{{ text }}", "-o", output, "--param", "min_tokens=2"),
        *("--param", "max_tokens=2", "--option", "max-model-len=64", "-q"),
        *("--param", "ignore_eos=True", "--param", "stop=Truth"),
    )
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "out.jsonl.quire" / "manifest.json").read_text())
    assert manifest["sampling"]["min_tokens"] == 2
    assert manifest["sampling"]["ignore_eos"] is True  # as Python writes it, and not a text
    assert manifest["sampling"]["stop"] == "Truth"
    assert manifest["options"] == {"max_model_len": 64}
    assert manifest["command"][:2] == ["quire", "run"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["-p", "{{ text }}"], 2, "model is missing"),
        (["-p", "{{ text", "-m", "fake"], 2, "does not compile"),
        (["-m", "fake"], 2, "prompt or messages"),
        (["-m", "fake", "-p", "x", "--param", "temperature"], 2, "NAME=VALUE"),
        (["-m", "fake", "-p", "x", "--option", "nonsense=1"], 2, "nonsense"),
        (["-m", "fake", "-p", "x", "--regex", "[a-"], 2, "a class that is not closed"),
        (["-m", "fake", "-p", "x", "--schema", '{"type": "objct"}'], 2, "no type 'objct'"),
        (["-m", "fake", "-p", "x", "--config", "{missing}"], 74, "No such file"),
    ],
)
def test_wrong_usage_is_told_with_its_code(
    source: Path, tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    missing = str(tmp_path / "missing.toml")
    given = [argument.replace("{missing}", missing) for argument in arguments]
    done = quire_run(source, "-o", tmp_path / "out.jsonl", *given)
    assert done.returncode == code and words in done.stderr
    assert "Traceback" not in done.stderr


def test_failed_rows_give_code_3_and_a_changed_job_code_2(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"text": "a"}\nnonsense\n')
    usual = (source, "-m", "fake", "-o", output, "--max-tokens", 2, "-q")
    done = quire_run(*usual, "-p", "{{ text }}")
    assert done.returncode == 3 and "1 failed (`quire show --failed` shows them" in done.stderr
    done = quire_run(*usual, "-p", "other {{ text }}")
    assert done.returncode == 2 and "prompt: " in done.stderr
    assert quire_run(*usual, "-p", "other {{ text }}", "--reuse").returncode == 3


def test_a_job_without_rows_says_why(source: Path, tmp_path: Path) -> None:
    given = ("-m", "fake", "-p", "{{ text }}", "--where", "text == 'nothing'", "-q")
    done = quire_run(source, "-o", tmp_path / "out.jsonl", *given)
    assert done.returncode == 0 and "none that --where and its like choose" in done.stderr


def test_stdin_is_an_input_and_the_job_goes_on_without_it(tmp_path: Path) -> None:
    arguments = command("run", "-", "-m", "fake", "-p", "{{ text }}", "-o", tmp_path / "out.jsonl")
    for given in ('{"text": "a"}\n{"text": "b"}\n', ""):
        done = subprocess.run(
            arguments, input=given, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert [row["text"] for row in read_lines(tmp_path / "out.jsonl")] == ["a", "b"]


def test_a_plan_is_shown_and_nothing_is_made(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    done = quire_run(source, "-m", "fake", "-p", "{{ text }}", "-o", output, "--plan")
    assert done.returncode == 0, done.stderr
    assert "5 in 1 file" in done.stdout and "KV blocks" in done.stdout and "time" in done.stdout
    assert list(tmp_path.iterdir()) == [source]


def test_progress_is_plain_lines_where_there_is_no_terminal(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    from quire.jobs.store.record import ResultRecord
    from quire.jobs.supervise import progress
    from quire.jobs.supervise.metrics import MetricsFile

    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.0)
    stream = io.StringIO()
    shown = progress.Progress(MetricsFile(tmp_path), stream=stream)
    shown.total, shown.before = 10, 4
    shown.result(ResultRecord(0, "0:0", "", 1, ("x",), ("stop",), 5, 7))
    shown.result(ResultRecord(1, "0:1", "", 1, error="bad", error_type="bad"))
    shown.tick()
    [line] = stream.getvalue().splitlines()
    assert (
        line.startswith("6/10 rows")
        and "before 4  ok 1  failed 1  ETA" in line
        and "\x1b" not in line
    )
