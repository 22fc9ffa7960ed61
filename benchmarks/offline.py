"""Throughput of `LLM.generate` on any workload, for any model.

    python benchmarks/offline.py --model smollm2 --workload small_mixed small_fewshot \\
        --dtype float32 --against transformers --json out.json max_num_seqs=64

The clock runs from the call of `generate` to its return. Every workload is run `--runs` times
and the last run counts, with an empty prefix cache; end-of-sequence is ignored and the
parameters are the Item's, so every engine does the same work. Words of the form key=value are
options of `LLM`. `--model` is a path, an alias, or a shape of benchmarks/models.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import shapes, workloads
from benchmarks.harness import parse_with_options, parser_of

if TYPE_CHECKING:
    from quire import LLM


@dataclass(frozen=True)
class Measured:
    """One workload on one engine."""

    workload: str
    engine: str
    seconds: float
    tokens_in: int
    tokens_out: int
    all_seconds: tuple[float, ...]  # every run, in order; the last one counts
    cached_tokens: int = 0
    steps: int = 0
    peak_blocks: int = 0
    num_blocks: int = 0
    planned_seconds: float = 0.0
    planned_steps: int = 0
    times_transformers: float | None = None

    @property
    def out_per_second(self) -> float:
        return self.tokens_out / self.seconds

    @property
    def in_per_second(self) -> float:
        return self.tokens_in / self.seconds


def measure(llm: LLM, name: str, items: Sequence[workloads.Item], runs: int) -> Measured:
    """Run a workload `runs` times; the last one counts."""
    prompts, params = workloads.requests(items)
    engine = llm._session.engine
    pool = engine.scheduler.pool
    taken: list[float] = []
    for _ in range(runs):
        # What an earlier run left in the cache would be work not done.
        llm.reset_prefix_cache()
        plan = llm.plan(prompts, params) if taken else None
        llm.reset_prefix_cache()
        steps, pool.peak_used = engine.num_steps, 0
        started = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        taken.append(time.perf_counter() - started)
    tokens_in, tokens_out = workloads.totals(items)
    written = sum(len(c.token_ids) for o in outputs for c in o.outputs)
    if written != tokens_out:
        raise RuntimeError(f"{name}: {written} tokens came out, {tokens_out} were asked for")
    return Measured(
        workload=name,
        engine="quire",
        seconds=taken[-1],
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        all_seconds=tuple(taken),
        cached_tokens=sum(o.num_cached_tokens or 0 for o in outputs),
        steps=engine.num_steps - steps,
        peak_blocks=pool.peak_used,
        num_blocks=pool.num_blocks,
        planned_seconds=plan.estimate.seconds if plan else 0.0,
        planned_steps=plan.estimate.steps if plan else 0,
    )


def measure_transformers(
    model: shapes.Model, chosen: dict[str, list[workloads.Item]], batch: int, dtype: str
) -> list[Measured]:
    """The baseline on the same workloads, in this process."""
    import torch

    from benchmarks import transformers_bench

    device = "cuda" if torch.cuda.is_available() else "cpu"
    module = transformers_bench.load(model, device=device, dtype=dtype)
    found = []
    for name, items in chosen.items():
        taken = transformers_bench.generate(module, items, batch=batch)
        engine = f"transformers, batches of {batch}"
        found.append(Measured(name, engine, taken, *workloads.totals(items), (taken,)))
    return found


def compared(ours: Sequence[Measured], theirs: Sequence[Measured]) -> list[Measured]:
    """Our figures with how many times faster they are than the baseline's."""
    seconds = {m.workload: m.seconds for m in theirs}
    with_ratio = []
    for m in ours:
        ratio = seconds[m.workload] / m.seconds if m.workload in seconds else None
        with_ratio.append(Measured(**{**asdict(m), "times_transformers": ratio}))
    return with_ratio


def machine() -> dict[str, Any]:
    """Where and with what this was measured."""
    import numpy
    import torch

    import quire

    facts: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "quire": quire.__version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    return facts


def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu_name() -> str:
    """The name the kernel gives it; arm kernels give only numbers, so those."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    known = dict(line.split(":", 1) for line in reversed(lines) if ":" in line)
    named = {key.strip(): value.strip() for key, value in known.items()}
    part = f"implementer {named.get('CPU implementer')} part {named.get('CPU part')}"
    return named.get("model name") or part


def table(measured: Sequence[Measured]) -> str:
    """The figures, one line each."""
    lines = [
        f"{'workload':<14} {'engine':<28} {'seconds':>8} {'in tok/s':>9} {'out tok/s':>9} "
        f"{'cached':>8} {'blocks':>7} {'steps':>6} {'planned':>8} {'ratio':>6}"
    ]
    for m in measured:
        planned = f"{m.planned_seconds:.1f} s" if m.planned_seconds else ""
        ratio = f"{m.times_transformers:.2f}x" if m.times_transformers else ""
        lines.append(
            f"{m.workload:<14} {m.engine:<28} {m.seconds:>8.2f} {m.in_per_second:>9,.0f} "
            f"{m.out_per_second:>9,.0f} {m.cached_tokens:>8,} {m.peak_blocks:>7,} {m.steps:>6,} "
            f"{planned:>8} {ratio:>6}"
        )
    return "\n".join(lines)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument(
        "--workload", nargs="+", default=["small_mixed"], choices=sorted(workloads.WORKLOADS)
    )
    parser.add_argument("--dtype", help="as LLM's; the baseline runs in it, too")
    parser.add_argument("--scale", type=float, default=1.0, help="a leading part of each workload")
    parser.add_argument("--runs", type=int, default=2, help="the last one counts")
    parser.add_argument("--load-format")
    parser.add_argument("--skip-tokenizer-init", action="store_true")
    parser.add_argument("--against", choices=["transformers"])
    parser.add_argument("--batch", type=int, default=16, help="of the baseline")
    parser.add_argument("--json", type=Path, metavar="PATH")
    arguments = parse_with_options(parser, words)
    if arguments.runs < 1:
        parser.error(f"--runs must be at least 1, got {arguments.runs}")
    return arguments


def main(words: Sequence[str] | None = None) -> None:
    arguments = parse(words)
    options = dict(arguments.options)
    if arguments.dtype:
        options["dtype"] = arguments.dtype
    if arguments.load_format:
        options["load_format"] = arguments.load_format
    if arguments.skip_tokenizer_init:
        options["skip_tokenizer_init"] = True
    chosen = {name: workloads.build(name, arguments.scale) for name in arguments.workload}

    from quire import LLM

    with shapes.opened(arguments.model, **options) as model:
        started = time.perf_counter()
        with LLM(model.path, **model.options) as llm:
            ready = time.perf_counter() - started
            measured = [measure(llm, name, i, arguments.runs) for name, i in chosen.items()]
            dtype = str(llm.model_config.dtype).removeprefix("torch.")
        theirs: list[Measured] = []
        if arguments.against:
            theirs = measure_transformers(model, chosen, arguments.batch, dtype)
    measured = compared(measured, theirs)
    print(table([*measured, *theirs]))
    if arguments.json:
        report = {
            "model": arguments.model,
            "dtype": dtype,
            "options": options,
            "scale": arguments.scale,
            "ready_seconds": ready,
            "machine": machine(),
            "measured": [
                {**asdict(m), "in_per_second": m.in_per_second, "out_per_second": m.out_per_second}
                for m in [*measured, *theirs]
            ],
        }
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
