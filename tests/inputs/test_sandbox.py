"""A template is a stranger's code: none of these runs, sees or changes anything."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from quire.errors import InvalidPrompt
from quire.inputs.chat import write_chat
from tests.inputs.escapes import ESCAPES

CHAT = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "there"}]
# What would show if one came through: Python's names for its insides, or a line of passwd.
INSIDES = re.compile(r"<class|<function|<built-in|<module|<slot|object at 0x|builtins|root:")


@pytest.mark.parametrize("number", range(len(ESCAPES)))
def test_nothing_leaves_the_sandbox(number: int, tmp_path: Path) -> None:
    canary = tmp_path / "ran"
    template = ESCAPES[number].replace("CANARY", str(canary))
    chat = copy.deepcopy(CHAT)
    try:
        text = write_chat(chat, template, special_tokens={"bos_token": "<s>"}).text
    except InvalidPrompt:
        text = ""
    assert not INSIDES.search(text), text
    assert not canary.exists(), "it ran"
    assert chat == CHAT, "it wrote into the messages"
    again = write_chat(chat, "{{ messages[0].content }}", special_tokens={}).text
    assert again == "hello", "it changed what others see"


def test_there_are_enough_escapes() -> None:
    assert len(set(ESCAPES)) == len(ESCAPES) >= 50


def test_the_check_would_notice() -> None:
    import jinja2

    opened = jinja2.Environment().from_string(ESCAPES[0]).render()
    assert INSIDES.search(opened)


def test_no_template_runs_for_ever_or_fills_the_memory(long_mode: bool) -> None:
    """In a process that has 300 MB more than it begins with, and 4 s for each."""
    tried = subprocess.run(
        [sys.executable, "-m", "tests.inputs.greedy", "1" if long_mode else "97"],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line.partition("\t") for line in tried.stdout.splitlines()]
    assert tried.returncode == 0, f"{lines[-1:]} {tried.stderr[-500:]}"
    for template, _, outcome in lines:
        how, seconds = json.loads(outcome)
        assert how.startswith(("refused", "wrote")), (template, how)
        assert "not enough memory" not in how, template
        assert seconds < 2, (template, seconds)
    assert len(lines) > 60
    assert sum("refused" in outcome for _, _, outcome in lines) > 35


# Jinja takes these, and Python takes none of what Jinja makes of them.
NOT_PYTHON = [
    "{% for a in b %}" * 30 + "{% endfor %}" * 30,
    "{% if a %}" * 150 + "{% endif %}" * 150,
    "{{ " + "(" * 300 + "1" + ")" * 300 + " }}",
    "{{ " + "-" * 5000 + "1 }}",
    "{{ " + "not " * 5000 + "1 }}",
    "{{ " + "[" * 500 + "]" * 500 + " }}",
    "{{ a" + ".b" * 3000 + " }}",
    "{{ a" + "|trim" * 3000 + " }}",
    "{{ f(" + "".join(f"a{i}=1," for i in range(300)) + "a0=1) }}",
    "{% macro m(a, a) %}{% endmacro %}",
    "{% set a.b.c = 1 %}",
    "{% from 'x' import __y__ %}",
    "{% set None = 1 %}{% set True = 1 %}",
    "{% for True in [1] %}{% endfor %}",
    "{{ 1" + "+1" * 20000 + " }}",
    "{{ 1" + "-1" * 5000 + " }}",
    "{{ 1e999999 }}{{ 1_" + "0" * 9999 + " }}",
    "{% break %}",
    "{% continue %}",
    "x" * 300_000,
    "{{ a }}" * 40_000,
    "{{ 'x' ~ '\ud800' }}",
    "{{ '\0' }}\0",
]


@pytest.mark.parametrize("number", range(len(NOT_PYTHON)))
def test_templates_that_python_cannot_compile_are_refused(number: int) -> None:
    try:
        text = write_chat(CHAT, NOT_PYTHON[number], special_tokens={}).text
    except InvalidPrompt as error:
        assert "chat template" in str(error)
    else:
        assert len(text) < 300_000
