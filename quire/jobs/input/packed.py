"""Opens files that may be compressed, by the ending of their names. A file that cannot be unpacked,
or that is not text, is refused by its name."""

from __future__ import annotations

import errno
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import cast

from quire.errors import InvalidOption

# By the ending of a name.
PACKED = {".gz": "gzip", ".zst": "zstd", ".xz": "xz", ".bz2": "bzip2"}
_MODULES = {"gzip": "gzip", "xz": "lzma", "bzip2": "bz2"}
_UTF16 = "UTF-16, and text is read as UTF-8: save it so (iconv -f UTF-16 -t UTF-8)"
# For programs of an office on Windows, which write this where nobody asks for UTF-8.
NOT_UTF8 = "not UTF-8 (save it so, or iconv -f WINDOWS-1252 -t UTF-8)"
# Beginnings that no text in UTF-8 has. Every row of such a file would fail.
_NO_TEXT = {
    b"\xff\xfe": _UTF16,
    b"\xfe\xff": _UTF16,
    b"\x1f\x8b": "packed with gzip: unpack it, or let a file's name end in .gz",
    b"\x28\xb5\x2f\xfd": "packed with zstd: unpack it, or let a file's name end in .zst",
    b"\xfd7zXZ\0": "packed with xz: unpack it, or let a file's name end in .xz",
    b"PK\x03\x04": "a ZIP archive, as workbooks of Excel are: save the table in it as CSV",
    b"PAR1\x15": "a Parquet file: let its ending say so, or pass --format parquet",
    b"ARROW1\0\0": "an Arrow file: let its ending say so, or pass --format arrow",
}


def is_packed(path: Path) -> bool:
    return path.suffix.lower() in PACKED


def open_bytes(path: Path) -> io.BufferedReader:
    """The file's bytes, unpacked where its name says that they are packed."""
    file = _opened(path)
    try:
        check_text(file.peek(8), str(path))
    except BaseException:
        file.close()
        raise
    return file


def check_text(beginning: bytes, name: str) -> None:
    """Raise InvalidOption if a file that begins like this cannot be text."""
    for sign, what in _NO_TEXT.items():
        if beginning.startswith(sign):
            raise InvalidOption(f"{name} is {what}", parameter="input", value=name)


def _opened(path: Path) -> io.BufferedReader:
    kind = PACKED.get(path.suffix.lower())
    if kind in _MODULES:
        unpacked = import_module(_MODULES[kind]).open(path, "rb")
        return cast(io.BufferedReader, unpacked)  # which has all of its methods
    if kind == "zstd":
        from pyarrow import input_stream

        return io.BufferedReader(input_stream(str(path), compression=kind))
    return open(path, "rb")


@contextmanager
def unpacking(path: Path) -> Iterator[None]:
    """Turns the errors of a damaged or wrongly named archive into a read error."""
    broken: tuple[type[Exception], ...] = (EOFError, zlib.error, OSError)
    if path.suffix.lower() == ".xz":  # some builds of Python come without
        broken += (import_module("lzma").LZMAError,)
    try:
        yield
    except broken as error:
        if isinstance(error, OSError) and (error.errno is not None or not is_packed(path)):
            raise  # an error of the disk, not of the archive
        raise OSError(
            errno.EIO,
            f"it does not unpack as {PACKED[path.suffix.lower()]} ({error}); fetch or pack it "
            "again, or rename it if it is not packed",
            str(path),
        ) from None
