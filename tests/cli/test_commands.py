"""The command `quire`: what it lists, how fast it answers, and how it fails."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from quire.cli import exits, main
from quire.errors import (
    InvalidParams,
    ModelNotFound,
    NotEnoughMemory,
    NotSupported,
    QuireError,
    UnsupportedModel,
)


def run(*arguments: str) -> int:
    """The exit code of the command."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    code = ended.value.code
    return 0 if code is None else int(code)


def fresh_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def test_help_lists_every_verb_that_exists_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    listed = capsys.readouterr().out.split("Commands:")[1]
    verbs = {line.split()[0] for line in listed.splitlines() if line.startswith("  ")}
    jobs = {
        "run",
        "batch",
        "embed",
        "transcribe",
        "serve",
        "merge",
        "score",
        "eval",
        "report",
        "export",
        "ls",
        "show",
        "diff",
    }
    assert verbs == {"pull", "chat", "doctor"} | jobs


def test_help_brings_no_torch_and_answers_at_once() -> None:
    # Each of the small ones takes as long as a verb or two.
    unused = "torch numpy transformers asyncio email importlib.metadata importlib.resources "
    unused += "socket tempfile tomllib quire.weights quire.jobs.job"
    code = (
        "import sys\n"
        "from quire.cli import main\n"
        "try: main(['--help'])\n"
        f"except SystemExit: print(sorted({set(unused.split())} & set(sys.modules)))"
    )
    assert fresh_process("-c", code).stdout.splitlines()[-1] == "[]"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert fresh_process("-c", "from quire.cli import main; main(['--help'])").returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Of CPU: the wall clock would measure who else is running. A busy core is slower, too.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.7


def test_a_job_brings_only_what_it_uses() -> None:
    """The process that watches over an engine: no model, no numbers, no other kind of job."""
    unused = {"torch", "numpy", "quire.families", "quire.weights", "quire.openai_api", "quire.spec"}
    code = f"import quire.jobs.job, sys; print(sorted({unused} & set(sys.modules)))"
    assert fresh_process("-c", code).stdout == "[]\n"


def test_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    import quire

    assert run("--version") == 0
    assert capsys.readouterr().out == f"quire {quire.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        *(["frobnicate"], ["pull"], ["chat", "m", "--no-such-option"], ["chat", "m", ""]),
        *(["show", "x", "-n", "-1"], ["diff", "x", "y", "-n", "-1"]),
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == exits.USAGE
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "m", "--port", "x17"],
        ["serve", "m", "--port", "70017"],
        ["serve", "m", "--grace", "x17"],
        ["run", "in.csv", "--max-tokens", "x17"],
        ["run", "in.csv", "--temperature", "x17"],
        ["score", "out.jsonl", "--pass-at", "1", "--pass-at", "x17"],
        ["show", "out.jsonl", "-n", "1.17"],
        ["chat", "m", "--max-tokens", "-17"],
    ],
    ids=" ".join,
)
def test_a_value_that_is_no_number_is_shown(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == exits.USAGE
    said = capsys.readouterr().err
    assert f"'{arguments[-2]}'" in said and arguments[-1] in said


@pytest.mark.parametrize("flag", ["--model", "-m"])
def test_an_argument_written_as_an_option_is_said_to_have_none(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("serve", flag, "smollm2") == exits.USAGE
    assert "quire serve MODEL" in capsys.readouterr().err
    assert run("serve", "smollm2", "--prot", "9") == exits.USAGE
    assert "given without" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "instead"),
    [
        ("--max-model-len", "--option max_model_len=VALUE"),
        ("--no-enable-prefix-caching", "--option enable_prefix_caching=false"),
        ("-dp", "--option data_parallel_size=VALUE"),
        ("-q", "--option quantization=VALUE"),
    ],
)
def test_an_option_of_the_engine_as_an_option_of_a_verb_is_said_to_be_one(
    flag: str, instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("serve", "smollm2", flag) == exits.USAGE
    assert instead in capsys.readouterr().err
    assert run("report", "x.jsonl", flag) == exits.USAGE  # a verb without an engine
    assert "--option" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ModelNotFound("nothing at x; pull it first"), 69),
        (UnsupportedModel("gpt2 is not known; llama is"), 69),
        (NotEnoughMemory("1 GB needed, 0.5 GB free"), 69),
        (InvalidParams("temperature must be >= 0, not -1"), 2),
        (NotSupported("LoRA is not built; merge the weights"), 2),
        (FileNotFoundError(2, "No such file", "x"), 74),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_kind_of_error_has_its_code_and_one_line(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended, exits.reported():
        raise error
    assert ended.value.code == code
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("quire: ")
    if isinstance(error, QuireError):
        assert str(error) in line


def test_a_bug_names_the_file_with_its_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as ended, exits.reported():
        raise RuntimeError("two pages stuck together")
    assert ended.value.code == exits.BUG
    [saved] = tmp_path.iterdir()
    assert str(saved) in capsys.readouterr().err
    assert "two pages stuck together" in saved.read_text(encoding="utf-8")


def test_pull_prints_where_the_model_is(
    default_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("pull", "smollm2", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["path"] == str(default_model)
    assert facts["bytes"] == default_model.stat().st_size


def test_pulling_what_nobody_knows_exits_with_69_and_the_way_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert run("pull", "no-such-model") == exits.UNAVAILABLE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "no-such-model" in printed.err and "Traceback" not in printed.err
