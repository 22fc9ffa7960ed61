"""Two replicas against one, a core each: how much of the second engine is won.

    OMP_NUM_THREADS=1 python benchmarks/replicas.py --rows 480 --rounds 3

One and two replicas in turn, in one run, each opened once before any is measured. The clock goes
from the call of `generate` to its return. `parent` is what the process that deals the rows took of
the processors meanwhile, `children` what the engines took.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from quire import LLM, SamplingParams

TICKS = os.sysconf("SC_CLK_TCK")


class Took(NamedTuple):
    seconds: float
    parent: float
    children: float


def prompts(rows: int) -> list[str]:
    """Short ones of different lengths that share no beginning."""
    return [f"{i} {'and then ' * (i % 12)}the story goes on:" for i in range(rows)]


def children_of(parent: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = status.read_text().rpartition(")")
        except OSError:  # it ended meanwhile
            continue
        if int(rest.split()[1]) == parent:
            found.append(int(name.split()[0]))
    return found


def processor_of(process: int) -> float:
    """Seconds of all its threads and of the children it has waited for, and those below it."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS + sum(map(processor_of, children_of(process)))


def measure(llm: LLM, rows: int, tokens: int) -> Took:
    asked = SamplingParams(temperature=0.8, seed=1, max_tokens=tokens, ignore_eos=True)
    me, before, mine, started = os.getpid(), 0.0, time.process_time(), time.perf_counter()
    before = sum(map(processor_of, children_of(me)))
    outputs = llm.generate(prompts(rows), asked, use_tqdm=False)
    seconds = time.perf_counter() - started
    children = sum(map(processor_of, children_of(me))) - before
    if sum(len(output.outputs[0].token_ids) for output in outputs) != rows * tokens:
        raise RuntimeError("an answer is shorter than asked for")
    return Took(seconds, time.process_time() - mine, children)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rows", type=int, default=480)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    engines = {n: LLM(asked.model, data_parallel_size=n) for n in (1, 2)}
    for llm in engines.values():
        measure(llm, asked.rows // 8, 8)  # pages of the caches, kernels, threads
    seconds: dict[int, list[float]] = {n: [] for n in engines}
    for _ in range(asked.rounds):
        for n, llm in engines.items():
            took = measure(llm, asked.rows, asked.tokens)
            seconds[n].append(took.seconds)
            print(
                f"{n} replica{'s'[: n - 1]}: {took.seconds:6.2f} s; processors: parent "
                f"{took.parent:5.2f}, children {took.children:6.2f} s",
                flush=True,
            )
    ratios = [one / two for one, two in zip(seconds[1], seconds[2], strict=True)]
    print(f"two are {statistics.median(ratios):.2f} times as fast ({min(ratios):.2f} the least)")
    for llm in engines.values():
        llm.shutdown()


if __name__ == "__main__":
    main()
