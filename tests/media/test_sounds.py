"""Sounds in files and bytes: decoded, mixed and brought to one rate; broken and hostile ones end
their own row in bounded time and memory."""

from __future__ import annotations

import io
import os
import random
import resource
import struct
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import LLM, SamplingParams
from quire.errors import InvalidPrompt, NotSupported
from quire.families.media.rules import Samples
from quire.inputs.media.children import MediaChildren
from quire.inputs.media.samples import blocks
from quire.inputs.media.sounds import ArraySound, EncodedSound
from tests.media.abuse import changed, noisy
from tests.media.hearing import EARS, HEARING, RATE, tone, wav
from tests.media.tiny import TinyModel, save_tiny

SHORT = SamplingParams(temperature=0, max_tokens=2)
KINDS = {
    "WAV": "PCM_16",
    "FLAC": "PCM_16",
    "AIFF": "PCM_24",
    "OGG": "VORBIS",
    "MP3": "MPEG_LAYER_III",
    "RF64": "PCM_16",
    "W64": "PCM_16",
    "AU": "PCM_16",
    "CAF": "PCM_16",
}


def encoded(kind: str, samples: Samples, rate: int = RATE, subtype: str | None = None) -> bytes:
    soundfile = pytest.importorskip("soundfile")
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype or KINDS[kind])
    return file.getvalue()


def chunk(name: bytes, data: bytes, length: int | None = None) -> bytes:
    return name + struct.pack("<I", len(data) if length is None else length) + data


def riff(
    *,
    channels: int = 1,
    rate: int = RATE,
    bits: int = 16,
    code: int = 1,
    data: bytes = bytes(9000),
    length: int | None = None,
) -> bytes:
    width = channels * bits // 8
    about = struct.pack(
        "<HHIIHH", code, channels, rate, rate * width & 0xFFFFFFFF, width & 0xFFFF, bits
    )
    body = b"WAVE" + chunk(b"fmt ", about) + chunk(b"data", data, length)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def headers_that_lie(whole: dict[str, bytes]) -> dict[str, bytes]:
    """Rates, lengths and blocks that there are none of."""
    flac, aiff, caf, au = (whole[kind] for kind in ("FLAC", "AIFF", "CAF", "AU"))
    about = aiff.index(b"COMM")
    large = chunk(b"ds64", struct.pack("<QQQI", 1 << 63, (1 << 63) - 1, 1 << 62, 0))
    adpcm = chunk(b"fmt ", struct.pack("<HHIIHHHH", 0x11, 1, RATE, RATE, 0, 4, 2, 505))
    doubles = {name: struct.pack(">d", float(name)) for name in ("nan", "1e308", "-8000")}
    return {
        "RF64 of 2^63": b"RF64\xff\xff\xff\xffWAVE" + large + riff()[12:],
        "W64 of empty chunks": whole["W64"][:40] + bytes(48_000),
        "ADPCM without blocks": riff()[:12] + adpcm + riff()[36:],
        "a rate of 2^31": riff(rate=1 << 31),
        "a second format": riff()[:36] + riff(channels=31)[12:36] + riff()[36:],
        "255 bits": riff(bits=255),
        "AIFF without an end": changed(aiff, about + 16, b"\x7f\xff\x80" + bytes(7)),
        "AU that begins far away": changed(au, 4, b"\xff\xff\xff\xf0"),
        "AU in a code of its own": changed(au, 12, struct.pack(">I", 99)),
        **{f"CAF with a rate of {name}": changed(caf, 20, one) for name, one in doubles.items()},
        "FLAC without a rate": changed(flac, 18, bytes(2) + bytes([flac[20] & 15])),
        "FLAC with a picture of 16 MB": flac[:4] + b"\x06\xff\xff\xff" + flac[42:],
        "FLAC with noise": noisy(flac, 60),
        "FLAC that lacks seven bytes": flac[:-7],
        "Ogg with noise": noisy(whole["OGG"], 200),
        "Ogg without its middle": whole["OGG"][:4000] + whole["OGG"][4600:],
        "MP3 with noise": noisy(whole["MP3"], 100, 200),
        "MP3 behind a tag of 256 MB": b"ID3\x04\x00\x00\x7f\x7f\x7f\x7f" + whole["MP3"],
        "MP3 of headers": b"\xff\xfb\x90\x00" * 50_000,
    }


