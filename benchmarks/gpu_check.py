"""Whether this GPU computes what the CPU does, and with --table how fast it is: scripts/gpu-check.

    python benchmarks/gpu_check.py [--table] [--out results/gpu-check]

    right, about three minutes: the CUDA executor's tests against the CPU's engine (graphs, plans of
        many steps, preemption, grammars, sleep), then random rows with every feature of sampling
        against the sampler that defines them
    table, about ten minutes: the workloads of the 0.6B shape, features and grammars beside plain
        rows, and starts

Ends with 1 if anything was wrong or not run. Every part is also written to the folder, as JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.budget import Budget

ROOT = Path(__file__).resolve().parents[1]
CHECK_SECONDS, EQUAL_SECONDS = 170.0, 60.0
TABLE = (
    ("gpu.py", "small", "start", "--seconds", "300"),
    ("gpu_features.py", "--seconds", "170"),
    ("gpu_structured.py", "--seconds", "90"),
)


def wrong_checks(results: dict[str, str]) -> list[str]:
    return [f"{name}: {said.splitlines()[-1]}" for name, said in results.items() if said != "ok"]


def right(out: Path) -> list[str]:
    """What is wrong."""
    from benchmarks.gpu_checks import check
    from benchmarks.gpu_features import equal

    check(Budget(CHECK_SECONDS, out), [])
    equal(200, 49_152, Budget(EQUAL_SECONDS, out))
    found = json.loads((out / "equal.json").read_text())
    wrong = wrong_checks(json.loads((out / "check.json").read_text()))
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
