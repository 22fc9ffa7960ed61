"""Options that are empty texts: a shell's variable that is not set names no file."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.errors import InvalidOption
from tests.jobs.driving import write_rows
from tests.jobs.test_job import answer, make


def test_an_input_without_a_name_is_not_the_present_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = write_rows(tmp_path / "in.jsonl", 2), tmp_path / "out.jsonl"
    monkeypatch.chdir(tmp_path)
    for given in ("", [source, ""]):
        with pytest.raises(InvalidOption, match="one is empty"):
            answer(given, output)
    with pytest.raises(InvalidOption, match="output is the name of a file"):
        make(source, "")  # type: ignore[arg-type]


def test_an_empty_prompt_may_stand_beside_a_system_message(tmp_path: Path) -> None:
    source, output = write_rows(tmp_path / "in.jsonl", 2), tmp_path / "out.jsonl"
    made = answer(source, output, prompt="", system="Say something.", model="fake:chat=true")
    assert made.num_ok == 2