def refused() -> dict[str, bytes]:
    """Each of these ends its own row, with an error that says what is wrong."""
    good = tone(0.5)
    whole = {kind: encoded(kind, good) for kind in KINDS}
    made = {f"{kind} cut in half": data[: len(data) // 2] for kind, data in whole.items()}
    made |= {f"{kind} header alone": data[:40] for kind, data in whole.items()}
    made |= {f"{kind} first bytes": data[:4] for kind, data in whole.items()}
    nan = np.array([0.1, np.nan] * 4000, np.float32)
    rubbish = random.Random(5).randbytes(4000)
    empty = chunk(b"JUNK", b"") * 20_000
    many = b"WAVE" + empty + riff()[12:]
    made |= {
        "nothing": b"",
        "zeros": bytes(5000),
        "text": b"this is no sound at all",
        "html": b"<html><body>404</body></html>",
        "png": b"\x89PNG\r\n\x1a\n" + bytes(100),
        "zip": b"PK\x03\x04" + bytes(100),
        "pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
        "playlist": b"#EXTM3U\nfile:///etc/passwd\n",
        "mp4": b"\x00\x00\x00\x18ftypM4A " + bytes(100),
        "matroska": b"\x1aE\xdf\xa3" + bytes(100),
        "midi": b"MThd\x00\x00\x00\x06\x00\x01\x00\x01\x01\xe0MTrk" + bytes(100),
        "sun that lacks a byte": b".snd"
        + struct.pack(">IIIII", 24, 9000, 3, RATE, 1)
        + bytes(8999),
        "voice": encoded("VOC", good, subtype="PCM_16"),
        "20,000 chunks": b"RIFF" + struct.pack("<I", len(many)) + many,
        "no samples": riff(data=b""),
        "no channels": riff(channels=0),
        "60,000 channels": riff(channels=60_000),
        "33 channels": riff(channels=33, data=bytes(66 * 800)),
        "no rate": riff(rate=0),
        "a rate of 4 billion": riff(rate=0xFFFFFFFF),
        "one sample in a second": riff(rate=1),
        "no bits": riff(bits=0),
        "a code that there is none of": riff(code=0x7777),
        "more said than there is": riff(length=0x7FFF0000),
        "an hour of silence": encoded("FLAC", np.zeros(3600 * 1000, np.float32), 1000),
        "samples that are none": encoded("WAV", nan, subtype="FLOAT"),
        "samples far too loud": encoded("WAV", np.full(8000, 3e38, np.float32), subtype="FLOAT"),
        "flac of rubbish": whole["FLAC"][:60] + rubbish,
        "ogg of rubbish": whole["OGG"][:300] + rubbish,
        "mp3 of rubbish": b"\xff\xfb\x90\x00" + bytes(3) + rubbish[:200],
        "flac that says more": whole["FLAC"][:21] + b"\x0f\xff\xff\xff\xff" + whole["FLAC"][26:],
    }
    return {**made, **headers_that_lie(whole)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: Any) -> TinyModel:
    pytest.importorskip("soundfile")
    family = HEARING["qwen2_audio"]
    return save_tiny(tmp_path_factory.mktemp("sounds"), family.make(), family.added, EARS)


@pytest.fixture(scope="module")
def llm(model: TinyModel) -> Any:
    with model.llm(allowed_local_media_path=str(model.path)) as made:
        yield made


def ask(sound: Any) -> dict[str, Any]:
    return {"prompt": "Hear <|AUDIO|>", "multi_modal_data": {"audio": sound}}


def test_every_bad_sound_costs_its_own_row(llm: LLM) -> None:
    bad, good = refused(), tone(0.2)
    assert len(bad) >= 40
    prompts: list[Any] = ["plain text"]
    for data in bad.values():
        prompts += [ask(data), ask(good)]
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    outputs = llm.generate(prompts, SHORT, on_error="return", use_tqdm=False)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    wrong = [name for name, o in zip(bad, outputs[1::2], strict=True) if o.error is None]
    assert wrong == []
    assert all(isinstance(o.error, InvalidPrompt) for o in outputs[1::2])
    assert all("sound" in str(o.error) for o in outputs[1::2])
    assert all(o.error is None for o in [outputs[0], *outputs[2::2]])
    assert grown < 256 << 20 and time.monotonic() - begun < 60


def test_every_format_is_read(children: MediaChildren) -> None:
    given = tone(0.5)
    for kind in KINDS:
        found = EncodedSound.of(encoded(kind, given), RATE, children)
        opened = found.open()
        assert opened.dtype == np.float32 and found.size == (len(opened),)
        if kind not in ("OGG", "MP3"):
            assert np.abs(opened - given).max() < 1e-4
        else:  # what is lost is noise, and its beginning may be late
            assert abs(len(opened) - len(given)) < RATE / 10
            assert np.std(opened) == pytest.approx(np.std(given), rel=0.2)


def test_channels_are_averaged_and_rates_made_one(children: MediaChildren) -> None:
    pytest.importorskip("soxr")
    low = np.sin(2 * np.pi * 300 * np.arange(44_100) / 44_100).astype(np.float32)
    both = np.stack([low, np.zeros_like(low)], 1)
    found = EncodedSound.of(encoded("WAV", both, 44_100), RATE, children)
    wanted = 0.5 * np.sin(2 * np.pi * 300 * np.arange(RATE) / RATE)
    for source in (found, ArraySound.of(both, 44_100, RATE), ArraySound.of(both.T, 44_100, RATE)):
        opened = source.open()
        assert source.size == opened.shape == (RATE,)
        assert np.abs(opened - wanted)[200:-200].max() < 1e-3
    for rate in (8_000, 22_050, 48_000, 96_000):
        for length in (rate // 5 + 1, rate // 7):
            source = ArraySound.of(low[:length], rate, RATE)
            assert len(source.open()) == source.num_samples


def test_a_long_file_is_read_as_a_stream(tmp_path: Path, children: MediaChildren) -> None:
    path = tmp_path / "long.flac"
    path.write_bytes(encoded("FLAC", np.zeros(1300 * 8000, np.float32), 8000))
    with pytest.raises(InvalidPrompt, match="lasts 1,300 s; at most 600 s"):
        EncodedSound.of(path, RATE, children)
    pytest.importorskip("soxr")
    sizes = [len(block) for block in blocks(path, RATE, children, most_seconds=1e6)]
    assert sum(sizes) == 1300 * RATE and max(sizes) < 1 << 18
    found = children.one("audio", "about", path, most_seconds=1e6)
    assert found["frames"] == 1300 * found["rate"]


def test_a_length_that_was_not_known_is_that_of_the_file(children: MediaChildren) -> None:
    pytest.importorskip("soundfile")
    for length in (0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000, 0x80000000, 0xFFFFFFDB):
        found = EncodedSound.of(riff(length=length), RATE, children)
        assert found.size == (4500,) and len(found.open()) == 4500


def test_files_that_are_none_and_files_that_change(
    llm: LLM, model: TinyModel, children: MediaChildren
) -> None:
    os.mkfifo(model.path / "pipe.wav")
    (model.path / "closed.wav").symlink_to("/dev/zero")
    (model.path / "big.wav").write_bytes(b"")
    os.truncate(model.path / "big.wav", (256 << 20) + 1)
    for name in ("pipe.wav", "closed.wav", "absent.wav", "../x.wav", "big.wav"):
        [output] = llm.generate([ask(model.path / name)], SHORT, on_error="return", use_tqdm=False)
        assert isinstance(output.error, InvalidPrompt), name
    path = model.path / "changing.wav"
    path.write_bytes(wav(tone(0.2)))
    found = EncodedSound.of(path, RATE, children)
    path.write_bytes(wav(tone(0.2, 1)))
    with pytest.raises(InvalidPrompt, match="changed"):
        found.open()


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, children: MediaChildren) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    monkeypatch.setitem(sys.modules, "soxr", None)
    with pytest.raises(NotSupported, match=r"soundfile: pip install 'quire-llm\[audio\]'"):
        EncodedSound.of(wav(tone(0.21)), RATE, children)
    with pytest.raises(NotSupported, match=r"soxr: pip install 'quire-llm\[audio\]'"):
        ArraySound.of(tone(0.2), 8_000, RATE).open()
    assert len(ArraySound.of(tone(0.2), RATE, RATE).open()) == 3200


def test_limits_are_said(children: MediaChildren) -> None:
    pytest.importorskip("soundfile")
    with pytest.raises(InvalidPrompt, match="33 channels; at most 32"):
        EncodedSound.of(wav(tone(0.2), channels=33), RATE, children)
