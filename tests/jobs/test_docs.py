"""The page on jobs is run as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.jobs.driving import ENVIRONMENT, ROOT, read_lines

PAGE = (ROOT / "docs" / "jobs.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


def run(*arguments: object, cwd: Path, model: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(argument).replace("smollm2", str(model)) for argument in arguments],
        cwd=cwd,
        env={**ENVIRONMENT, "PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_on_jobs_runs(default_model: Path, tmp_path: Path) -> None:
    for script in blocks("sh"):
        run("bash", "-euc", script, cwd=tmp_path, model=default_model)
    labels = read_lines(tmp_path / "labels.jsonl")
    assert [row["stars"] for row in labels] == ["5", "1", "4"]
    assert {row["output"] for row in labels} <= {"positive", "negative"}
    [answer] = read_lines(tmp_path / "out.jsonl")
    assert answer["response"]["body"]["choices"][0]["message"]["content"]
    [code] = blocks("python")
    printed = run(sys.executable, "-c", code, cwd=tmp_path, model=default_model)
    assert printed == "3 of 3 rows answered\n"
    [config] = blocks("toml")
    (tmp_path / "job.toml").write_text(config.replace("smollm2", str(default_model)))
    run("quire", "run", "--config", "job.toml", cwd=tmp_path, model=default_model)
    settings = [row["setting"] for row in read_lines(tmp_path / "two.jsonl")]
    assert settings == ["greedy", "warm"] * 2


def test_every_type_of_error_and_every_exit_code_is_on_the_page() -> None:
    room = ROOT / "quire" / "jobs"
    mine = [*room.glob("*.py"), *(room / "input").glob("*.py"), *(room / "child").glob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in mine)
    raised = set(re.findall(r'BadRow\(\s*"(\w+)"', text)) | {"engine_crash", "engine_hang"}
    raised |= set(re.findall(r'\(\w+, "(\w+)"\),\n', text)) - {"row_error"}
    named = set(re.findall(r"`(\w+)`", PAGE))
    assert raised - named <= {"invalid_request"}
    from quire.cli import exits

    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.M)}
    known = {getattr(exits, name) for name in dir(exits) if name.isupper()} | {0}
    assert codes == {code for code in known if isinstance(code, int)}
