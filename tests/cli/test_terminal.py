"""Other people's texts on the terminal: written out, never acted on, whichever way they come."""

from __future__ import annotations

import ast
import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from quire.cli import exits, main
from quire.errors import CorruptModel, QuireError
from quire.evals.scoring.scores import MetricScore, keep_summary
from quire.evals.scoring.statistics import Mean
from quire.jobs.store.manifest import Manifest
from quire.jobs.store.record import ResultRecord
from quire.jobs.supervise.metrics import MetricsFile
from quire.jobs.supervise.progress import Progress
from quire.safe_text import one_line, shown, shown_json, without_secrets
from tests.jobs.stored import stored_job

CLI = Path(__file__).parents[2] / "quire" / "cli"
# A window's title, a cleared screen by an 8-bit control, a line written over, text turned round.
EVIL = "\x1b]0;owned\x07\x9b2J\rgone\u202eback"
HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


def run(terminal: Terminal, *arguments: str) -> int:
    """The command with both of its streams on this terminal."""
    with (
        redirect_stdout(terminal),
        redirect_stderr(terminal),
        pytest.raises(SystemExit) as ended,
    ):
        main(list(arguments))
    return int(ended.value.code or 0)


def evil_job(folder: Path, name: str) -> Path:
    """Every text of a job that somebody else may have written."""
    records = [
        ResultRecord(
            0, f"key{EVIL}", "c", 1, outputs=(f"{name} {EVIL}",), finish_reasons=(EVIL,),
            prompt_tokens=1, output_tokens=1,
        ),
        ResultRecord(1, f"other{EVIL}", "c", 1, error=f"failed {EVIL}", error_type=f"type{EVIL}"),
    ]  # fmt: skip
    output = stored_job(
        folder,
        [{"question": f"asked {EVIL}", EVIL: EVIL}] * 2,
        records,
        name=f"{name}.jsonl",
        created=f"2026{EVIL}",
        version=f"1{EVIL}",
        command=("quire", EVIL),
        model=f"{name}{EVIL}",
        where=f"'{EVIL}'",
        system=f"be {EVIL}\nsecond line",
        num_failed=1,
    )
    mean = Mean(0.5, 0.1, 2)
    keep_summary(
        output.with_name(output.name + ".quire"),
        [MetricScore(f"metric{EVIL}", mean, first_problem=EVIL, groups={EVIL: {EVIL: mean}})],
    )
    for metric in (f"metric{EVIL}",):
        scores = output.with_name(output.name + ".quire") / "scores"
        scores.mkdir(exist_ok=True)
        (scores / f"{metric}.jsonl").write_text("")
    return output


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "{a}"],
        ["show", "{a}", "--failed"],
        ["show", "{a}", "--json"],
        ["show", "{a}", "--where", "nothing"],
        ["show", f"{EVIL}"],
        ["show", "{a}", f"--{EVIL}"],
        ["ls", "{folder}"],
        ["ls", "{folder}", "--json"],
        ["diff", "{a}", "{b}"],
        ["diff", "{a}", "{b}", "--json"],
        ["diff", "{a}", "{b}", "--on", f"{EVIL}"],
        ["score", "{a}", "--by", "json", "--group", "question"],
        ["score", "{a}", "--by", "exact", "--truth", "absent"],
        ["report", "{a}", "-o", "{folder}/x.html"],
        ["export", "{a}", "--to", f"{{folder}}/{EVIL}.csv"],
        ["export", "{a}", "--to", f"{{folder}}/{EVIL}.other"],
    ],
)
def test_no_verb_lets_a_jobs_texts_act_on_the_terminal(
    arguments: list[str], tmp_path: Path, terminal: Terminal
) -> None:
    folder = tmp_path / f"runs{EVIL.replace('/', '')}"
    places = {"folder": str(folder), "a": evil_job(folder, "a"), "b": evil_job(folder, "b")}
    run(terminal, *(word.format(**places) if "{" in word else word for word in arguments))
    own_colours = re.sub(r"\x1b\[(31|32|0)m", "", terminal.getvalue())
    assert own_colours.strip()
    assert not HARMFUL.findall(own_colours)
    if "--json" in arguments:
        for line in own_colours.splitlines():
            assert EVIL in str(json.loads(line)) or "\\x1b" in str(json.loads(line))


