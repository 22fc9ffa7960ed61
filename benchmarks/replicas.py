"""Two replicas compared with one, a core each: how much the second engine adds.

    OMP_NUM_THREADS=1 python benchmarks/replicas.py --rows 480 --rounds 3

One and two replicas in turn, in one run, each opened once before any is measured. The clock goes
from the call of `generate` to its return. `parent` is what the process that deals the rows took of
the processors meanwhile, `children` what the engines took.

    OMP_NUM_THREADS=1 python benchmarks/replicas.py --apart

The most that this machine can give: one engine, then two separate processes that begin together,
each with half of the rows. No rows are dealt out there, so what is missing from 2 is lost because
the cores share memory and caches with each other and with other programs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
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


def stolen() -> float:
    """Seconds that the host gave to others while a processor of this machine wanted to run."""
    return int(Path("/proc/stat").read_text().split()[8]) / TICKS


def alone(asked: argparse.Namespace) -> None:
    """One of the processes of `--apart`: measures each time that it reads a line."""
    llm = LLM(asked.model)
    measure(llm, asked.rows // 8, 8)
    print("ready", flush=True)
    for _ in sys.stdin:
        took = measure(llm, asked.rows, asked.tokens)
        print(took.seconds, took.parent, flush=True)
    llm.shutdown()


class Apart:
    """A process with an engine of its own, which measures on command."""

    def __init__(self, command: list[str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self._told, self._says = self._process.stdin, self._process.stdout

    def tell(self) -> None:
        print(file=self._told, flush=True)

    def line(self) -> str:
        if self._says is None or not (said := self._says.readline()):
            raise RuntimeError("an engine ended before it was done")
        return said

    def close(self) -> None:
        self._process.communicate()


def apart(asked: argparse.Namespace) -> None:
    half = ("--rows", str(asked.rows // 2), "--tokens", str(asked.tokens))
    command = [sys.executable, __file__, "--alone", "--model", asked.model, *half]
    engines = [Apart(command) for _ in range(2)]

    def go(some: list[Apart]) -> tuple[float, float]:
        """Seconds until the last is done, and of processors; all of them begin together."""
        before = stolen()
        for engine in some:
            engine.tell()
        took = [tuple(map(float, engine.line().split())) for engine in some]
        seconds, processors = max(each[0] for each in took), sum(each[1] for each in took)
        print(
            f"{len(some)} of 2: {seconds:6.2f} s; processors: {processors:6.2f} s, taken by the "
            f"host: {stolen() - before:5.2f} s",
            flush=True,
        )
        return seconds, processors

    for engine in engines:
        engine.line()  # it is ready
    rounds = [(go(engines[:1]), go(engines)) for _ in range(asked.rounds)]
    wall = [2 * one[0] / two[0] for one, two in rounds]
    work = [two[1] / (2 * one[1]) for one, two in rounds]
    print(f"two apart are {statistics.median(wall):.2f} times one ({min(wall):.2f} the least)")
    print(f"a row beside another process takes {statistics.median(work):.2f} times the processor")
    for engine in engines:
        engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rows", type=int, default=480)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--apart", action="store_true", help="two processes, nothing dealt")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.apart or asked.alone:
        return apart(asked) if asked.apart else alone(asked)
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
