"""Whether this GPU computes what the CPU does, and with --table how fast it is: scripts/gpu-check.

    python benchmarks/gpu_check.py [--table] [--out results/gpu-check]

    right, about four minutes: every test for which a GPU makes a difference (kernels at real
        shapes, the CUDA executor against the CPU's engine, ranks, fallback), side by side where
        pytest-xdist is installed
    table, about ten minutes: the workloads of the 0.6B shape, features and grammars beside plain
        rows, and starts

The exit code is 1 if anything was wrong or not run, and 2 if the script cannot run. The output of
pytest and every part of the table are also written to the folder.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
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


def test_command(tests: Sequence[str] = TESTS) -> list[str]:
    """What runs these tests; pytest-benchmark, which none of them asks for, refuses to run beside
    xdist."""
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:benchmark"]
    if importlib.util.find_spec("xdist") is not None:
        # Most of their time is compiling, of some a minute: a worker that is done takes of others.
        command += ["-n", str(min(os.cpu_count() or 1, MOST_WORKERS)), "--dist", "worksteal"]
    return [*command, *tests]


def failed_tests(out: Path) -> list[str]:
    """The tests that failed; all that pytest said is in the folder."""
    ran = subprocess.run(test_command(), cwd=ROOT, check=False, capture_output=True, text=True)
    (out / "tests.txt").write_text(ran.stdout + ran.stderr)
    failed = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed or ([f"pytest ended with {ran.returncode}: tests.txt"] if ran.returncode else [])


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
    for needed in ("torch", "pytest"):
        if importlib.util.find_spec(needed) is None:
            print(f"gpu-check: {sys.executable} has no {needed}: nothing checked", file=sys.stderr)
            return 2
    import torch

    if not torch.cuda.is_available():
        print("gpu-check: torch finds no GPU here, so nothing was checked", file=sys.stderr)
        return 2
    asked.out.mkdir(parents=True, exist_ok=True)
    wrong = failed_tests(asked.out)
    if asked.table:
        wrong += table(asked.out)
    for one in wrong:
        print(f"gpu-check: {one}", file=sys.stderr)
    print(f"gpu-check: {'failed' if wrong else 'all right'}, {torch.cuda.get_device_name()}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
