"""Images that nobody means well with, or that broke on their way: bytes by name; and how bytes of
any medium are broken."""

from __future__ import annotations

import io
import random
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image

from tests.media.tiny import picture

GOOD = picture(48, 32)


def encoded(kind: str, image: Image.Image = GOOD, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def chunk(name: bytes, data: bytes) -> bytes:
    body = name + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def png(width: int, height: int, data: bytes = b"", *, depth: int = 8, colour: int = 2) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(data))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")


def changed(data: bytes, at: int, new: bytes) -> bytes:
    """With other bytes from there on."""
    return data[:at] + new + data[at + len(new) :]


def noisy(data: bytes, first: int, count: int = 40) -> bytes:
    """Some bytes are others, from the first that may be."""
    made, rng = bytearray(data), random.Random(3)
    for _ in range(count):
        made[rng.randrange(first, len(made))] = rng.randrange(256)
    return bytes(made)


def refused() -> dict[str, bytes]:
    """Each of these ends its own row, with an error that says what is wrong."""
    whole = {kind: encoded(kind) for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")}
    made = {f"{kind} cut in half": data[: len(data) // 2] for kind, data in whole.items()}
    made |= {f"{kind} header alone": data[:12] for kind, data in whole.items()}
    made |= {f"{kind} first byte": data[:1] for kind, data in whole.items()}
    made |= {
        "nothing": b"",
        "zeros": bytes(1000),
        "text": b"this is no image at all",
        "html": b"<html><body>404</body></html>",
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
        "svg with entities": b'<!DOCTYPE s [<!ENTITY a SYSTEM "file:///etc/passwd">]><svg>&a;</svg>',
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(ls) run\n",
        "pdf": b"%PDF-1.7\n1 0 obj <</Type /Catalog>> endobj",
        "pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
        "zip": b"PK\x03\x04" + bytes(40),
        "gzip": b"\x1f\x8b\x08" + bytes(40),
        "ico": b"\x00\x00\x01\x00\x01\x00\xff\xff" + bytes(40),
        "psd": b"8BPS\x00\x01" + bytes(40),
        "icns": b"icns" + bytes(40),
        "mp4": b"\x00\x00\x00\x18ftypmp42" + bytes(40),
        "wav": b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(40),
        "claims 50000 x 50000": png(50_000, 50_000),
        "claims 4 billion wide": png(2**31 - 1, 2**31 - 1),
        "no width": png(0, 10),
        "no height": png(10, 0),
        "a line of 5000": png(5000, 1, bytes(15_001)),
        "a column of 5000": png(1, 5000, bytes(20_000)),
        "fewer pixels than said": png(100, 100, bytes(50)),
        "a depth that there is none of": png(8, 8, bytes(300), depth=7),
        "a colour that there is none of": png(8, 8, bytes(300), colour=5),
        "a bomb of text": png(8, 8)[:33] + chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1 << 26))),
        "a wrong sum": whole["PNG"][:40] + b"\xff" + whole["PNG"][41:],
        "gif without frames": b"GIF89a\x10\x00\x10\x00\x80\x00\x00" + bytes(6) + b";",
        "bmp of minus size": b"BM" + struct.pack("<IHHIIiiHH", 60, 0, 0, 54, 40, -9, -9, 1, 24),
        "tiff in a circle": b"II*\x00\x08\x00\x00\x00\x00\x00\x08\x00\x00\x00",
        "tiff far away": b"II*\x00\xff\xff\xff\x7f" + bytes(20),
        "jpeg of markers": b"\xff\xd8" + b"\xff\xe0\x00\x02" * 200,
        "jpeg without end": whole["JPEG"][:-40],
    }
    return made


def accepted() -> dict[str, bytes]:
    """Odd, and images all the same."""
    grey = Image.fromarray((np.arange(48 * 32).reshape(32, 48) * 40).astype(np.uint16))
    turned = Image.Exif()
    turned[0x0112] = 6
    clear = GOOD.convert("RGBA")
    clear.putalpha(0)
    return {
        **{kind: encoded(kind) for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")},
        "grey": encoded("PNG", GOOD.convert("L")),
        "one bit": encoded("PNG", GOOD.convert("1")),
        "palette": encoded("PNG", GOOD.convert("P")),
        "palette with a clear one": encoded("PNG", GOOD.convert("P"), transparency=3),
        "clear": encoded("PNG", clear),
        "grey and clear": encoded("PNG", GOOD.convert("LA")),
        "sixteen bits": encoded("PNG", grey),
        "cmyk": encoded("JPEG", GOOD.convert("CMYK")),
        "progressive": encoded("JPEG", GOOD, progressive=True),
        "turned": encoded("JPEG", GOOD, exif=turned),
        "moving": encoded("GIF", GOOD, save_all=True, append_images=[picture(48, 32, 4)]),
        "one pixel": encoded("PNG", picture(1, 1)),
        "rubbish behind it": encoded("PNG") + b"rubbish" * 100,
    }
