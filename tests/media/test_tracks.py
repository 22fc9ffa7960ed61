"""Sounds in M4A, MP4, WebM and the like, which av decodes: whole, from a second on, and broken or
lying ones."""

from __future__ import annotations

import io
import random
import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import LLM, SamplingParams
from quire.errors import InvalidPrompt, NotSupported
from quire.families.media.rules import Samples
from quire.inputs.media import children as here
from quire.inputs.media.children import MediaChildren
from quire.inputs.media.samples import blocks, part
from quire.inputs.media.sounds import EncodedSound
from tests.media.abuse import changed
from tests.media.hearing import EARS, HEARING, RATE, tone
from tests.media.test_sounds import encoded
from tests.media.test_videos import mp4
from tests.media.tiny import save_tiny

FORMATS = {
    "ipod": ("aac", 16_000),
    "mp4": ("aac", 44_100),
    "mov": ("pcm_s16le", 16_000),
    "webm": ("libopus", 48_000),
    "matroska": ("flac", 16_000),
    "adts": ("aac", 16_000),
    "asf": ("wmav2", 44_100),
}


def track(name: str, samples: Samples, rate: int | None = None, *, pause: float = 0.0) -> bytes:
    """Samples [channels, n] or [n]; behind the first half there is nothing for so many seconds."""
    av: Any = pytest.importorskip("av")
    (codec, usual), file = FORMATS[name], io.BytesIO()
    rate, both = rate or usual, np.atleast_2d(samples)
    layout = {1: "mono", 2: "stereo"}[len(both)]
    with av.open(file, "w", format=name) as container:
        stream = container.add_stream(codec, rate=rate, layout=layout)
        stream.bit_rate = 96_000
        for at in range(0, both.shape[1], 1024):
            block = np.ascontiguousarray(both[:, at : at + 1024])
            frame = av.AudioFrame.from_ndarray(block, format="fltp", layout=layout)
            late = pause if at > both.shape[1] // 2 else 0.0
            frame.sample_rate, frame.time_base = rate, Fraction(1, rate)
            frame.pts = at + round(late * rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_read_whole_and_from_a_second_on(
    name: str, tmp_path: Path, children: MediaChildren
) -> None:
    rate = FORMATS[name][1]
    given = tone(6.0, rate=rate)
    path = tmp_path / "a.x"
    path.write_bytes(track(name, np.stack([given, given])))
    found = EncodedSound.of(path, RATE, children)
    opened = found.open()
    assert found.about.channels == 2 and found.size == (len(opened),)
    assert len(opened) / RATE == pytest.approx(6.0, abs=0.1)
    assert np.std(opened) == pytest.approx(np.std(given), rel=0.1)
    streamed = np.concatenate(list(blocks(path, RATE, children)))
    assert np.array_equal(opened[:-8], streamed[: len(opened) - 8])  # the end is padded
    wanted = opened[int(3.3 * RATE) : int(4.3 * RATE)]
    of_it = part(path, RATE, 3.3, RATE, children)
    # Times in thousandths of a second are half of one off, and AAC makes noise anew.
    off = [np.std((np.roll(of_it, by) - wanted)[300:-300]) for by in range(-8, 9)]
    assert min(off) < 0.1 * np.std(wanted)
    assert not part(path, RATE, 60.0, RATE, children).any()  # behind its end


def test_a_gap_is_silence(tmp_path: Path, children: MediaChildren) -> None:
    path = tmp_path / "a.mkv"
    path.write_bytes(track("matroska", tone(4.0), pause=2.0))
    opened = EncodedSound.of(path, RATE, children).open()
    assert len(opened) / RATE == pytest.approx(6.0, abs=0.01)
    assert not opened[int(2.4 * RATE) : int(3.9 * RATE)].any()
    wanted = opened[int(4.5 * RATE) : int(5.5 * RATE)]
    assert np.array_equal(part(path, RATE, 4.5, RATE, children), wanted)


def refused() -> dict[str, bytes]:
    """Each of these ends its own row."""
    half = tone(0.5, rate=48_000)
    whole = {name: track(name, half) for name in FORMATS}
    made = {f"{name} cut in half": data[: len(data) // 2] for name, data in whole.items()}
    made |= {f"{name} header alone": data[:40] for name, data in whole.items()}
    made |= {f"{name} first bytes": data[:16] for name, data in whole.items()}
    rubbish, mp4_of = random.Random(5).randbytes(4000), whole["ipod"]
    sizes = mp4_of.index(b"stsz") + 8  # the size of all samples, then how many there are
    made |= {
        "rubbish in boxes": mp4_of[:32] + rubbish,
        "rubbish in elements": whole["matroska"][:60] + rubbish,
        "rubbish in frames": whole["adts"][:8] + rubbish,
        "4 billion samples": mp4_of[:sizes]
        + struct.pack(">II", 1, 0xFFFFFFFF)
        + mp4_of[sizes + 8 :],
        "pictures alone": mp4(4),
        "a playlist": b"\xff\xf1#EXTM3U\nfile:///etc/passwd\n",
        "twelve minutes of silence": track("ipod", np.zeros(720 * 8000, np.float32), 8000),
        "an hour's pause": track("matroska", tone(0.5), pause=3600.0),
        "AMR of nothing": b"#!AMR\n",
        "AMR of silence": b"#!AMR\n" + b"\x7c" * 2_000_000,
        "4 billion times": changed(mp4_of, mp4_of.index(b"stts") + 8, b"\0\0\0\1" + b"\xff" * 8),
        "chunks in a circle": changed(mp4_of, mp4_of.index(b"stsc") + 12, b"\xff" * 8),
        "samples far away": changed(mp4_of, mp4_of.index(b"stco") + 12, b"\xff\xff\xff\xf0"),
        "frames of headers": whole["adts"][:7] * 30_000,
    }
    return made


def test_every_bad_track_costs_its_own_row(tmp_path_factory: pytest.TempPathFactory) -> None:
    family = HEARING["qwen2_audio"]
    made = save_tiny(tmp_path_factory.mktemp("hears"), family.make(), family.added, EARS)
    bad, good = refused(), track("ipod", tone(0.5))
    sounds = [sound for data in bad.values() for sound in (data, good)]
    prompts: list[Any] = [
        {"prompt": "Hear <|AUDIO|>", "multi_modal_data": {"audio": sound}} for sound in sounds
    ]
    with made.llm() as llm:
        outputs = answers(llm, prompts)
    assert [name for name, one in zip(bad, outputs[::2], strict=True) if one.error is None] == []
    assert all(isinstance(one.error, InvalidPrompt) for one in outputs[::2])
    assert all("the sound" in str(one.error) for one in outputs[::2])
    assert all(one.error is None for one in outputs[1::2])


def answers(llm: LLM, prompts: list[Any]) -> list[Any]:
    short = SamplingParams(temperature=0, max_tokens=2)
    return llm.generate(prompts, short, on_error="return", use_tqdm=False)


def test_a_header_that_lies_of_its_length_says_nothing(children: MediaChildren) -> None:
    data = track("ipod", tone(0.5))
    for box, offset in ((b"mvhd", 20), (b"mdhd", 20), (b"tkhd", 24)):
        at = data.index(box) + offset
        data = data[:at] + struct.pack(">I", 0x7FFFFFFF) + data[at + 4 :]
    found = EncodedSound.of(data, RATE, children)
    assert found.about.seconds == pytest.approx(0.5, abs=0.1)
    assert len(found.open()) == found.num_samples


def test_a_flac_that_was_written_into_a_pipe_is_read_to_its_end(children: MediaChildren) -> None:
    whole = encoded("FLAC", tone(2.0))
    piped = changed(whole, 21, bytes([whole[21] & 0xF0, 0, 0, 0, 0]))  # a length of 36 bits
    found, known = (EncodedSound.of(data, RATE, children) for data in (piped, whole))
    assert found.size == (2 * RATE,) and np.array_equal(found.open(), known.open())
    for bad in (piped[:-7], piped[:60], piped * 2):
        with pytest.raises(InvalidPrompt, match="the sound"):
            EncodedSound.of(bad, RATE, children)


def test_the_way_out_is_named_without_av(
    monkeypatch: pytest.MonkeyPatch, children: MediaChildren
) -> None:
    data = track("ipod", tone(0.5))
    found = here.find_spec
    monkeypatch.setattr(here, "find_spec", lambda name: None if name == "av" else found(name))
    with pytest.raises(NotSupported, match=r"M4A.*package av: pip install 'quire-llm\[video\]'"):
        EncodedSound.of(data, RATE, children)
