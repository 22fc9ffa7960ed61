"""A template is a stranger's code: none of these runs, sees or changes anything."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest

from quire.errors import InvalidPrompt
from quire.inputs.chat import render_chat
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
        text = render_chat(chat, template, special_tokens={"bos_token": "<s>"})
    except InvalidPrompt:
        text = ""
    assert not INSIDES.search(text), text
    assert not canary.exists(), "it ran"
    assert chat == CHAT, "it wrote into the messages"
    again = render_chat(chat, "{{ messages[0].content }}", special_tokens={})
    assert again == "hello", "it changed what others see"


def test_there_are_enough_escapes() -> None:
    assert len(set(ESCAPES)) == len(ESCAPES) >= 50


def test_the_check_would_notice() -> None:
    import jinja2

    opened = jinja2.Environment().from_string(ESCAPES[0]).render()
    assert INSIDES.search(opened)
