"""Files that hold media: regular ones, no larger than a limit, inside the allowed folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from quire.errors import InvalidPrompt, NotSupported
from quire.inputs.media.allowed import bad_medium


@contextmanager
def reading(bad: Callable[[str], InvalidPrompt]) -> Iterator[None]:
    """Turn any error of a decoder over a broken item into an error of the prompt from `bad`."""
    try:
        yield
    except (InvalidPrompt, NotSupported):
        raise
    except MemoryError:
        raise bad("takes more memory than there is") from None
    except Exception as error:  # decoders may raise anything for untrusted bytes
        raise bad(f"cannot be read: {type(error).__name__}: {str(error)[:200]}") from None


def open_file(path: Path) -> BinaryIO:
    """Open a regular file to read it."""
    try:
        # O_NONBLOCK: opening a pipe or a device must not wait.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise _refused(path, f"cannot be opened: {getattr(error, 'strerror', error)}") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):  # also refuses folders
        os.close(handle)
        raise _refused(path, "is no regular file")
    return os.fdopen(handle, "rb")


def read_file(path: Path, most: int) -> bytes:
    """The bytes of a file, at most `most`, whatever size the file system reports."""
    with open_file(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise _refused(path, f"is larger than {most:,} bytes, the most that is read")
    return data


def allowed_file(path: str, folder: str | None) -> Path:
    """The file that a path leads to, after links are followed, if it lies in the folder."""
    if not folder:
        raise InvalidPrompt(
            f"the file {path[:200]!r} is not read: no folder was allowed. Set "
            "allowed_local_media_path to the one it is in",
            parameter="allowed_local_media_path",
        )
    try:
        found, home = Path(path).resolve(strict=True), Path(folder).resolve(strict=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise _refused(Path(path), f"cannot be found: {error}") from None
    if not found.is_relative_to(home):
        raise _refused(Path(path), f"lies outside of {folder!r} (allowed_local_media_path)")
    return found


def of_dataset(given: Mapping[str, Any], kind: str) -> bytes | Path:
    """The item of a dataset, {"bytes", "path"}: its bytes, or otherwise the path of its file."""
    data, path = given.get("bytes"), given.get("path")
    if isinstance(data, bytes):
        return data
    if isinstance(path, str) and path:
        return Path(path)
    raise bad_medium(
        kind, f"is a dictionary of {sorted(map(str, given))[:5]} without bytes or path"
    )


def _refused(path: Path, why: str) -> InvalidPrompt:
    return InvalidPrompt(f"the file {str(path)[:200]!r} {why}", parameter="multi_modal_data")
