"""Odd and valid: images, sounds and videos as people bring them, which are read as Pillow and
Transformers read them, or end their row with an error that says what to do."""

from __future__ import annotations

import io
import struct
import textwrap
import zlib
from base64 import b64encode, urlsafe_b64encode
from fractions import Fraction
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import torch
from PIL import Image

from quire.errors import InvalidPrompt
from quire.inputs.media.allowed import Fetching, MediaOptions
from quire.inputs.media.children import MediaChildren
from quire.inputs.media.given import listed, read_image, read_source
from quire.inputs.media.sounds import read_sound
from quire.inputs.media.urls import MediaUrl
from quire.inputs.media.videos import read_video
from quire.jobs.input.media import MediaCells
from quire.jobs.input.rows import BadRow
from tests.media.abuse import GOOD, chunk, encoded
from tests.media.test_videos import clip
from tests.media.tiny import picture

GREY = np.asarray(GOOD.convert("L"))
TONE = (0.5 * np.sin(np.arange(8000) / 8)).astype(np.float32)
ANY = MediaOptions()


def turned(way: int, kind: str = "PNG") -> bytes:
    exif = Image.Exif()
    exif[0x0112] = way
    return encoded(kind, GOOD, exif=exif)


def clear_grey(grey: int, clear: int) -> bytes:
    """Pixels of one grey of 16 bits, and which grey is clear."""
    header = struct.pack(">IIBBBBB", 3, 2, 16, 0, 0, 0, 0)
    lines = zlib.compress((b"\0" + struct.pack(">H", grey) * 3) * 2)
    parts = (b"IHDR", header), (b"tRNS", struct.pack(">H", clear)), (b"IDAT", lines), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def images() -> dict[str, tuple[Any, Any]]:
    """What is given, and the pixels that it stands for."""
    more, wide = [picture(48, 32, 3)], GREY.astype(np.uint16) * 257
    lab = encoded("TIFF", GOOD.convert("LAB"))
    cmyk = encoded("JPEG", GOOD.convert("CMYK"), quality=95)
    clear, red = GOOD.convert("RGBA"), Image.new("RGB", (3, 2), (9, 0, 0))
    clear.putalpha(0)
    moving: Any = {"save_all": True, "append_images": more}
    opened = Image.open(io.BytesIO(encoded("GIF", GOOD, **moving)))
    opened.seek(1)
    found = {
        "CMYK": (cmyk, np.asarray(Image.open(io.BytesIO(cmyk)).convert("RGB"))),
        "LAB": (lab, np.asarray(Image.open(io.BytesIO(lab)).convert("RGB"))),
        "16 bits": (encoded("PNG", Image.fromarray(wide)), GREY),
        "16 bits, open": (Image.fromarray(wide), GREY),
        "32 bits of bytes": (encoded("TIFF", Image.fromarray(GREY.astype(np.int32))), GREY),
        "moving WebP": (encoded("WEBP", GOOD, lossless=True, **moving), GOOD),
        "moving PNG": (encoded("PNG", GOOD, **moving), GOOD),
        "two pages": (encoded("TIFF", GOOD, **moving), GOOD),
        "two pictures": (encoded("MPO", GOOD, quality=100, **moving), None),
        "a frame of the caller's": (opened, np.asarray(opened.convert("RGB"))),
        "a clear colour": (encoded("PNG", red, transparency=(9, 0, 0)), np.full((2, 3), 255)),
        "a clear grey of 16 bits": (clear_grey(0x1234, 0x1234), np.full((2, 3), 255)),
        "16 bits, another is clear": (clear_grey(0x1234, 0x1235), np.full((2, 3), 0x12)),
        "all clear": (encoded("WEBP", clear, lossless=True), np.full((32, 48), 255)),
        "a palette, open": (GOOD.convert("P"), np.asarray(GOOD.convert("P").convert("RGB"))),
        "one pixel": (encoded("PNG", picture(1, 1)), picture(1, 1)),
        "200 times as wide": (encoded("PNG", picture(2000, 10)), picture(2000, 10)),
        "greys": (GREY, GREY),
        "greys with a channel": (GREY[:, :, None], GREY),
        "greys, channel first": (GREY[None], GREY),
        "channels first": (np.asarray(GOOD).transpose(2, 0, 1), GOOD),
        "a view": (np.asarray(GOOD)[::-1], np.asarray(GOOD)[::-1]),
        "of a dataset": ({"bytes": encoded("PNG"), "path": None}, GOOD),
    }
    ways = {2: GOOD.transpose(0), 3: GOOD.transpose(3), 6: GOOD.transpose(4), 8: GOOD.transpose(2)}
    return found | {
        f"turned {way}, {kind}": (turned(way, kind), wanted)
        for way, wanted in ways.items()
        for kind in ("PNG", "TIFF")
    }


