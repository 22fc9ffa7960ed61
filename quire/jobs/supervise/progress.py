"""Shows the progress of a job on stderr: a live line in a terminal, else a plain line at times."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import Any, TextIO

from quire.base.durations import duration
from quire.base.notes import note, tell
from quire.jobs.store.record import ResultRecord
from quire.jobs.supervise.metrics import MetricsFile
from quire.replicas.wire import Message
from quire.safe_text import one_line, without_secrets

_OURS = "quire: "
PLAIN_SECONDS, LIVE_SECONDS = 10.0, 0.25
ALL_FAILED = 64  # if so many first rows all fail, the cause is hardly the rows


class Progress:
    """Counts results and shows them; the engine's metrics go to their file."""

    def __init__(
        self, metrics: MetricsFile, *, show: bool = True, stream: TextIO | None = None
    ) -> None:
        self._metrics, self._show = metrics, show
        self._stream = sys.stderr if stream is None else stream
        self._live: _Live | None = None
        self.total: int | None = None  # work rows, once they are counted
        self.before = 0  # of these, done by earlier runs
        self.num_ok = self.num_failed = self.prompt_tokens = self.output_tokens = 0
        self._began = self._shown_at = time.monotonic()
        if show and self._stream is not None and self._stream.isatty():
            self._live = _Live(self._stream)

    def note(self, line: str) -> None:
        """Show a line from or about an engine; it may quote rows, files and other programs."""
        line = one_line(without_secrets(line))
        if self._live is not None:
            self._live.print(line)
        elif line.startswith(_OURS):
            note(line.removeprefix(_OURS))  # to the program's own logging, if it has one
        elif line:
            tell(line, self._stream)

    def result(self, record: ResultRecord) -> None:
        if record.failed:
            self.num_failed += 1
            if self.num_failed == ALL_FAILED and not self.num_ok + self.before:
                self.note(
                    f"quire: the first {ALL_FAILED} rows all failed, the last one with "
                    f"{record.error_type}: {record.error}. If that is the job's fault, stop it "
                    "with Ctrl-C."
                )
        else:
            self.num_ok += 1
            self.prompt_tokens += record.prompt_tokens
            self.output_tokens += record.output_tokens

    def metrics(self, message: Message) -> None:
        self._metrics.append(message)

    def tick(self) -> None:
        if not self._show:
            return
        now = time.monotonic()
        if self._live is not None and now - self._shown_at >= LIVE_SECONDS:
            self._live.show(self.line(now), self._share())
            self._shown_at = now
        elif self._live is None and now - self._shown_at >= PLAIN_SECONDS:
            tell(self.line(now), self._stream)
            self._shown_at = now

    def line(self, now: float) -> str:
        """4,812/11,689 rows  18.9 rows/s  610 tok/s  before 800  ok 4,009  failed 3  ETA ..."""
        new = self.num_ok + self.num_failed
        done, seconds = self.before + new, max(now - self._began, 1e-9)
        total = "" if self.total is None else f"/{self.total:,}"
        parts = [
            f"{done:,}{total} rows",
            f"{new / seconds:,.1f} rows/s",
            f"{self.output_tokens / seconds:,.0f} tok/s",
            *([f"before {self.before:,}"] if self.before else []),
            f"ok {self.num_ok:,}",
            f"failed {self.num_failed:,}",
        ]
        if self.total is not None and new:
            left = (self.total - done) * seconds / new
            parts.append(f"ETA {duration(left)}")
        return "  ".join(parts)

    def _share(self) -> float | None:
        if not self.total:
            return None
        return (self.before + self.num_ok + self.num_failed) / self.total

    def close(self) -> None:
        if self._live is not None:
            self._live.close()
            self._live = None
        self._metrics.close()


class Watcher:
    """The callbacks of a supervisor. This class shows progress; a run's subclass does more."""

    progress: Progress

    def note(self, line: str) -> None:
        self.progress.note(line)

    def result(self, record: ResultRecord) -> None:
        self.progress.result(record)

    def reused(self, record: ResultRecord) -> None:
        self.progress.before += 1

    def metrics(self, message: Message) -> None:
        self.progress.metrics(message)

    def tick(self) -> None:
        self.progress.tick()


class _Live:
    """One line of the terminal that is written again and again, by rich."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=stream, highlight=False)
        self._live = Live("", console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def print(self, line: str) -> None:
        with suppress(OSError):
            self._console.print(line, markup=False)

    def show(self, line: str, share: float | None) -> None:
        from rich.columns import Columns
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        parts: list[Any] = [Text(line)]
        if share is not None:
            parts.insert(0, ProgressBar(total=1.0, completed=share, width=24))
        with suppress(OSError):
            self._live.update(Columns(parts), refresh=True)

    def close(self) -> None:
        with suppress(OSError):
            self._live.stop()
