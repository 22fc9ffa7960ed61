"""One decode step by number of rows: milliseconds, with the products of few rows and without.

    python benchmarks/gpu_steps.py qwen3-0.6b --rows 1 16 64 256 --context 1024

The step is the engine's own graph over rows that stand at the same context, replayed.
`--kernels` says where the time of each step goes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gpu import opened
from benchmarks.gpu_profile import summary
from quire.executor.cuda.decoding import Decoding, Parts
from quire.executor.cuda.graphs import GraphKey, Graphs
from quire.steps.row_schema import Column

STEPS = 24  # replayed at a time


class Step:
    """A decode step of `num_rows` rows, ready to be replayed."""

    def __init__(self, parts: Parts, num_rows: int, context: int) -> None:
        self.parts = replace(parts, graphs=Graphs(capture=True))
        self.num_rows, self.context = num_rows, context
        decoding = Decoding(self.parts, max_repeat=STEPS)
        self.places = decoding._bucket(num_rows)
        self.key = GraphKey("decode", self.places.size, False)
        self._seat()
        self.work = lambda: decoding._step(self.places, self.key)
        self.parts.graphs.prepare(self.key, self.work)

    def _seat(self) -> None:
        columns, size = self.parts.columns, self.parts.block_size
        width = -(-(self.context + 4 * STEPS) // size)
        rows = torch.arange(self.num_rows, device=columns.device)
        blocks = torch.randperm(self.num_rows * width, device=columns.device).int()
        columns.tables[0, : self.num_rows, :width] = blocks.view(self.num_rows, width)
        columns.ints[Column.LAST_TOKEN, : self.num_rows] = 100 + rows
        columns.ints[Column.MAX_TOKENS, : self.num_rows] = 10**9
        columns.sampling_columns.temperature[: self.num_rows] = 1.0
        self.places.rows[: self.num_rows] = rows.int()
        self._begin()

    def _begin(self) -> None:
        columns = self.parts.columns
        columns.ints[Column.POSITION, : self.num_rows] = self.context
        columns.ints[Column.FROZEN, : self.num_rows] = 0
        self.places.step.zero_()

    def milliseconds(self, runs: int = 5) -> float:
        """The best of some runs of STEPS steps, per step."""
        taken: list[float] = []
        for _ in range(runs):
            self._begin()
            first, last = _clock(), _clock()
            first.record()
            self.parts.graphs.run(self.key, self.work, STEPS)
            last.record()
            torch.cuda.synchronize()
            taken.append(first.elapsed_time(last) / STEPS)
        return min(taken)

    def kernels(self, title: str) -> None:
        """Print the time of each kernel."""
        from torch.profiler import ProfilerActivity

        recorded = torch.profiler.profile(activities=[ProfilerActivity.CUDA])
        self._begin()
        torch.cuda.synchronize()
        recorded.start()
        self.parts.graphs.run(self.key, self.work, STEPS)
        torch.cuda.synchronize()
        recorded.stop()
        summary(recorded, STEPS, title)


def _clock() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def measure(name: str, rows: Sequence[int], context: int, *, kernels: bool) -> None:
    with opened(name, {}) as llm:
        executor: Any = llm._session.engine.executor
        parts = executor._runner._decoding._parts
        plain = replace(parts, few_rows=None)
        with torch.inference_mode():
            for count in rows:
                steps = {"plain": Step(plain, count, context)}
                if parts.few_rows and count <= parts.few_rows.most_rows:
                    steps["thin"] = Step(parts, count, context)
                found = [f"{step.milliseconds():.3f} ms {kind}" for kind, step in steps.items()]
                print(f"{name} {count} rows x {context}: {', '.join(found)}", flush=True)
                for kind, step in steps.items() if kernels else ():
                    step.kernels(f"{name} {count} rows, {kind}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 32, 64, 128, 256])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--kernels", action="store_true")
    arguments = parser.parse_args()
    for name in arguments.models:
        measure(name, arguments.rows, arguments.context, kernels=arguments.kernels)


if __name__ == "__main__":
    main()