@pytest.mark.parametrize("name", images())
def test_images_as_people_bring_them(name: str, children: MediaChildren) -> None:
    given, wanted = images()[name]
    source = read_image(given, ANY, children)
    opened = source.open()
    assert opened.mode == "RGB" and opened.size == source.size
    if wanted is None:
        return
    pixels = np.asarray(wanted)
    pixels = pixels if pixels.ndim == 3 else np.stack([pixels] * 3, 2)
    assert np.array_equal(np.asarray(opened), pixels)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.zeros((9, 9, 3), np.float32), r"pass \(255 \* array\).round\(\).astype\('uint8'\)"),
        (np.zeros((9, 9, 3), np.uint16), r"pass array.astype\('uint8'\)"),
        (np.full((9, 9, 3), 256, np.uint16), r"pass \(array >> 8\).astype\('uint8'\)"),
        (torch.rand(3, 9, 9), "tensor of torch.*numpy array of bytes"),
        ("a.png", "pathlib.Path"),
        (np.zeros((9, 9, 3), bool), r"pass \(255 \* array\).astype"),
        ({"bytes": None, "path": None}, "without bytes or path"),
        ({"bytes": None, "path": "a.png"}, "allowed_local_media_path"),
        (Image.new("F", (9, 9)), "mode 'F'.*convert it to RGB"),
        (encoded("JPEG2000"), "no format that quire reads"),
        (b"", "the image has no bytes"),
        (encoded("PNG", picture(3000, 10)), "at most 200 times"),
    ],
)
def test_images_that_are_refused_say_the_way_out(
    given: Any, said: str, children: MediaChildren
) -> None:
    with pytest.raises(InvalidPrompt, match=said):
        for one in listed("image", given, ANY):
            source: Any = read_source("image", one, ANY, children)
            source.open()


def test_bytes_in_urls_as_people_write_them() -> None:
    for data in (bytes(range(256)), b"\xfb\xff\xbf?", b"abcd", b""):
        plain, other = b64encode(data).decode(), urlsafe_b64encode(data).decode()
        forms = [
            f"data:image/png;base64,{plain}",
            f"data:image/png;charset=utf-8;base64,{plain}",
            f" DATA:;BASE64, {plain}",
            f"data:image/png;base64,{other}",
            f"data:image/png;base64,{plain.rstrip('=')}",
            f"data:image/png;base64,{quote(plain, safe='')}",
            "data:image/png;base64," + "\r\n".join(textwrap.wrap(plain, 76)),
        ]
        assert {MediaUrl(form).read(None, 1000, Fetching()) for form in forms} == {data}
    for broken in ("a", "ab=c", "ab!c", "%zz"):
        with pytest.raises(InvalidPrompt, match="no base64"):
            MediaUrl(f"data:image/png;base64,{broken}").read(None, 1000, Fetching())
    with pytest.raises(InvalidPrompt, match="more than 9 bytes"):
        MediaUrl("data:image/png;base64," + "A" * 17).read(None, 9, Fetching())


def sound(samples: Any, rate: int = 16_000, **how: Any) -> bytes:
    soundfile = pytest.importorskip("soundfile")
    file = io.BytesIO()
    soundfile.write(file, samples, rate, **how)
    return file.getvalue()


SOUNDS = [
    *({"format": "WAV", "subtype": kind} for kind in ("ULAW", "ALAW", "PCM_24", "PCM_U8")),
    *({"format": "WAV", "subtype": kind} for kind in ("DOUBLE", "IMA_ADPCM")),
    *({"format": "OGG", "subtype": kind} for kind in ("VORBIS", "OPUS")),
    *({"format": kind} for kind in ("MP3", "FLAC", "WAVEX")),
]


@pytest.mark.parametrize("how", SOUNDS, ids=lambda how: "-".join(how.values()))
def test_sounds_as_people_bring_them(how: dict[str, str], children: MediaChildren) -> None:
    found = read_sound(sound(TONE, **how), ANY, 16_000, children)
    samples = found.open()
    # What is lost is noise; some formats end with a whole block.
    assert found.size == samples.shape and 0 <= len(samples) - 8000 <= 400
    assert samples.std() == pytest.approx(TONE.std(), rel=0.05)


