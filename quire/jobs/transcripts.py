"""The output of a job that transcribes: a transcript for each file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from quire.inputs.transcript_params import wrong
from quire.inputs.transcripts import Segment, Transcript
from quire.jobs.output.joined import joined
from quire.jobs.output.output import check_complete
from quire.jobs.store.durable import replacing
from quire.jobs.store.manifest import Manifest
from quire.jobs.store.record import ResultRecord
from quire.jobs.store.segments import ResultIndex

FORMATS = {".jsonl": "jsonl", ".json": "jsonl", ".txt": "text", ".srt": "srt", ".vtt": "vtt"}


def transcript_format(output: Path) -> str:
    found = FORMATS.get(output.suffix.lower())
    if found is None:
        raise wrong("output", f"ends in one of {', '.join(FORMATS)}", str(output))
    return found


def check_alone(output: Path, num_files: int) -> None:
    """Refuse a text or subtitle file as output of several sounds."""
    if num_files > 1 and transcript_format(output) != "jsonl":
        raise wrong("output", f"ends in .jsonl where there are {num_files} files", str(output))


@dataclass(slots=True)
class FileTranscript(Transcript):
    file: str = ""
    error: str | None = None
    error_type: str | None = None

    def add(self, row: Mapping[str, Any], record: ResultRecord) -> None:
        """Add the next piece. A failed piece leaves a gap, and the first error is kept."""
        start, end = float(row.get("start", 0.0)), float(row.get("end", 0.0))
        about = record.extra.get("transcript", {})
        said = [Segment(*one) for one in about.get("segments", ())]
        self.add_piece(start, end, about.get("language"), said)
        if record.failed and self.error_type is None:
            where = f"from {start:g} s to {end:g} s: " if end else ""
            self.error, self.error_type = f"{where}{record.error}", record.error_type

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
) -> Iterator[tuple[FileTranscript, int]]:
    """The transcript of each file, with the number of its pieces."""
    rows = joined(job_dir, manifest, index)
    for file, pieces in groupby(rows, key=lambda each: str(each[0].get("file", ""))):
        made, count = FileTranscript(file=file), 0
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
            out.write(made.as_text(manifest.output_format).encode("utf-8", "replace"))
        check_complete(written, num_rows)
