"""Every example runs, and so do the README's lines, as a user runs them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent

# What each example's output cannot do without.
EXPECTED = {
    "offline.py": ["'The three primary colours are' -> '"],
    "chat.py": ["What is the capital of France?\n", "Paris"],
    "per_prompt_params.py": ["three different answers:", "(stop)", "(length)", "': -"],
    "streaming_results.py": ["0: '", "5: '", "6: prompt 6: the prompt is empty", "callback"],
    "structured.py": ['"country": "', "The country is France.", "1914"],
    "logits_processors.py": ["as it is   '", "no repeats '", "no digits  '"],
    "tool_calls.py": ["Paris? -> get_weather({'city': 'Paris'})", "get_population("],
    "beam_search.py": ["Paris", "(length)", "likeliest years: ['", "1989"],
    "score_continuations.py": ["> Paris", "what the model would write itself", "of 5 right"],
    "job.py": ["6 of 6 rows answered, 0 of them before", "  a lemon: "],
    "scored_job.py": ["6 of 6 rows answered", "normalised_match ", "results/capitals.html"],
    "plan.py": ["1 group of 26 prompts", "KV blocks", "time"],
}
# Each loads the default model again. In the gate their calls are type-checked, and what they call
# has tests of its own; what offline.py does the README does, too.
WITH_LONG = {
    *("per_prompt_params.py", "streaming_results.py", "logits_processors.py", "beam_search.py"),
    *("score_continuations.py", "scored_job.py", "plan.py", "offline.py", "tool_calls.py"),
}
HAVE_THEIR_OWN_TEST = {
    *("shared_prefix.py", "demo.py", "images.py", "charts.py"),
    *("sounds.py", "transcribe.py", "video.py"),
}
# What it asserts holds whatever a model writes: three of 30 layers do in the gate.
FOR_ANY_MODEL, FEW_LAYERS = {"clients"}, {"num_hidden_layers": 3}
PAGES = {"outputs": 5, "clients": 6}  # blocks of Python, which are one script together
# One process for all, each as a program of its own in a folder of its own: importing torch takes
# longer than most of them.
RUN_EACH = """
import contextlib, io, json, os, runpy, sys, traceback
model, told = sys.argv[1], sys.stdout
for script in sys.argv[2:]:
    os.mkdir(os.path.basename(script))
    os.chdir(os.path.basename(script))
    sys.argv, failed, printed = [script, model], None, io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            runpy.run_path(script, run_name="__main__")
        except BaseException:
            failed = traceback.format_exc()
    os.chdir("..")
    print(json.dumps([os.path.basename(script), printed.getvalue(), failed]), file=told)
"""


def run(*command: object, cwd: Path) -> str:
    """What the script prints, with every warning an error."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *map(str, command)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def example(name: str) -> Path:
    return ROOT / "examples" / name


def prompts() -> list[dict[str, Any]]:
    lines = example("prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def python_of(page: str) -> list[str]:
    [path] = [*ROOT.glob(f"{page}.md"), *(ROOT / "docs").glob(f"{page}.md")]
    return re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.S)


def test_every_example_has_a_test_and_is_named_in_the_readme() -> None:
    names = {path.name for path in (ROOT / "examples").glob("*.py")}
    assert names == EXPECTED.keys() | HAVE_THEIR_OWN_TEST
    assert names == set(re.findall(r"\(examples/(\w+\.py)\)", readme()))


@pytest.fixture(scope="module")
def printed(
    default_model: Path, tmp_path_factory: pytest.TempPathFactory, long_mode: bool
) -> dict[str, list[str]]:
    """By the name of an example or a page: what it printed, and how it failed if it did."""
    folder = tmp_path_factory.mktemp("examples")
    names = [name for name in EXPECTED if long_mode or name not in WITH_LONG]
    scripts = [example(name) for name in (*names, "shared_prefix.py")]
    written = {"README": python_of("README")[0]}
    for name in PAGES:
        model = repr(str(default_model))
        if name in FOR_ANY_MODEL and not long_mode:
            model += ", hf_overrides=" + repr(FEW_LAYERS)
        written[name] = "\n".join(python_of(name)).replace('"smollm2"', model)
    for name, code in written.items():
        scripts.append(folder / f"{name}.md")
        scripts[-1].write_text(code, "utf-8")
    (folder / "cwd").mkdir()
    told = run("-c", RUN_EACH, default_model, *scripts, cwd=folder / "cwd")
    return {name: rest for name, *rest in map(json.loads, told.splitlines())}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long if n in WITH_LONG else ()) for n in EXPECTED]
)
def test_the_example_runs(name: str, printed: dict[str, list[str]]) -> None:
    text, failed = printed[name]
    assert failed is None, failed
    for words in EXPECTED[name]:
        assert words in text


def test_the_shared_prefix_is_computed_once(printed: dict[str, list[str]]) -> None:
    text, failed = printed["shared_prefix.py"]
    assert failed is None, failed
    assert re.search(r"Japan +Tokyo", text)
    [(cached, total)] = re.findall(r"(\d+) of (\d+) prompt tokens", text)
    # Five of six prompts find the whole blocks of the preamble.
    assert int(cached) > 0.6 * int(total)


def test_the_demo_answers_every_prompt(default_model: Path, tmp_path: Path) -> None:
    printed = run(example("demo.py"), str(default_model), "4", cwd=tmp_path)
    written = (tmp_path / "results" / "demo.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in written]
    assert [row["id"] for row in rows] == [row["id"] for row in prompts()]
    assert {row["finish_reason"] for row in rows} <= {"stop", "length"}
    assert str(tmp_path / "results" / "demo.jsonl") in printed.replace("\n", "")
    [share] = re.findall(r"(\d+)% of the prompts from the cache", printed)
    assert int(share) > 40


def test_the_readme_runs_and_prints_what_it_says(printed: dict[str, list[str]]) -> None:
    text, failed = printed["README.md"]
    assert failed is None, failed
    assert text.strip() == readme().split("It prints:")[1].split("```")[1].strip()


@pytest.mark.parametrize("name", PAGES)
def test_the_page_runs(name: str, printed: dict[str, list[str]]) -> None:
    assert len(python_of(name)) == PAGES[name]
    _, failed = printed[f"{name}.md"]
    assert failed is None, failed


def test_the_prompts_are_as_many_and_as_varied_as_promised() -> None:
    rows = prompts()
    assert f"answers {len(rows)} prompts" in readme()
    assert len(rows) >= 72
    assert len({row["id"] for row in rows}) == len(rows)
    assert len({row["task"] for row in rows}) >= 8
    assert len({row["language"] for row in rows}) >= 5
    preambles = [row["messages"][0]["content"] for row in rows if len(row["messages"]) > 1]
    assert max(preambles.count(preamble) for preamble in preambles) >= 24


def test_the_prompts_fit_and_share_their_preamble(default_model: Path) -> None:
    from quire.tokenizers import get_tokenizer

    tokenizer = get_tokenizer(default_model)
    rendered = {
        row["id"]: tokenizer.apply_chat_template(
            row["messages"], add_generation_prompt=True, return_dict=False
        )
        for row in prompts()
    }
    assert max(len(token_ids) for token_ids in rendered.values()) <= 300
    few_shot = [rendered[row["id"]] for row in prompts() if len(row["messages"]) > 2]
    assert len(few_shot) >= 24
    assert len(os.path.commonprefix(few_shot)) > 64
