"""More than 120 kinds of rows that cannot be answered, among a thousand that can."""

from __future__ import annotations

import json
from pathlib import Path

from quire.jobs.job import Job
from tests.jobs import drive
from tests.jobs.driving import read_lines
from tests.jobs.poison import kinds

GOOD = 1000


def good(i: int) -> bytes:
    talk = [{"role": "user", "content": f"number {i}"}]
    return json.dumps({"id": f"good {i}", "talk": talk}).encode()


def answered(source: Path, output: Path) -> tuple[list[dict[str, object]], int]:
    job = Job(source, output, model="fake:chat=1", messages="talk", id="id", max_tokens=3)
    job._engine_command = drive.command()
    report = job.run(progress=False)
    return read_lines(output), report.num_restarts


def test_each_poison_row_costs_one_typed_error_and_nothing_else(tmp_path: Path) -> None:
    bad = kinds()
    assert len(bad) >= 120
    assert len({line for _, line, _ in bad}) == len(bad)
    clean = tmp_path / "clean.jsonl"
    clean.write_bytes(b"".join(good(i) + b"\n" for i in range(GOOD)))
    expected, _ = answered(clean, tmp_path / "clean-out.jsonl")
    lines = [good(i) for i in range(GOOD)]
    step = GOOD // len(bad)
    for i, (_, line, _) in reversed(list(enumerate(bad))):
        lines.insert(1 + i * step, line)
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_bytes(b"\n".join(lines) + b"\n")
    found, restarts = answered(mixed, tmp_path / "mixed-out.jsonl")
    assert restarts == 0
    assert len(found) == GOOD + len(bad)
    got = [found[1 + i * (step + 1)]["error_type"] for i in range(len(bad))]
    wrong = [
        f"{name}: {was}, not {kind}"
        for (name, _, kind), was in zip(bad, got, strict=True)
        if was != kind
    ]
    assert wrong == []
    assert [row for row in found if row["error"] is None] == expected