def test_samples_as_people_bring_them(children: MediaChildren) -> None:
    pytest.importorskip("soxr")
    both, low = np.stack([TONE, TONE]), TONE[::2]
    given: list[Any] = [
        (torch.from_numpy(TONE)[None], 16_000),  # as torchaudio reads
        (torch.from_numpy(both), 16_000),
        (both, 16_000),
        (both.T, np.int64(16_000)),
        (both.T.astype(np.float64), 16_000.0),
        ((TONE * 32767).astype(np.int16), 16_000),
        {"array": TONE, "sampling_rate": 16_000, "path": None},
        {"bytes": sound(TONE, format="WAV"), "path": None},
        (np.stack([low, low]), 8_000),
        sound(np.stack([low, low], 1), 8_000, format="WAV"),
    ]
    for one in given:
        samples = read_sound(one, ANY, 16_000, children).open()
        assert len(samples) == 8000 and np.abs(samples - TONE)[100:-100].max() < 0.02
    for bad in (sound(TONE[:0], format="WAV"), TONE[:0], torch.zeros(1, 9)):
        with pytest.raises(InvalidPrompt, match="no samples|more than one dimension"):
            read_sound(bad, ANY, 16_000, children)


def video(kind: str, codec: str, times: list[int], *, side: bool = False) -> bytes:
    """A video whose frames are shown at these thousandths of a second; `side`: with one that is
    darker."""
    av: Any = pytest.importorskip("av")
    file = io.BytesIO()
    with av.open(file, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for number, time in enumerate(times):
            shade = np.full((48, 64, 3), number * 255 // len(times), np.uint8)
            shade[:, :16] //= 1 + side
            frame = av.VideoFrame.from_ndarray(shade, format="rgb24")
            frame.pts, frame.time_base = time, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


@pytest.mark.parametrize(
    ("kind", "codec", "times"),
    [
        ("mp4", "mpeg4", [0, 10, 400, 410, 420, 900, 1500, 3000]),  # of no even rate
        ("matroska", "mpeg4", [0, 10, 400, 410, 420, 900, 1500, 3000]),
        ("webm", "libvpx", [0, 100, 200, 300, 400, 500, 600, 700]),
        ("mp4", "mpeg4", [0]),
    ],
    ids=["uneven", "uneven mkv", "webm", "one frame"],
)
def test_videos_as_people_bring_them(
    kind: str, codec: str, times: list[int], children: MediaChildren
) -> None:
    found = read_video(video(kind, codec, times), ANY, children)
    count = found.shape.frames
    assert count == len(times) and (found.shape.rate or 0) > 0
    shades = [np.asarray(frame).mean() for frame in found.frames(range(count))]
    assert shades == pytest.approx([i * 255 // count for i in range(count)], abs=12)


@pytest.mark.parametrize(("quarters", "matrix"), [(1, (0, -1, 1, 0)), (3, (0, 1, -1, 0))])
def test_a_video_is_turned_as_it_says(
    quarters: int, matrix: tuple[int, ...], children: MediaChildren
) -> None:
    """As a phone writes it that was held upright."""
    data = bytearray(video("mp4", "mpeg4", [0, 100, 200], side=True))
    plain = read_video(bytes(data), ANY, children)
    at = data.index(b"tkhd") + 44
    a, b, c, d = (number << 16 for number in matrix)
    data[at : at + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    found = read_video(bytes(data), ANY, children)
    assert (found.shape.width, found.shape.height) == (48, 64)
    for turned, frame in zip(found.frames([0, 2]), plain.frames([0, 2]), strict=True):
        assert np.array_equal(np.asarray(turned), np.rot90(np.asarray(frame), quarters))


def test_a_gif_is_a_video_and_sound_alone_is_none(children: MediaChildren) -> None:
    pytest.importorskip("av")
    moving = encoded("GIF", GOOD, save_all=True, append_images=clip(4, 1, GOOD.size))
    assert read_video(moving, ANY, children).shape.frames == 5
    greys = np.zeros((4, 9, 8), np.uint8)
    assert read_video((list(greys), {"fps": 2.0}), ANY, children).shape.frames == 4
    with pytest.raises(InvalidPrompt, match="video cannot be opened|holds no pictures"):
        read_video(sound(TONE, format="WAV"), ANY, children)


def test_cells_without_a_file_say_so(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    cells = MediaCells({"image": ("photo",)}, tmp_path)
    said = {"": "an empty text", "folder": "is no regular file", "https://a.b/c.png": "holds a URL"}
    for cell, why in said.items():
        with pytest.raises(BadRow, match=why):
            cells.of({"photo": cell})
