"""Arguments that are empty: a shell's variable that is not set names no file and no folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.cli import main
from tests.jobs.driving import write_rows
from tests.jobs.stored import stored_job

RUN = "run {source} -m fake -p x -o {folder}/new.jsonl"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("run '' -m fake -p x -o {folder}/new.jsonl", "input"),
        ("run {source} -m '' -p x -o {folder}/new.jsonl", "model"),
        ("run {source} -m fake -p x -o ''", "output"),
        (f"{RUN} --job ''", "job"),
        (f"{RUN} --config ''", "--config"),
        (f"{RUN} --few-shot ''", "few_shot"),
        (f"{RUN} --schema ''", "schema"),
        (f"{RUN} --grammar ''", "grammar"),
        (f"{RUN} --lora a=", "--lora"),
        ("embed '' -m fake -o {folder}/new.jsonl", "input"),
        ("transcribe {source} -m '' -o {folder}/new.jsonl", "model"),
        ("batch '' -m fake -o {folder}/new.jsonl", "input"),
        ("chat '' question", "MODEL"),
        ("pull ''", "NAME"),
        ("serve ''", "MODEL"),
        ("serve fake --data ''", "--data"),
        ("serve fake --lora-folder ''", "--lora-folder"),
        ("serve fake --lora-folder {folder}/absent", "--lora-folder"),
        ("serve fake --lora a=", "--lora"),
        ("eval gsm8k -m ''", "--model"),
        ("eval gsm8k -m fake -o ''", "--output"),
        ("eval gsm8k -m fake --examples ''", "--examples"),
        ("report ''", "name of a run"),
        ("report {job} -o ''", "--output"),
        ("export ''  --to {folder}/new.csv", "name of a run"),
        ("export {job} --to ''", "--to"),
        ("score '' --by json", "name of a run"),
        ("score {job} --by json --schema ''", "--schema"),
        ("score {job} --by judge --judge-model '' --judge-prompt x", "--judge-model"),
        ("merge ''", "name of a run"),
        ("ls ''", "FOLDER"),
        ("show ''", "name of a run"),
        ("diff {job} ''", "name of a run"),
    ],
)
def test_an_empty_name_is_refused_by_its_own_name(
    words: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "present"
    places = {
        "job": stored_job(tmp_path / "runs", [{"question": "q"}], ["a"]),
        "source": write_rows(tmp_path / "in.jsonl", 1),
        "folder": folder,
    }
    folder.mkdir()
    monkeypatch.chdir(folder)
    given = ["" if word == "''" else word.format(**places) for word in words.split()]
    with pytest.raises(SystemExit, match="2"):
        main(given)
    said = capsys.readouterr().err.lower()
    assert name.lower() in said and "a bug" not in said
    assert not list(folder.iterdir())


def test_a_dot_is_the_present_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored_job(tmp_path, [{"question": "q"}], ["a"])
    monkeypatch.chdir(tmp_path)
    for given in (["ls"], ["ls", "."]):
        with pytest.raises(SystemExit, match="0"):
            main(given)
        assert "out.jsonl" in capsys.readouterr().out
