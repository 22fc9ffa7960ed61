"""Sounds over HTTP, by the official client: what `quire transcribe` writes of the same files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from quire.inputs import transcript_params
from quire.jobs.job import Job
from quire.server.multipart import FormReader
from quire.server.serve import Serving
from tests.media.sounds import tone
from tests.media.test_transcribe import save, with_times
from tests.media.tiny import TinyModel
from tests.media.whisper import make_whisper
from tests.server.serving import KEY, client, serving

pytest.importorskip("soundfile")
OPTIONS: dict[str, Any] = {"dtype": "float32", "kv_cache_memory_bytes": 1 << 24}
NAME, PATH = "hears", "/v1/audio/transcriptions"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    made = make_whisper(tmp_path_factory.mktemp("whisper"))
    with_times(made)
    return made


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of several pieces for a model that hears a second at a time, and one of a single."""
    folder = tmp_path_factory.mktemp("sounds")
    save(folder / "long.wav", tone(40_000, 1))
    save(folder / "short.wav", tone(16_000, 2))
    return folder


@pytest.fixture(scope="module")
def server(model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("server")
    with serving(folder, str(model.path), names=(NAME,), options=OPTIONS) as made:
        yield made


@pytest.fixture(scope="module")
def asking(server: Serving) -> Iterator[OpenAI]:
    with OpenAI(
        base_url=f"{server.address}/v1",
        api_key=KEY,
        max_retries=0,
        http_client=httpx.Client(verify=False, timeout=60),
        _strict_response_validation=True,
    ) as made:
        yield made


def stored(server: Serving) -> list[Path]:
    folder = server.settings.data_dir / "files"
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_sound_is_heard_as_by_a_job(
    asking: OpenAI,
    model: TinyModel,
    sounds: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What is doubted would be drawn again, by other seeds than a job's.
    monkeypatch.setattr(transcript_params, "TEMPERATURES", (0.0,))
    sound, output = sounds / "long.wav", tmp_path / "out.jsonl"
    how = {"seconds": 1.0, "options": OPTIONS, "timestamps": True, "transcribe": True}
    Job(str(sound), output, model=str(model.path), **how).run(progress=False)
    expected = json.loads(output.read_text())
    with sound.open("rb") as file:
        made = asking.audio.transcriptions.create(
            model=NAME, file=file, response_format="verbose_json"
        )
    found = [[one.start, one.end, one.text] for one in made.segments or ()]
    assert found == expected["segments"] and len(found) > 2
    assert made.text == expected["text"] and made.language == expected["language"]
    assert made.to_dict()["usage"] == {"type": "duration", "seconds": 3}


def test_all_that_a_form_may_say(asking: OpenAI, server: Serving, sounds: Path) -> None:
    """A language, a prompt and a temperature change what is heard, and a seed repeats it."""

    def heard(**how: Any) -> Any:
        with (sounds / "short.wav").open("rb") as file:
            return asking.audio.transcriptions.create(
                model=NAME,
                file=file,
                response_format="verbose_json",
                timestamp_granularities=["segment"],
                extra_body={"seed": "5", "chunking_strategy": "auto"},
                **{"language": "de", "temperature": 1.5, **how},
            )

    made = heard(prompt="Zephyr calls.")
    assert made.segments and (made.language, made.duration) == ("de", 1.0)
    assert all(one.tokens and one.temperature == 1.5 for one in made.segments)
    assert all(one.avg_logprob < 0 and one.compression_ratio > 0 for one in made.segments)
    assert made == heard(prompt="Zephyr calls.")
    others = [heard(), heard(prompt="Zephyr calls.", language="en"), heard(temperature=1.0)]
    assert made.text not in [one.text for one in others]
    assert stored(server) == []


def test_formats(
    asking: OpenAI, server: Serving, sounds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a random model says with times is doubted at all of them.
    monkeypatch.setattr(transcript_params, "TEMPERATURES", (0.0,))
    sound = ("a.wav", (sounds / "short.wav").read_bytes())
    kinds: Any = ("json", "text", "srt", "vtt")
    plain, text, srt, vtt = (
        asking.audio.transcriptions.create(model=NAME, file=sound, response_format=kind)
        for kind in kinds
    )
    assert str(text) == f"{plain.text}\n"
    assert "--> " in str(srt) and str(srt).startswith("1\n00:00:00,")
    assert str(vtt).startswith("WEBVTT\n\n1\n00:00:00.")
    with client(server) as http:  # the official client warns that this one will go
        given = {"data": {"model": NAME}, "files": {"file": sound}}
        translated = http.post("/v1/audio/translations", **given)
    assert translated.json()["text"] not in ("", plain.text)  # another task is another prompt


def test_a_stream_tells_each_piece(asking: OpenAI, server: Serving, sounds: Path) -> None:
    sound = (sounds / "long.wav").read_bytes()
    whole = asking.audio.transcriptions.create(model=NAME, file=("a.wav", sound))
    with asking.audio.transcriptions.create(
        model=NAME, file=("a.wav", sound), stream=True
    ) as events:
        came = list(events)
    assert [one.type for one in came[:-1]] == ["transcript.text.delta"] * (len(came) - 1)
    assert len(came) > 2  # pieces, and the end
    deltas = "".join(one.delta for one in came if one.type == "transcript.text.delta")
    assert came[-1].type == "transcript.text.done"
    assert deltas == came[-1].text == whole.text
    assert stored(server) == []


def test_what_cannot_be_heard_is_refused(asking: OpenAI, server: Serving, sounds: Path) -> None:
    sound = ("a.wav", (sounds / "short.wav").read_bytes())
    cases: list[tuple[dict[str, Any], str, str | None]] = [
        ({"file": ("a.wav", b"RIFF....WAVE")}, "", "file"),
        ({"language": "xx"}, "the model knows de, en", "language"),
        ({"response_format": "pdf"}, "one of json, text", "response_format"),
        ({"temperature": 3}, "from 0 to 2", "temperature"),
        ({"temperature": "warm"}, "temperature is a number", "temperature"),
        ({"prompt": "<|de|>"}, "words alone", "prompt"),
        (
            {"timestamp_granularities": ["word"], "response_format": "verbose_json"},
            "words have no times",
            "timestamp_granularities[]",
        ),
        ({"timestamp_granularities": ["segment"]}, "verbose_json", "timestamp_granularities[]"),
        ({"include": ["logprobs"]}, "is not supported", "include[]"),
        ({"stream": True, "response_format": "srt"}, "text alone", "stream"),
        ({"extra_body": {"seed": "-1"}}, "seed is from 0", "seed"),
    ]
    for given, words, param in cases:
        with pytest.raises(openai.BadRequestError) as refused:
            asking.audio.transcriptions.create(**{"model": NAME, "file": sound, **given})
        assert words in refused.value.message and refused.value.param == param, refused.value
        # Nothing is said of where the server keeps files.
        assert str(server.settings.data_dir) not in refused.value.message
    with pytest.raises(openai.NotFoundError):
        asking.audio.transcriptions.create(model="other", file=sound)
    assert stored(server) == []


def test_bodies_that_are_no_forms(server: Serving) -> None:
    with client(server) as http:
        assert http.post(PATH, json={"model": NAME}).status_code == 415
        assert http.post(PATH, files={"other": b""}).status_code == 400
        assert http.post(PATH, data={"model": NAME}, files={"file": b""}).status_code == 400


def test_another_model_hears_nothing(tmp_path: Path, sounds: Path) -> None:
    with serving(tmp_path) as server, client(server) as http:
        given = {"data": {"model": "fake"}, "files": {"file": b"RIFF"}}
        answer = http.post(PATH, **given)
        assert answer.status_code == 400 and "transcribes nothing" in answer.text
        # It is said before any of the sound is looked at.
        assert "transcribes nothing" in http.post(PATH, content=b"no form").text
        assert stored(server) == []


def test_a_list_of_a_form_may_come_several_times() -> None:
    part = '--x\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
    reader = FormReader("multipart/form-data; boundary=x", file="file", known=("one", "many[]"))
    body = part.format("many[]", "a") + part.format("one", "b") + part.format("many[]", "c")
    body += '--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nd\r\n--x--\r\n'
    assert reader.feed(body.encode()) == [b"d"]
    form = reader.finish()
    assert form.fields == {"one": "b"} and form.lists == {"many[]": ["a", "c"]}
