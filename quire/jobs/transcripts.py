"""A job that transcribes: what it is asked with, and its output, a transcript for each file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import groupby
from math import isfinite
from pathlib import Path
from typing import Any

from quire.errors import InvalidOption
from quire.inputs.transcripts import TASKS, Doubts, Segment
from quire.jobs.output.joined import joined
from quire.jobs.output.output import check_complete
from quire.jobs.store.durable import replacing
from quire.jobs.store.manifest import Manifest
from quire.jobs.store.record import ResultRecord
from quire.jobs.store.segments import ResultIndex

FORMATS = {".jsonl": "jsonl", ".json": "jsonl", ".txt": "text", ".srt": "srt", ".vtt": "vtt"}
_DOUBTS = asdict(Doubts())
# What a job that transcribes may say of it.
PARAMS = ("language", "task", "timestamps", "initial_prompt", "temperature", *_DOUBTS)
TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # each where the answer of the one before is doubted
_WITHOUT_SPACES = ("zh", "ja", "th", "lo", "my", "yue")


def transcript_params(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of such a job, checked and complete."""
    if strange := sorted(set(given) - set(PARAMS)):
        raise _wrong(strange[0], f"is none of a transcript's: {', '.join(PARAMS)}", None)
    task = given.get("task", TASKS[0])
    for name, rule in (("language", "is a code such as en"), ("initial_prompt", "is a text")):
        if not isinstance(given.get(name), str | None):
            raise _wrong(name, rule, given[name])
    if task not in TASKS:
        raise _wrong("task", f"is {' or '.join(TASKS)}", task)
    doubts = {name: given.get(name, usual) for name, usual in _DOUBTS.items()}
    for name, value in doubts.items():
        if not _is_number(value):
            raise _wrong(name, "is a number", value)
    return {
        "language": given.get("language"),
        "task": task,
        "timestamps": bool(given.get("timestamps")),
        "initial_prompt": given.get("initial_prompt"),
        "temperature": _temperatures(given.get("temperature", TEMPERATURES)),
        **{name: float(value) for name, value in doubts.items()},
    }


def doubts_of(params: Mapping[str, Any]) -> Doubts:
    return Doubts(**{name: params[name] for name in _DOUBTS})


def _temperatures(given: Any) -> list[float]:
    """One or several, as numbers or as a command line has them."""
    several = given if isinstance(given, list | tuple) else [given]
    try:
        tried = [float(one) for one in several]
    except (TypeError, ValueError):
        tried = []
    if not tried or not all(0 <= one <= 2 for one in tried):
        raise _wrong("temperature", "is a number from 0 to 2, or several to try in turn", given)
    return tried


def _is_number(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and isfinite(given)


def transcript_format(output: Path) -> str:
    found = FORMATS.get(output.suffix.lower())
    if found is None:
        raise _wrong("output", f"ends in one of {', '.join(FORMATS)}", str(output))
    return found


def check_alone(output: Path, num_files: int) -> None:
    """A text or subtitles are of one sound."""
    if num_files > 1 and transcript_format(output) != "jsonl":
        raise _wrong("output", f"ends in .jsonl where there are {num_files} files", str(output))


def _wrong(name: str, rule: str, value: Any) -> InvalidOption:
    said = "" if value is None else f", not {value!r}"
    return InvalidOption(f"{name} {rule}{said}", parameter=name, value=value)


@dataclass(slots=True)
class Transcript:
    """What was said in one file."""

    file: str
    seconds: float = 0.0
    language: str | None = None
    segments: list[Segment] = field(default_factory=list)
    error: str | None = None
    error_type: str | None = None

    def add(self, row: Mapping[str, Any], record: ResultRecord) -> None:
        """The next piece of it. What failed leaves a gap, and the first error is kept."""
        start, end = float(row.get("start", 0.0)), float(row.get("end", 0.0))
        self.seconds = max(self.seconds, end)
        if record.failed:
            if self.error_type is None:
                where = f"from {start:g} s to {end:g} s: " if end else ""
                self.error, self.error_type = f"{where}{record.error}", record.error_type
            return
        about = record.extra.get("transcript", {})
        self.language = self.language or about.get("language")
        for first, last, text in about.get("segments", ()):
            self.segments.append(Segment(round(start + first, 2), round(start + last, 2), text))

    @property
    def text(self) -> str:
        between = "" if self.language in _WITHOUT_SPACES else " "
        return between.join(segment.text for segment in self.segments)

    def line(self) -> bytes:
        row = {
            "file": self.file,
            "text": self.text,
            "language": self.language,
            "seconds": round(self.seconds, 2),
            "segments": [[one.start, one.end, one.text] for one in self.segments],
            "error": self.error,
            "error_type": self.error_type,
        }
        return json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def transcripts(
    job_dir: Path, manifest: Manifest, index: ResultIndex
) -> Iterator[tuple[Transcript, int]]:
    """Each file's, with how many pieces it has."""
    rows = joined(job_dir, manifest, index)
    for file, pieces in groupby(rows, key=lambda each: str(each[0].get("file", ""))):
        made, count = Transcript(file), 0
        for row, record in pieces:
            made.add(row, record)
            count += 1
        yield made, count


def write_transcripts(job_dir: Path, manifest: Manifest, index: ResultIndex, num_rows: int) -> None:
    """One line for each file, or the text or subtitles of the only one."""
    with replacing(Path(manifest.output), shared=True) as out:
        written = 0
        for made, count in transcripts(job_dir, manifest, index):
            written += count
            if manifest.output_format == "jsonl":
                out.write(made.line())
                continue
            out.write(_as_text(made, manifest.output_format).encode("utf-8", "replace"))
        check_complete(written, num_rows)


def _as_text(made: Transcript, format: str) -> str:
    if format == "text":
        return made.text + "\n"
    lines = ["WEBVTT\n"] if format == "vtt" else []
    comma = "." if format == "vtt" else ","
    for number, one in enumerate(made.segments, start=1):
        # A blank line would end the subtitle.
        said = "\n".join(line for line in one.text.splitlines() if line.strip())
        times = f"{_clock(one.start, comma)} --> {_clock(one.end, comma)}"
        lines.append(f"{number}\n{times}\n{said.replace('-->', '->')}\n")
    return "\n".join(lines)


def _clock(seconds: float, comma: str) -> str:
    thousandths = round(seconds * 1000)
    minutes, rest = divmod(thousandths, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{comma}{rest % 1000:03}"
