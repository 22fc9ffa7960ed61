"""Whether this GPU computes what the CPU does, and with --table how fast it is: scripts/gpu-check.

    python benchmarks/gpu_check.py [--table] [--out results/gpu-check]

    right, about four minutes: every test that has something to say on a GPU (kernels, the CUDA
        executor against the CPU's engine, ranks, fallback), side by side where pytest-xdist is
        installed; without pytest the executor's tests as plain functions. Then random rows with
        every feature of sampling against the sampler that defines them
    table, about ten minutes: the workloads of the 0.6B shape, features and grammars beside plain
        rows, and starts

Ends with 1 if anything was wrong or not run. Every part is also written to the folder, as JSON.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.budget import Budget

ROOT = Path(__file__).resolve().parents[1]
CHECK_SECONDS, EQUAL_SECONDS = 170.0, 60.0
TESTS = (
    "tests/backends/cuda_c",
    "tests/backends/triton",
    "tests/executor/cuda",
    "tests/ranks/test_gpu_ranks.py",
    "tests/fallback/test_on_gpu.py",
    "tests/media/test_on_gpu.py",
    "tests/sampling/test_cuda.py",
)
MOST_WORKERS = 14  # each has a CUDA context and its own kernels in memory
TABLE = (
    ("gpu.py", "small", "start", "--seconds", "300"),
    ("gpu_features.py", "--seconds", "170"),
    ("gpu_structured.py", "--seconds", "90"),
)


def test_command(tests: Sequence[str] = TESTS) -> list[str] | None:
    """What runs these tests; None where there is no pytest. pytest-benchmark refuses to run beside
    xdist, and no test here asks for it."""
    if importlib.util.find_spec("pytest") is None:
        return None
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:benchmark"]
    if importlib.util.find_spec("xdist") is not None:
        # Most of their time is compiling, of some a minute: a worker that is done takes of others.
        command += ["-n", str(min(os.cpu_count() or 1, MOST_WORKERS)), "--dist", "worksteal"]
    return [*command, *tests]


def failed_tests(out: Path) -> list[str]:
    """The tests that failed, by pytest where it is installed; all it said is in the folder."""
    command = test_command()
    if command is None:
        from benchmarks.gpu_checks import check

        check(Budget(CHECK_SECONDS, out), [])
        return wrong_checks(json.loads((out / "check.json").read_text()))
    ran = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    (out / "tests.txt").write_text(ran.stdout + ran.stderr)
    failed = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed or ([f"pytest ended with {ran.returncode}: tests.txt"] if ran.returncode else [])


def wrong_checks(results: dict[str, str]) -> list[str]:
    return [f"{name}: {said.splitlines()[-1]}" for name, said in results.items() if said != "ok"]


def right(out: Path) -> list[str]:
    """What is wrong."""
    from benchmarks.gpu_features import equal

    wrong = failed_tests(out)
    equal(200, 49_152, Budget(EQUAL_SECONDS, out))
    found = json.loads((out / "equal.json").read_text())
    return wrong + [f"{name}: {said}" for name, said in found.items() if said != "equal"]


def table(out: Path) -> list[str]:
    """The parts that failed; each is a process of its own, so that it has the GPU to itself."""
    failed = []
    for script, *words in TABLE:
        command = [sys.executable, str(ROOT / "benchmarks" / script), *words, "--out", str(out)]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(script)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--table", action="store_true", help="how fast it is, too")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "gpu-check")
    asked = parser.parse_args()
    try:
        import torch
    except ImportError:
        print(f"gpu-check: {sys.executable} has no torch, so nothing was checked", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("gpu-check: torch finds no GPU here, so nothing was checked", file=sys.stderr)
        return 2
    asked.out.mkdir(parents=True, exist_ok=True)
    wrong = right(asked.out)
    if asked.table:
        wrong += table(asked.out)
    for one in wrong:
        print(f"gpu-check: {one}", file=sys.stderr)
    print(f"gpu-check: {'failed' if wrong else 'all right'}, {torch.cuda.get_device_name()}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
