"""`quire transcribe`: where sounds are cut, what is asked and written, and files that are none."""

from __future__ import annotations

import json
import runpy
import wave
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quire import LLM
from quire.errors import InvalidOption, NotSupported
from quire.inputs.gguf_tokenizer import load_gguf_tokenizer
from quire.inputs.hf_tokenizer import load_hf_tokenizer
from quire.inputs.media.pieces import cuts
from quire.inputs.transcript_params import Doubts, Wanted
from quire.inputs.transcripts import Segment, TranscriptTokens
from quire.jobs.input.sounds import sound_files, sound_rows
from quire.jobs.job import Job, make_options
from quire.jobs.store.record import ResultRecord
from quire.jobs.transcripts import FileTranscript
from quire.sampling.timestamps import TimestampRule
from quire.session.transcribing import Transcriber
from quire.weights.source import locate
from tests.media.sounds import tone
from tests.media.tiny import TinyModel
from tests.media.whisper import (
    DE,
    EN,
    END,
    FIRST_TIME,
    NO_TIMES,
    PREVIOUS,
    START,
    SUPPRESSED,
    TRANSCRIBE,
    make_whisper,
    written,
)

HOW: dict[str, Any] = {
    "seconds": 1.0,
    "options": {"dtype": "float32", "kv_cache_memory_bytes": 1 << 24},
}
EARLIER = "Zephyr calls Priyanka."
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "transcribe.py"
TOKENS = TranscriptTokens(START, END, NO_TIMES, {"transcribe": TRANSCRIBE}, {"en": EN, "de": DE})


def save(path: Path, samples: Any, rate: int = 16_000) -> Any:
    whole = (np.clip(samples, -1, 1) * 32_767).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(whole.tobytes())
    return whole.astype(np.float32) / 32_768


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.mark.parametrize("block", [1_000, 16_000, 10**7])
def test_sounds_are_cut_where_it_is_quiet(block: int) -> None:
    samples = tone(160_000)
    for quiet in (3.4, 6.7):
        samples[int(quiet * 16_000) : int((quiet + 0.12) * 16_000)] = 0
    blocks = [samples[at : at + block] for at in range(0, len(samples), block)]
    found = list(cuts(blocks, 16_000, 4.0))
    assert [start for start, _ in found] == [0.0] + [end for _, end in found[:-1]]
    assert found[-1][1] == 10.0 and all(end - start <= 4.0 for start, end in found)
    assert found[0][1] == pytest.approx(3.46, abs=0.02)
    assert found[1][1] == pytest.approx(6.76, abs=0.02)
    assert list(cuts([samples[:0]], 16_000, 4.0)) == []


def test_times_are_written_as_in_transformers() -> None:
    from transformers import WhisperTimeStampLogitsProcessor

    class Said:
        no_timestamps_token_id, eos_token_id, bos_token_id = 40, 30, 30
        max_initial_timestamp_index = 5

    theirs = WhisperTimeStampLogitsProcessor(Said(), begin_index=2)
    ours = TimestampRule(41, 30, never=(40, 3), most_initial=5)
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        ids: list[int] = []
        for _ in range(6):
            logits = torch.randn(80, generator=generator) * 3
            edited = logits.clone()
            edited[3] = -torch.inf
            expected = theirs(torch.tensor([[1, 2, *ids]]), edited[None])[0]
            made = ours(ids, logits.clone())
            assert torch.equal(made, expected)
            ids.append(int(torch.multinomial(made.softmax(0), 1, generator=generator)))


