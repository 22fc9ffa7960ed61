"""`quire run --print-config`: flags made into a file that says the same."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from quire.cli import app
from quire.cli.run import merged
from quire.cli.toml_text import toml_text
from quire.errors import InvalidOption
from quire.jobs.job import make_options
from tests.jobs.driving import command, run, write_rows

FLAGS = (
    *("-m", "fake", "-p", 'Say "{{ text }}"\n\tnow, é\x7f', "-n", 2),
    *("--temperature", 0.5, "--param", "min_tokens=2", "--param", "logit_bias={}", "--seed", 7),
    *("--option", "max_model_len=99", "--option", "dtype=float32", "--stop", "\\n", "--stop", "x"),
    *(
        "--tensor-parallel-size",
        2,
        "--limit",
        3,
        "--shard",
        "1/2",
        "--where",
        "text != 'x'",
        "--timings",
        "--raw",
    ),
)


def test_what_is_printed_is_the_same_job(tmp_path: Path) -> None:
    source, output = write_rows(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    first = run(command("run", source, "-o", output, *FLAGS, "--print-config"))
    assert first.returncode == 0, first.stderr
    config = tmp_path / "job.toml"
    config.write_text(first.stdout)
    again = run(command("run", "--config", config, "--print-config"))
    assert tomllib.loads(again.stdout) == tomllib.loads(first.stdout)
    assert not output.exists()
    assert run(command("run", "--config", config, "-q")).returncode == 0
    same = run(command("run", source, "-o", output, *FLAGS, "--json", "-q"))
    assert '"before": 2' in same.stdout, same.stderr


@pytest.mark.parametrize(
    "options",
    [
        {"a": "\x00\x1f\x7f\u2028'\"\\", "b": [1, 2.5, True], "c": "x"},
        {"settings": [{"name": "a b", "temperature": 1e-7}, {"name": "c", "stop": ["x", "y"]}]},
        {"sampling": {"logit_bias": {"1": -2.0}, "odd key é": 1}, "last": False},
    ],
)
def test_every_value_comes_back(options: dict[str, Any]) -> None:
    assert tomllib.loads(toml_text(options)) == options


def test_flags_win_one_by_one() -> None:
    config = {"limit": 2, "sampling": {"top_k": 1, "top_p": 0.5}, "options": {"dtype": "float32"}}
    flags = {"sampling": {"top_k": 5}, "seed": 1}
    assert merged(config, flags) == {
        "limit": 2,
        "sampling": {"top_k": 5, "top_p": 0.5},
        "options": {"dtype": "float32"},
        "seed": 1,
    }


def test_ranks_are_an_option_of_the_engine_with_a_flag_of_its_own() -> None:
    given = {"prompt": "{{ text }}", "options": {"dtype": "float32"}, "tensor_parallel_size": 4}
    made = make_options("in.jsonl", "out.jsonl", "fake", given)
    assert made.options == {"dtype": "float32", "tensor_parallel_size": 4}
    twice = {**given, "options": {"tensor_parallel_size": 2}}
    with pytest.raises(
        InvalidOption, match="given twice, as 4 and among the engine's options as 2"
    ):
        make_options("in.jsonl", "out.jsonl", "fake", twice)


@pytest.mark.parametrize("verb", ["run", "batch", "embed", "eval", "serve", "score"])
def test_every_verb_that_opens_an_engine_has_the_flag(verb: str) -> None:
    found = typer.main.get_command(app).commands[verb]  # type: ignore[attr-defined]
    flags = {flag for parameter in found.params for flag in parameter.opts}
    assert f"--{'judge-' if verb == 'score' else ''}tensor-parallel-size" in flags


def test_one_column_is_written_without_a_list_and_a_schema_as_a_path(tmp_path: Path) -> None:
    single = {"image": "photo", "audio": "call", "video": "clip"}
    made = make_options("in.jsonl", "out.jsonl", "fake", {"prompt": "{{ text }}", **single})
    assert made.media_columns() == {kind: (column,) for kind, column in single.items()}
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    made = make_options("in", "o.jsonl", "m", {"prompt": "{{ text }}", "schema": schema})
    assert made.schema == str(schema)
