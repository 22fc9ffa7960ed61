"""SIGKILL at random moments, again and again: nothing acknowledged is lost, nothing is there
twice, and the output is the one of a run that nobody disturbed."""

from __future__ import annotations

import random
import time
from pathlib import Path

from tests.jobs.driving import (
    children_of,
    is_alive,
    journal_bytes,
    kill,
    records,
    run,
    run_command,
    started,
    wait_until,
    write_rows,
)

ROWS, KILLS = 600, 4
LONG_ROWS, LONG_KILLS = 2000, 1000


def ends_by_itself(engine: int) -> bool:
    return wait_until(lambda: not is_alive(engine), 20)


def by_row(job_dir: Path) -> dict[int, tuple[object, ...]]:
    found = records(job_dir)
    rows: dict[int, tuple[object, ...]] = {
        int(f["row"]): (f["key"], f["content"], tuple(f["outputs"])) for f in found
    }
    assert len(rows) == len(found), "a row is there twice"
    return rows


def wait_for_the_moment(job_dir: Path, process: object, rows: int, rng: random.Random) -> None:
    """Sometimes a moment on the clock, so that starting up is hit; sometimes one in the work."""
    if rng.random() < 0.3:
        time.sleep(rng.uniform(0.0, 1.2))
        return
    enough = journal_bytes(job_dir) + rng.randrange(1, 60 * rows)
    wait_until(lambda: journal_bytes(job_dir) >= enough or process.poll() is not None)  # type: ignore[attr-defined]
    time.sleep(rng.uniform(0.0, 0.01))


def test_a_storm_of_kills_changes_nothing(tmp_path: Path, long_mode: bool) -> None:
    rng, wanted = random.Random(5), LONG_KILLS if long_mode else KILLS
    rows = LONG_ROWS if long_mode else ROWS
    source = write_rows(tmp_path / "in.jsonl", rows)
    sampled = ("--temperature", 1, "--seed", 7)
    calm = tmp_path / "calm.jsonl"
    assert run(run_command(source, calm, *sampled)).returncode == 0
    num_kills = num_jobs = 0
    while num_kills < wanted:
        num_jobs += 1
        output = tmp_path / f"stormy-{num_jobs}.jsonl"
        job_dir = output.with_name(output.name + ".quire")
        known: dict[int, tuple[object, ...]] = {}
        while True:
            with started(run_command(source, output, *sampled)) as process:
                if num_kills < wanted:
                    wait_for_the_moment(job_dir, process, rows, rng)
                    engines = children_of(process.pid)
                if num_kills >= wanted or process.poll() is not None:
                    _, said = process.communicate(timeout=120)
                    assert process.returncode == 0, said
                    break
                kill(process)
            num_kills += 1
            assert all(ends_by_itself(engine) for engine in engines), "an engine lives on"
            now = by_row(job_dir)
            assert known.items() <= now.items(), "an acknowledged row is gone, or another"
            known = now
        assert len(by_row(job_dir)) == rows
        assert output.read_bytes() == calm.read_bytes()
        print(f"{num_kills} kills, {num_jobs} jobs of the same bytes", flush=True)
