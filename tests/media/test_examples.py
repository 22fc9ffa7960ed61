"""The examples about images, sounds and videos, with tiny models."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.media.families import SEEING
from tests.media.hearing import EARS, HEARING, tone, wav
from tests.media.test_chats import PARTS
from tests.media.test_hearing import TEMPLATE
from tests.media.tiny import TinyModel, picture, save_tiny

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def model(tmp_path_factory: Any) -> TinyModel:
    family = SEEING["qwen3_vl"]
    path = tmp_path_factory.mktemp("examples")
    (path / "chat_template.jinja").write_text(PARTS)
    return save_tiny(path, family.make(), family.added, family.processor)


def test_captions_of_a_folder(model: TinyModel, tmp_path: Path) -> None:
    for seed, name in enumerate(("a.png", "b.jpg")):
        picture(40, 30, seed).save(tmp_path / name)
    (tmp_path / "broken.png").write_bytes(b"no image")
    (tmp_path / "notes.txt").write_text("not an image")
    main = runpy.run_path(str(EXAMPLES / "images.py"))["main"]
    main(str(tmp_path), str(tmp_path / "out.jsonl"), str(model.path))
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["file"] for row in rows] == ["a.png", "b.jpg", "broken.png"]
    assert [row["error"] is None for row in rows] == [True, True, False]


def test_questions_with_a_schema(
    model: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture(40, 30).save(tmp_path / "chart.png")
    main = runpy.run_path(str(EXAMPLES / "charts.py"))["main"]
    main([str(tmp_path / "chart.png")], str(model.path))
    name, _, answer = capsys.readouterr().out.partition(" ")
    assert name.endswith("chart.png") and answer.lstrip().startswith("{")


def test_answers_about_sounds(tmp_path: Path, tmp_path_factory: Any) -> None:
    pytest.importorskip("soundfile")
    family, path = HEARING["qwen2_audio"], tmp_path_factory.mktemp("hearing")
    (path / "chat_template.jinja").write_text(TEMPLATE)
    hearing = save_tiny(path, family.make(), family.added, EARS)
    (tmp_path / "a.wav").write_bytes(wav(tone(0.3)))
    (tmp_path / "broken.flac").write_bytes(b"no sound")
    main = runpy.run_path(str(EXAMPLES / "sounds.py"))["main"]
    main(str(tmp_path), str(tmp_path / "out.jsonl"), str(hearing.path))
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["file"] for row in rows] == ["a.wav", "broken.flac"]
    assert [row["error"] is None for row in rows] == [True, False]


def test_questions_about_a_video(
    model: TinyModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        picture(40, 30, number).save(tmp_path / f"{number:04}.jpg")
    main = runpy.run_path(str(EXAMPLES / "video.py"))["main"]
    main(str(tmp_path), str(model.path))
    asked = [line.partition("?")[0] for line in capsys.readouterr().out.splitlines() if "?" in line]
    assert asked[0] == "What happens in this video"
    assert "What is seen at its end" in asked