def test_a_value_of_a_job_cannot_forge_a_line(tmp_path: Path, terminal: Terminal) -> None:
    job = stored_job(tmp_path, [{"question": "q"}], ["a"], model="m\nRows            999")
    assert run(terminal, "show", str(job)) == 0
    assert [line for line in terminal.getvalue().splitlines() if line.startswith("Rows")] == [
        "Rows            1, 0 of them failed"
    ]


@dataclass
class _Answer:
    text: str = EVIL
    token_ids: list[int] = field(default_factory=lambda: [1])
    finish_reason: str = "stop"


@dataclass
class _Output:
    outputs: list[_Answer]
    prompt_token_ids: list[int] = field(default_factory=lambda: [1])


class _EvilLLM:
    def __init__(self, model: str) -> None:
        if "broken" in model:
            raise CorruptModel(f"{model}: {EVIL}")

    def __enter__(self) -> _EvilLLM:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def chat(self, *given: Any, **more: Any) -> list[_Output]:
        return [_Output([_Answer()])]


def test_an_answer_is_shown_on_a_terminal_and_kept_in_a_pipe(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.LLM", _EvilLLM, raising=False)
    assert run(terminal, "chat", "model", "question") == 0
    assert run(terminal, "chat", "model", "question", "--json") == 0
    assert run(terminal, "chat", f"broken{EVIL}", "question") == exits.UNAVAILABLE
    assert terminal.getvalue().count("owned") == 4
    assert not HARMFUL.findall(terminal.getvalue())
    pipe = io.StringIO()
    with redirect_stdout(pipe), pytest.raises(SystemExit):
        main(["chat", "model", "question"])
    assert pipe.getvalue() == EVIL + "\n"


def test_the_doctor_names_folders_safely(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("QUIRE_HOME", str(tmp_path / EVIL))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run(terminal, "doctor")
    assert "owned" in terminal.getvalue()
    assert not HARMFUL.findall(terminal.getvalue())


def test_lines_of_the_engine_are_shown_safely_during_a_run(tmp_path: Path) -> None:
    plain, live = io.StringIO(), Terminal()
    for stream in (plain, live):
        progress = Progress(MetricsFile(tmp_path), stream=stream)
        before = len(stream.getvalue())
        progress.note(f"a library says {EVIL}")
        said = stream.getvalue()[before:]
        assert "\\x1b]0;owned\\x07\\x9b2J" in said and "\x1b]0" not in said
        assert not {"\x07", "\x9b", "\u202e"} & set(said)
        progress.close()


def test_an_error_that_nobody_caught_is_safe_too() -> None:
    assert not HARMFUL.findall(str(QuireError(f"tokenizer.json says {EVIL}\nsecond line")))
    assert "\nsecond line" in str(QuireError("first\nsecond line"))


def test_what_is_harmless_stays_as_it_is() -> None:
    text = "naïve\tcafé\n日本語 می\u200cخواهم 👩\u200d🔬 \ue000"
    assert shown(text) == text
    assert shown("a\r\nb") == "a\nb"
    assert json.loads(shown_json(json.dumps({"t": EVIL}, ensure_ascii=False))) == {"t": EVIL}
    assert one_line("a\nb\tc") == "a\\nb\\tc"


def test_secrets_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "from-the-environment")
    described = without_secrets(
        "https://me:pw@host/x?a=b@c and from-the-environment, a\\nsecret, hf_" + "a1B2" * 8,
        "a\nsecret",
    )
    assert described == "https://...@host/x?a=b@c and ..., ..., ..."
    assert without_secrets("hf_overrides, a@b.c, https://host/@x") == (
        "hf_overrides, a@b.c, https://host/@x"
    )


def test_nothing_in_the_room_prints_but_the_door() -> None:
    for path in sorted(CLI.glob("*.py")):
        if path.name == "terminal.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("print", "typer.echo", "typer.secho"), f"{path}: {called}"
                assert not called.endswith(".write") or path.name == "exits.py", path


def test_a_manifest_of_texts_is_what_the_tests_mean(tmp_path: Path) -> None:
    """That the fields really reach the manifest, or the tests above would show nothing."""
    output = evil_job(tmp_path, "a")
    loaded = Manifest.load(output.with_name(output.name + ".quire"))
    assert loaded == replace(loaded) and EVIL in loaded.model and EVIL in loaded.created


def test_a_bug_is_told_whole_where_no_file_can_be_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/there/is/none")
    with pytest.raises(SystemExit, match=str(exits.BUG)), exits.reported():
        raise LookupError("odd")
    said = capsys.readouterr().err
    assert said.startswith("quire: a bug: LookupError: odd") and 'raise LookupError("odd")' in said
