"""Sounds of a job that transcribes: files and folders as rows, one for each piece that is heard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.errors import InvalidOption, InvalidRequest, NotSupported
from quire.jobs.input.rows import BadRow

if TYPE_CHECKING:
    from quire.inputs.media.children import MediaChildren

ENDINGS = (
    *(".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif", ".w64", ".rf64", ".au", ".caf"),
    *(".m4a", ".aac", ".mka", ".weba", ".wma", ".amr"),
)
RATE = 16_000  # samples a second; pieces are cut at this rate
MOST_SECONDS = 24 * 3600.0
LEAST_PIECE, MOST_PIECE = 1.0, 30.0  # seconds


def sound_files(paths: Sequence[str]) -> list[Path]:
    """Files as they are given, and those of folders that look like sounds, by their names."""
    files = [file for given in paths for file in _files(Path(given))]
    if not files:
        raise InvalidOption(
            f"no sound among {', '.join(paths)[:200] or 'nothing'}: give files, or folders with "
            f"files that end in {', '.join(ENDINGS)}",
            parameter="input",
        )
    return files


def sound_rows(files: Sequence[Path], seconds: float = MOST_PIECE) -> Iterator[dict[str, Any]]:
    """A row for each piece of each file, in their order; one with an error for a file that cannot
    be read."""
    if not LEAST_PIECE <= seconds <= MOST_PIECE:
        raise InvalidOption(
            f"seconds={seconds!r}: pieces last from {LEAST_PIECE:g} to {MOST_PIECE:g}",
            parameter="seconds",
            value=seconds,
        )
    return _rows(files, seconds)


def _rows(files: Sequence[Path], seconds: float) -> Iterator[dict[str, Any]]:
    from quire.inputs.media.children import MediaChildren  # numpy, which few jobs need here

    with MediaChildren(most=1) as children:
        for file in files:
            yield from _pieces(file, seconds, children)


def _files(given: Path) -> list[Path]:
    if not given.is_dir():
        return [given]
    return sorted(file for file in given.iterdir() if file.suffix.lower() in ENDINGS)


def _pieces(file: Path, seconds: float, children: MediaChildren) -> Iterator[dict[str, Any]]:
    try:
        found = _cut(file, seconds, children)
    except (InvalidRequest, NotSupported) as error:
        yield {"file": str(file), "piece": 0, "unread": str(error)}
        return
    for number, about in enumerate(found):
        yield {"file": str(file), "piece": number, **about}


def _cut(file: Path, seconds: float, children: MediaChildren) -> list[dict[str, Any]]:
    """All pieces at once: a file that is cut short gives one error, and no pieces."""
    from quire.inputs.media.pieces import cuts, stamp_of
    from quire.inputs.media.samples import blocks

    about = {"path": str(file.absolute()), "stamp": stamp_of(file)}
    found = cuts(blocks(file, RATE, children, MOST_SECONDS), RATE, seconds)
    return [{**about, "start": start, "end": end} for start, end in found]


def pieces_of(file: Path, seconds: float = MOST_PIECE) -> list[dict[str, Any]]:
    """The pieces of one file; InvalidRequest or NotSupported where it cannot be read."""
    from quire.inputs.media.children import MediaChildren

    with MediaChildren(most=1) as children:
        return _cut(file, seconds, children)


class SoundAsking:
    """What the engine is asked of a row: one piece of one file."""

    def ask(self, row: Mapping[str, Any]) -> dict[str, Any]:
        if row.get("unread"):
            raise BadRow("invalid_prompt", str(row["unread"]))
        return {"sound": {name: row[name] for name in ("path", "stamp", "start", "end")}}
