"""What other programs on the same cores cost an engine on a CPU.

    python benchmarks/neighbours.py --neighbours 0 1 2 --runs 5

Three engines, each in a process of its own, take the same work in turn while as many processes as
`--neighbours` says do nothing but compute, so that whatever else the machine does slows all three:

  shared   every operation is shared among all threads, which wait in a loop of 300,000 looks
  quire    unchanged: threads sleep after a short while, and work is shared while that is faster
  alone    one thread

Seconds are real time, the median of `--runs` rounds; ratios are taken round by round. Answers
must be the same everywhere. Figures say something only if nothing else runs on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness import median_ratio, parser_of

ROOT = Path(__file__).resolve().parents[1]
WAYS: dict[str, dict[str, str]] = {
    "shared": {"GOMP_SPINCOUNT": "300000"},
    "quire": {},
    "alone": {"OMP_NUM_THREADS": "1"},
}
DECIDED = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS")


def serve(way: str, arguments: argparse.Namespace) -> None:
    """An engine that does the work once for every line it reads."""
    from quire import LLM, SamplingParams
    from quire.backends.cpu.native.library import library

    params = SamplingParams(
        max_tokens=arguments.tokens, ignore_eos=True, temperature=1.0, seed=1, detokenize=False
    )
    prompts = [
        {"prompt_token_ids": list(range(100 + i, 228 + i))} for i in range(arguments.prompts)
    ]
    options: dict[str, Any] = {"quantization": arguments.quantization}
    if arguments.quantization == "none":
        options["dtype"] = "float32"
    with LLM(arguments.model, kv_cache_memory_bytes=1 << 29, **options) as llm:
        native = library()
        if way == "shared" and native is not None:
            native.quire_share_always(1)
        for _ in sys.stdin:
            llm.reset_prefix_cache()
            before = time.perf_counter()
            outputs = llm.generate(prompts, params, use_tqdm=False)
            seconds = time.perf_counter() - before
            answers = [list(o.outputs[0].token_ids) for o in outputs]
            print(json.dumps({"seconds": seconds, "answers": answers}), flush=True)


class Engine:
    """One way, in its own process."""

    def __init__(self, way: str, words: Sequence[str]) -> None:
        environment = {k: v for k, v in os.environ.items() if k not in DECIDED}
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--serve", way, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env=environment | WAYS[way],
        )

    def run(self) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("again\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"an engine ended by itself, with code {self.process.wait()}")
        made: dict[str, Any] = json.loads(line)
        return made

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Processes that compute until the context ends."""
    burn = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(burn) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def measured(engines: dict[str, Engine], runs: int) -> dict[str, list[float]]:
    """Seconds of each way, round by round."""
    seconds: dict[str, list[float]] = {way: [] for way in engines}
    for _ in range(runs):
        made = {way: engine.run() for way, engine in engines.items()}
        if any(one["answers"] != made["quire"]["answers"] for one in made.values()):
            raise SystemExit("the answers differ, and they must not")
        for way, one in made.items():
            seconds[way].append(one["seconds"])
    return seconds


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--quantization", default="int8", choices=["int8", "none"])
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=16, help="of each answer")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--neighbours", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--serve", choices=list(WAYS), help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    arguments = parse(words)
    if arguments.serve:
        serve(arguments.serve, arguments)
        return
    given = list(sys.argv[1:] if words is None else words)
    with ExitStack() as ends:
        engines = {}
        for way in WAYS:
            engines[way] = Engine(way, given)
            ends.callback(engines[way].end)
        measured(engines, 1)  # to warm up
        print("neighbours " + "".join(f"{way:>10}" for way in WAYS) + "   shared / quire")
        for count in arguments.neighbours:
            with neighbours(count):
                seconds = measured(engines, arguments.runs)
            middle = "".join(f"{statistics.median(seconds[way]):>10.2f}" for way in WAYS)
            ratio = median_ratio(seconds["shared"], seconds["quire"])
            print(f"{count:<11}{middle}{ratio:>17.2f}", flush=True)


if __name__ == "__main__":
    main()