def test_an_answer_stops_where_it_does_in_transformers() -> None:
    from transformers import WhisperForConditionalGeneration as Theirs

    rule = TimestampRule(FIRST_TIME, END, never=(NO_TIMES,))
    generator = torch.Generator().manual_seed(0)
    outcomes = set[bool]()
    for count in (1, 2, 3, 5, 9, 14) * 10:
        ids: list[int] = []
        while len(ids) < count and (not ids or ids[-1] != END):
            logits = torch.randn(FIRST_TIME + 51, generator=generator) * 3
            logits[3:START] = logits[START:FIRST_TIME] = -torch.inf
            logits[END] = logits[END] - 2
            ids.append(int(torch.multinomial(rule(ids, logits).softmax(0), 1, generator=generator)))
        written = torch.tensor([one for one in ids if one != END])
        about = [None], torch.zeros(1), FIRST_TIME, torch.tensor([100]), 0.02, 0.01, 2, 0, 0, False
        told = (written, *about, torch.zeros(1, 0))
        segments, offset = Theirs._retrieve_segment(*told)
        stop = TOKENS.stopped_at(ids)
        outcomes.add(stop is None)
        if stop is None:
            assert int(offset) == 100
            continue
        assert TOKENS.second_of(ids[stop]) == pytest.approx(int(offset) * 0.01)
        theirs = [[t for t in one["tokens"].tolist() if t < END] for one in segments]
        ours = TOKENS.segments(ids[: stop + 1], 1.0, lambda some: ",".join(map(str, some)))
        assert [one.text for one in ours] == [",".join(map(str, some)) for some in theirs]
    assert outcomes == {True, False}


def test_segments_are_what_stands_between_times() -> None:
    ids = [FIRST_TIME + 1, 7, 8, FIRST_TIME + 10, FIRST_TIME + 12, 9, FIRST_TIME + 20, 5, END]
    made = TOKENS.segments(ids, 0.9, lambda some: " ".join(map(str, some)))
    assert made == [
        Segment(0.02, 0.2, "7 8", (7, 8)),
        Segment(0.24, 0.4, "9", (9,)),
        Segment(0.4, 0.9, "5", (5,)),
    ]
    assert TOKENS.segments([7, END], 0.5, lambda some: "a" if some else "") == [
        Segment(0.0, 0.5, "a", (7,))
    ]
    with pytest.raises(InvalidOption, match="the model knows de, en"):
        TOKENS.check("xx", "transcribe")


def test_subtitles_and_text() -> None:
    made = FileTranscript(file="a.wav")
    rows = [
        ({"start": 0.0, "end": 9.5}, [[0.0, 2.5, "One --> two"], [2.5, 9.0, "a\n\nb"]]),
        ({"start": 3700.0, "end": 3705.0}, [[1.25, 4.0, "late"]]),
    ]
    for number, (row, segments) in enumerate(rows):
        extra = {"transcript": {"language": "en", "segments": segments}}
        made.add(row, ResultRecord(number, "", "", 0, ("",), ("stop",), extra=extra))
    failed = ResultRecord(2, "", "", 0, error="x", error_type="y")
    made.add({"start": 3705.0, "end": 3706.0}, failed)
    assert made.as_text("text") == "One --> two a\n\nb late\n"
    assert made.as_text("srt").split("\n\n") == [
        "1\n00:00:00,000 --> 00:00:02,500\nOne -> two",
        "2\n00:00:02,500 --> 00:00:09,000\na\nb",
        "3\n01:01:41,250 --> 01:01:44,000\nlate\n",
    ]
    assert made.as_text("vtt").startswith("WEBVTT\n\n1\n00:00:00.000 --> 00:00:02.500\n")
    line = json.loads(made.line())
    assert (line["error"], line["error_type"]) == ("from 3705 s to 3706 s: x", "y")
    assert line["seconds"] == 3706.0 and line["language"] == "en"


def test_options_that_make_no_sense(tmp_path: Path) -> None:
    save(tmp_path / "a.wav", tone(800))
    inputs = [str(tmp_path)]
    for given, match in (
        ({"seconds": 90.0}, "pieces last from 1 to 30"),
        ({"task": "sing"}, "task is transcribe or translate"),
        ({"temperature": [0, 3]}, "temperature is a number from 0 to 2, or several"),
        ({"logprob_threshold": "a"}, "logprob_threshold is a number"),
        ({"initial_prompt": 5}, "initial_prompt is a text"),
        ({"output": "a.mp4"}, "ends in one of"),
        ({"system": "x"}, "is for jobs that generate text, and this is transcribe"),
    ):
        options: dict[str, Any] = {"output": "out.jsonl", "transcribe": True, **given}
        with pytest.raises(InvalidOption, match=match):
            make_options(inputs, options.pop("output"), "m", options)
    with pytest.raises(InvalidOption, match="no sound among"):
        sound_files([str(EXAMPLE.parent)])
    save(tmp_path / "b.wav", tone(800))
    with pytest.raises(InvalidOption, match=r"ends in .jsonl where there are 2 files"):
        make_options(inputs, "out.srt", "m", {"transcribe": True})


