"""What guessing tokens ahead brings on a CPU, against the same rows without it.

    python benchmarks/speculation.py --model smollm2 --json out.json
    OMP_NUM_THREADS=1 python benchmarks/speculation.py --runs 5

Two engines of one model in one process, one of which never guesses, take each workload in turn, so
that a busy machine slows both; ratios are taken pair by pair, and the middle one of `--runs`
counts. With one thread seconds are of CPU time, so that other programs matter little. Every answer
must be the same on both sides, or the comparison stops.

  copying    a list that the prompt holds twice, to be written a third time, greedy
  prose      texts at temperature 1, which repeat themselves as little as a small model can
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import offline
from benchmarks.harness import median_ratio, parser_of

if TYPE_CHECKING:
    from quire import LLM

ENTRIES = [
    f"{name} {place}, room {i * 37 % 90 + 10}, {i * 53 % 60 + 20} boxes"
    for i, (name, place) in enumerate(
        (name, place)
        for place in ("Harbour", "Mill", "Station", "Chapel")
        for name in ("Upper", "Lower", "New", "Old", "Great")
    )
]
SUBJECTS = ("a harbour at night", "a lost key", "two brothers", "the first snow", "an old map")


@dataclass(frozen=True)
class Workload:
    """Prompts, how they are sampled, and how many tokens each answer has."""

    name: str
    prompts: list[str]
    temperature: float
    num_tokens: int


@dataclass(frozen=True)
class Compared:
    """One workload on both engines."""

    name: str
    rows: int
    tokens: int
    plain_seconds: tuple[float, ...]
    guessing_seconds: tuple[float, ...]
    plain_steps: int
    guessing_steps: int
    guessed: int
    accepted: int

    @property
    def ratio(self) -> float:
        """How many times as fast with guesses."""
        return median_ratio(self.plain_seconds, self.guessing_seconds)


def copying(rows: int, num_tokens: int) -> Workload:
    prompts = []
    for i in range(rows):
        listed = "\n".join(ENTRIES[(i + j) % len(ENTRIES)] for j in range(8))
        prompts.append(f"The list:\n{listed}\n\nThe list again:\n{listed}\n\nOnce more:\n")
    return Workload("copying", prompts, 0.0, num_tokens)


def prose(rows: int, num_tokens: int) -> Workload:
    prompts = [f"A story about {SUBJECTS[i % len(SUBJECTS)]}, part {i + 1}:\n" for i in range(rows)]
    return Workload("prose", prompts, 1.0, num_tokens)


WORKLOADS = {"copying": copying, "prose": prose}


def seconds_now() -> float:
    one_thread = os.environ.get("OMP_NUM_THREADS") == "1"
    return time.process_time() if one_thread else time.perf_counter()


def run(llm: LLM, work: Workload) -> tuple[float, list[list[int]]]:
    """Seconds of the workload, with an empty prefix cache, and what was written."""
    from quire import SamplingParams

    params = [
        SamplingParams(
            temperature=work.temperature, seed=i, max_tokens=work.num_tokens, ignore_eos=True
        )
        for i in range(len(work.prompts))
    ]
    llm.reset_prefix_cache()
    started = seconds_now()
    outputs = llm.generate(work.prompts, params, use_tqdm=False)
    return seconds_now() - started, [list(o.outputs[0].token_ids) for o in outputs]


def compare(plain: LLM, guessing: LLM, work: Workload, runs: int) -> Compared:
    """Raises where the answers differ."""
    times: list[tuple[float, float]] = []
    _, expected = run(plain, work)
    run(guessing, work)  # what passes cost is learned in it
    engines = plain._session.engine, guessing._session.engine
    steps_before = [engine.num_steps for engine in engines]
    told = guessing.llm_engine.speculation
    for _ in range(runs):
        first, second = run(plain, work), run(guessing, work)
        if first[1] != expected or second[1] != expected:
            raise SystemExit(f"{work.name}: an answer changed between two runs of the same rows.")
        times.append((first[0], second[0]))
    after = guessing.llm_engine.speculation
    plain_steps, guessing_steps = (
        (engine.num_steps - before) // runs
        for engine, before in zip(engines, steps_before, strict=True)
    )
    ones, twos = zip(*times, strict=True)
    return Compared(
        work.name,
        len(work.prompts),
        sum(map(len, expected)),
        ones,
        twos,
        plain_steps,
        guessing_steps,
        (after.num_guessed - told.num_guessed) // runs,
        (after.num_accepted - told.num_accepted) // runs,
    )


def table(found: Sequence[Compared]) -> str:
    lines = [
        f"{'':<9} {'rows':>4} {'tokens':>7} {'without':>18} {'with':>18} {'guessed':>8} "
        f"{'accepted':>8} {'ratio':>7}"
    ]
    for one in found:
        sides = (
            f"{statistics.median(seconds):.2f} s/{steps:>4} steps"
            for seconds, steps in (
                (one.plain_seconds, one.plain_steps),
                (one.guessing_seconds, one.guessing_steps),
            )
        )
        first, second = sides
        lines.append(
            f"{one.name:<9} {one.rows:>4} {one.tokens:>7,} {first:>18} {second:>18} "
            f"{one.guessed:>8,} {one.accepted:>8,} {one.ratio:>6.2f}x"
        )
    return "\n".join(lines)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=sorted(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--json", type=Path, metavar="PATH")
    arguments = parser.parse_args(words)
    if min(arguments.rows) < 1 or arguments.runs < 1 or arguments.tokens < 1:
        parser.error("--rows, --runs and --tokens are at least 1")
    return arguments


def main(words: Sequence[str] | None = None) -> list[Compared]:
    arguments = parse(words)

    from quire import LLM

    never = {"num_speculative_tokens": 0}
    memory = {"kv_cache_memory_bytes": 512 << 20, "device": "cpu"}
    with (
        LLM(arguments.model, speculative_config=never, **memory) as plain,
        LLM(arguments.model, **memory) as guessing,
    ):
        if guessing._session.model.config.speculation is None:
            raise SystemExit("tokens are not guessed here: bits would depend on the batch.")
        found = [
            compare(plain, guessing, WORKLOADS[name](rows, arguments.tokens), arguments.runs)
            for name in arguments.only
            for rows in arguments.rows
        ]
    print(table(found))
    if arguments.json:
        report = {
            "model": arguments.model,
            "machine": offline.machine(),
            "compared": [{**asdict(one), "ratio": one.ratio} for one in found],
        }
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    return found


if __name__ == "__main__":
    main()
