"""quire, Transformers and llama.cpp on the same work, on the same CPU, in one run.

    python benchmarks/cpu_compare.py --workload small_mixed small_fewshot small_equal
    python benchmarks/cpu_compare.py --workload small_equal --llama PATH/llama-batched-bench \\
        --llama-model smollm2-q4_0.gguf smollm2-q8_0.gguf

Every engine runs alone, in a process of its own, with the same number of threads; quire's figure
is the second of two runs with an empty cache. `--llama` takes the `llama-batched-bench` of one or
several builds (with and without KleidiAI, say) and `--llama-model` the files to try each on. That
program can only run equal lengths, so llama.cpp runs small_equal only; without a path it is left
out, with a note. Ratios are to Transformers in float32.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import offline, shapes, transformers_bench, workloads
from benchmarks.harness import parser_of

ENGINES: dict[str, dict[str, Any]] = {
    "quire int8": {"quantization": "int8"},
    "quire float32": {"dtype": "float32"},
    "quire default": {},
}
TRANSFORMERS = "transformers float32"
EQUAL_ROWS, EQUAL_IN, EQUAL_OUT = 64, 128, 80


@dataclass(frozen=True)
class Figure:
    """One engine on one workload."""

    workload: str
    engine: str
    seconds: float
    tokens_in: int
    tokens_out: int
    load: float  # of the machine when it began: 0 is idle

    @property
    def tokens_per_second(self) -> float:
        return (self.tokens_in + self.tokens_out) / self.seconds


def items_of(name: str, scale: float) -> list[workloads.Item]:
    """A workload; small_equal has equal lengths, as llama.cpp's benchmark wants them."""
    if name != "small_equal":
        return workloads.build(name, scale)
    rng = Random(name)
    rows = max(1, round(EQUAL_ROWS * scale))
    prompts = [[rng.randrange(10, 10_000) for _ in range(EQUAL_IN)] for _ in range(rows)]
    return [workloads.Item(prompt, EQUAL_OUT) for prompt in prompts]


def run_alone(engine: str, arguments: argparse.Namespace) -> list[Figure]:
    """Measure one engine on every workload in a process of its own."""
    words = ["--alone", engine, "--model", arguments.model, "--scale", str(arguments.scale)]
    words += ["--batch", str(arguments.batch), "--workload", *arguments.workload]
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), *words],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=environment,
    )
    return [Figure(**json.loads(line)) for line in done.stdout.splitlines() if line[:1] == "{"]


def measure_here(engine: str, arguments: argparse.Namespace) -> None:
    """What `run_alone` starts: one line of JSON per workload."""
    chosen = {name: items_of(name, arguments.scale) for name in arguments.workload}
    if engine == TRANSFORMERS:
        with shapes.opened(arguments.model) as model:
            module = transformers_bench.load(model)
            for name, items in chosen.items():
                load = busy()
                seconds = transformers_bench.generate(module, items, batch=arguments.batch)
                _print(Figure(name, engine, seconds, *workloads.totals(items), load))
        return
    from quire import LLM

    with (
        shapes.opened(arguments.model, **ENGINES[engine]) as model,
        LLM(model.path, **model.options) as llm,
    ):
        for name, items in chosen.items():
            load = busy()
            seconds = offline.measure(llm, name, items, runs=2).seconds
            _print(Figure(name, engine, seconds, *workloads.totals(items), load))


def _print(figure: Figure) -> None:
    print(json.dumps(asdict(figure)), flush=True)


def run_llama(program: str, model: str, arguments: argparse.Namespace) -> Figure:
    """llama.cpp's own benchmark of batches, on small_equal."""
    rows = max(1, round(EQUAL_ROWS * arguments.scale))
    load = busy()
    command = [program, "-m", model, "-c", str(rows * (EQUAL_IN + EQUAL_OUT))]
    command += ["-npp", str(EQUAL_IN), "-ntg", str(EQUAL_OUT), "-npl", str(rows)]
    command += ["-b", "2048", "-ub", "512", "-t", str(arguments.threads)]
    command += ["-tb", str(arguments.threads), "--output-format", "jsonl"]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not found:
        raise RuntimeError(f"{program} printed no line of JSON; is it llama-batched-bench?")
    build = Path(program).resolve().parent.parent.name
    engine = f"llama.cpp {build} {Path(model).stem}"
    totals = rows * EQUAL_IN, rows * EQUAL_OUT
    return Figure("small_equal", engine, float(found[-1]["t"]), *totals, load)


def busy() -> float:
    """Processes that want a core, on the average of the last minute."""
    return os.getloadavg()[0]


def table(figures: Sequence[Figure]) -> str:
    """One line per figure, with its ratio to Transformers on the same workload."""
    base = {f.workload: f.seconds for f in figures if f.engine == TRANSFORMERS}
    lines = [
        f"{'workload':<14} {'engine':<34} {'seconds':>8} {'in+out tok/s':>12} {'ratio':>7} "
        f"{'load before':>11}"
    ]
    for f in sorted(figures, key=lambda f: (f.workload, f.seconds)):
        ratio = f"{base[f.workload] / f.seconds:.2f}x" if f.workload in base else ""
        lines.append(
            f"{f.workload:<14} {f.engine:<34} {f.seconds:>8.2f} {f.tokens_per_second:>12,.0f} "
            f"{ratio:>7} {f.load:>11.1f}"
        )
    return "\n".join(lines)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    known = [f.__name__ for f in workloads.CPU]
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--workload", nargs="+", default=known, choices=[*known, "small_equal"])
    parser.add_argument(
        "--engine", nargs="+", default=["quire int8", "quire float32", TRANSFORMERS]
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--scale", type=float, default=1.0, help="a leading part of each workload")
    parser.add_argument("--batch", type=int, default=16, help="of Transformers")
    parser.add_argument("--llama", nargs="*", default=[], metavar="PATH")
    parser.add_argument("--llama-model", nargs="*", default=[], metavar="GGUF")
    parser.add_argument("--json", type=Path, metavar="PATH")
    parser.add_argument("--alone", choices=[*ENGINES, TRANSFORMERS], help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    for engine in arguments.engine:
        if engine not in (*ENGINES, TRANSFORMERS):
            parser.error(f"--engine {engine!r}: one of {', '.join([*ENGINES, TRANSFORMERS])}")
    if bool(arguments.llama) != bool(arguments.llama_model):
        parser.error("--llama and --llama-model go together")
    return arguments


def main(words: Sequence[str] | None = None) -> None:
    arguments = parse(words)
    if arguments.alone:
        measure_here(arguments.alone, arguments)
        return
    started, figures = time.time(), []
    for engine in arguments.engine:
        figures += run_alone(engine, arguments)
    if arguments.llama and "small_equal" in arguments.workload:
        for program in arguments.llama:
            for model in arguments.llama_model:
                figures.append(run_llama(program, model, arguments))
    elif not arguments.llama:
        print("llama.cpp is left out: no --llama PATH of its llama-batched-bench was given.")
    print(table(figures))
    if arguments.json:
        facts = {"started": started, "threads": arguments.threads, "scale": arguments.scale}
        report = {**facts, "machine": offline.machine(), "figures": [asdict(f) for f in figures]}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
