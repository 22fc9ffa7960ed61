"""Files that may be packed: opened by their ending, and told by name where they do not unpack."""

from __future__ import annotations

import errno
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def is_packed(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def open_bytes(path: Path) -> IO[bytes] | gzip.GzipFile:
    """The file's bytes, unpacked where its name says that they are packed."""
    return gzip.open(path, "rb") if is_packed(path) else open(path, "rb")


@contextmanager
def unpacking(path: Path) -> Iterator[None]:
    """What a damaged or wrongly named archive raises, as the read error that it is."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise OSError(
            errno.EIO,
            f"it does not unpack as gzip ({error}); fetch or pack it again, or rename it if it "
            "is not packed",
            str(path),
        ) from None