def test_a_folder_is_transcribed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The example: two pieces, one that is heard again from where the model stopped, and a file
    that is no sound."""
    pytest.importorskip("soundfile")
    model = make_whisper(tmp_path / "model")
    with_times(model)
    sounds = tmp_path / "sounds"
    sounds.mkdir()
    first = save(sounds / "a.wav", tone(28_000, 1))
    second = save(sounds / "b.wav", tone(16_000, 2))
    (sounds / "c.wav").write_bytes(b"RIFF....WAVE")
    output = tmp_path / "out.jsonl"
    main = runpy.run_path(str(EXAMPLE))["main"]
    how = {**HOW, "temperature": 0, "initial_prompt": EARLIER, "no_speech_threshold": 1.0}
    main(str(sounds), str(output), str(model.path), **how)
    bytes_then = output.read_bytes()
    rows = [json.loads(line) for line in bytes_then.splitlines()]
    assert [Path(row["file"]).name for row in rows] == ["a.wav", "b.wav", "c.wav"]
    assert [row["error_type"] for row in rows] == [None, None, "invalid_prompt"]
    assert rows[0]["seconds"] == 1.75 and rows[0]["segments"][-1][1] <= 1.75
    [piece, *_] = list(sound_rows([sounds / "a.wav"], 1.0))
    expected, _ = heard(model, first[: round(piece["end"] * 16_000)])
    assert rows[0]["segments"][: len(expected)] == expected
    expected, count = heard(model, second)
    assert count > 1 and rows[1]["segments"] == expected
    main(str(sounds), str(output), str(model.path), **how)  # there is nothing left to do
    assert output.read_bytes() == bytes_then
    assert "4 pieces" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("doubts", "temperature", "is_silent"),
    [
        ({"logprob_threshold": 0.0, "no_speech_threshold": 1.0}, 0.4, False),
        ({"logprob_threshold": 0.0, "no_speech_threshold": 0.0}, 0.0, True),
    ],
    ids=["doubted", "silence"],
)
def test_an_answer_that_is_not_believed_is_drawn_again(
    model: TinyModel,
    tmp_path: Path,
    doubts: dict[str, float],
    temperature: float,
    is_silent: bool,
) -> None:
    pytest.importorskip("soundfile")
    output = tmp_path / "out.jsonl"
    save(tmp_path / "a.wav", tone(9_000, 2))
    how = {**HOW, "temperature": [0, 0.4], "language": "de", **doubts}
    job = Job(str(tmp_path / "a.wav"), output, model=str(model.path), transcribe=True, **how)
    assert job.run(progress=False).num_ok == 1
    [line] = output.read_text().splitlines()
    assert (json.loads(line)["text"] == "") == is_silent
    [journal] = Path(f"{output}.quire").glob("results-*.jsonl")
    assert f'"temperature":{temperature}' in journal.read_text()


def test_a_model_of_one_language_is_asked_for_none(tmp_path: Path) -> None:
    path = make_whisper(tmp_path).path
    said = json.loads((path / "generation_config.json").read_text())
    (path / "generation_config.json").write_text(json.dumps({**said, "is_multilingual": False}))
    with LLM(str(path), **HOW["options"]) as llm:
        transcriber = Transcriber(llm._session)
        sound = {"path": "a.wav", "start": 0.0, "end": 1.0, "stamp": ""}
        begun = transcriber.begin(Wanted(), sound, seed=None)
        _, params = transcriber.asked(begun)  # only whether anyone speaks
        assert (begun.language, params.allowed_token_ids, params.max_tokens) == ("en", None, 1)
        prompt, _ = transcriber.asked(replace(begun, is_opened=True))
        assert prompt["prompt_token_ids"] == [START, NO_TIMES]
        with pytest.raises(InvalidOption, match="the model knows en"):
            transcriber.check(Wanted(language="de"))


def test_what_is_doubted() -> None:
    doubts = Doubts()
    assert doubts.hold("and then " * 40, -0.1) and doubts.hold("A few words.", -1.1)
    assert not doubts.hold("A few words.", -0.9) and not doubts.hold("", -0.5)
    assert doubts.is_silence(-1.1, 0.7)
    assert not doubts.is_silence(-0.9, 0.7) and not doubts.is_silence(-1.1, 0.5)


def test_what_was_said_earlier_is_words_that_fit(model: TinyModel) -> None:
    tokenizer = load_hf_tokenizer(model.path)
    tokens = TranscriptTokens.of(tokenizer, {"is_multilingual": True})
    whole = tokens.earlier(EARLIER, tokenizer, 100)
    assert whole[0] == PREVIOUS and tokenizer.decode(whole[1:]) == f" {EARLIER}"
    assert tokens.earlier(EARLIER, tokenizer, 3) == [PREVIOUS, *whole[-3:]]
    with pytest.raises(InvalidOption, match=r"words alone, and holds '<\|de\|>'"):
        tokens.earlier("Hello <|de|>", tokenizer, 100)
    with pytest.raises(NotSupported, match="startofprev"):
        replace(tokens, previous=None).earlier("Hello", tokenizer, 100)


def heard(model: TinyModel, samples: Any) -> tuple[list[list[Any]], int]:
    """The segments of a piece as Transformers makes them: the language, then what is said, with its
    own rule for times, and again from where it stopped; and how often it was asked."""
    from transformers import WhisperTimeStampLogitsProcessor

    class Said:
        no_timestamps_token_id, eos_token_id, bos_token_id = NO_TIMES, END, END
        max_initial_timestamp_index = 20

    tokenizer = load_gguf_tokenizer(locate("smollm2").gguf.metadata)
    words = lambda some: tokenizer.decode([token for token in some if token < START])  # noqa: E731
    earlier = [PREVIOUS, *tokenizer.encode(f" {EARLIER}", add_special_tokens=False).tolist()]
    [first], _ = written(model.module, samples, [START], 1, rule=one_of(EN, DE))
    asked = [*earlier, START, first, TRANSCRIBE]
    rule = WhisperTimeStampLogitsProcessor(Said(), begin_index=len(asked))
    begun, found, count = 0.0, list[list[Any]](), 0
    while True:
        part = samples[round(begun * 16_000) :]
        most = model.module.config.max_target_positions - len(asked)
        ids, _ = written(model.module, part, asked, most, rule)
        assert NO_TIMES not in ids and not set(ids) & set(SUPPRESSED)
        stop, count, seconds = TOKENS.stopped_at(ids), count + 1, len(part) / 16_000
        if stop is None or seconds - TOKENS.second_of(ids[stop]) < len(samples) / 16_000 / 30:
            stop = None
        for one in TOKENS.segments(ids if stop is None else ids[: stop + 1], seconds, words):
            found.append([round(one.start + begun, 2), round(one.end + begun, 2), one.text])
        if stop is None:
            return found, count
        begun = round(begun + TOKENS.second_of(ids[stop]), 4)


def with_times(model: TinyModel) -> None:
    """Have it write times more often."""
    said = (model.path / "generation_config.json").read_text()
    model.module.model.decoder.embed_tokens.weight.data[FIRST_TIME:].mul_(2.0)
    model.module.save_pretrained(model.path)
    (model.path / "generation_config.json").write_text(said)


def one_of(*tokens: int) -> Any:
    def rule(ids: Any, logits: torch.Tensor) -> torch.Tensor:
        kept = torch.full_like(logits, -torch.inf)
        kept[:, list(tokens)] = logits[:, list(tokens)]
        return kept

    return rule
