"""A million rows with an engine that answers at once: memory, first result, resumption."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.jobs.driving import command, journal_bytes, kill, started, wait_until

ROWS = 1_000_000
TEXT = "lorem ipsum dolor sit amet " * 20
BYTES = 190  # of a record, at least


def resident_megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    [kilobytes] = re.findall(r"VmRSS:\s+(\d+) kB", status)
    return int(kilobytes) / 1024


@pytest.mark.long
def test_a_million_rows_are_streamed(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    with open(source, "w") as file:
        for i in range(ROWS):
            file.write(f'{{"id": {i}, "text": "row {i} {TEXT}"}}\n')
    job_dir = tmp_path / "out.jsonl.quire"
    arguments = command(
        *("run", source, "-m", "stub", "-p", "Say {{ text }}", "-o", output, "--quiet"),
        engine="tests.jobs.fake_engine:StubEngine",
    )
    began = time.monotonic()
    samples: list[float] = []
    with started(arguments) as process:
        assert wait_until(lambda: journal_bytes(job_dir) > 0, 60)
        first = time.monotonic() - began
        while process.poll() is None and journal_bytes(job_dir) < 0.95 * ROWS * BYTES:
            samples.append(resident_megabytes(process.pid))
            time.sleep(0.5)
        kill(process)
    done = sum(path.read_bytes().count(b"\n") for path in job_dir.glob("results-*.jsonl"))
    before, began = journal_bytes(job_dir), time.monotonic()
    with started(arguments) as process:
        assert wait_until(lambda: journal_bytes(job_dir) > before, 300)
        resumed = time.monotonic() - began
        peak = 0.0
        while process.poll() is None:
            peak = max(peak, resident_megabytes(process.pid))
            time.sleep(0.2)
        assert process.returncode == 0
    with open(output, "rb") as file:
        assert sum(1 for _ in file) == ROWS
    warm = samples[len(samples) // 10 :]
    print(
        f"first result {first:.1f} s; memory {min(warm):.0f} to {max(warm):.0f} MB, {peak:.0f} MB "
        f"when resumed and written; {done:,} rows scanned and the next result in {resumed:.1f} s"
    )
    assert first <= 5 and resumed <= 30
    assert max(*warm, peak) <= 300
    slope = (warm[-1] - warm[0]) / (0.9 * done / 100_000)
    assert slope <= 1 + 8 * 100_000 / 2**20  # the index itself has eight bytes a row
