"""Opens containers with av in a decoding process (child.py): only formats that cannot refer to
other files or hosts."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, BinaryIO

from quire.errors import InvalidPrompt


def import_av() -> None:
    """Import all of av now: it would import parts later, when no file can be opened any more."""
    import av

    for one in pkgutil.walk_packages(av.__path__, "av."):
        if not one.name.endswith("__main__"):
            import_module(one.name)


def opened(file: BinaryIO, formats: str, bad: Callable[[str], InvalidPrompt]) -> Any:
    """Open a container of one of these formats from its beginning; errors are made by `bad`."""
    import av

    alone = {"format_whitelist": formats, "protocol_whitelist": "none"}
    file.seek(0)
    try:
        made = av.open(file, metadata_errors="ignore", container_options=alone)
    except (av.FFmpegError, ValueError) as error:
        raise bad(f"cannot be opened: {str(error)[:200]}") from None
    for stream in made.streams.video:
        stream.thread_type = "NONE"  # each thread would keep frames in memory
    return made


@contextmanager
def decoding(bad: Callable[[str], InvalidPrompt]) -> Iterator[None]:
    """Turn av's errors about the content of a container into errors that `bad` makes."""
    import av

    try:
        yield
    except (av.FFmpegError, ValueError) as error:
        raise bad(f"cannot be read: {str(error)[:200]}") from None
