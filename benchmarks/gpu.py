"""Everything that is measured on a GPU, within a time budget, each part written as it ends.

    python benchmarks/gpu.py small profile large start --out results --seconds 540

    small    the table of Qwen3-0.6B, large: of Llama-3.1-8B, other: of Llama-3.2-1B, for
             which nothing was tuned and no other engine measured, experts: of Qwen3-30B-A3B
             (random weights, bf16)
    profile  one decode step of 0.6B at 256 and 1,024 rows, kernel by kernel
    start    a new process to 4 x 32 tokens, 0.6B and 8B: kernels not compiled yet, then compiled
    load     GB/s of reading safetensors
    sanitize every kernel at small shapes under compute-sanitizer
    default  greedy answers of the default model in float32, beside the CPU's
    fp8      what fp8 costs and gains (gpu_fp8.py)

Parts run in the order they are named; when the budget is used up the rest is named and left
out. Words of the form key=value are options of `LLM`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import roofline, shapes, workloads
from benchmarks.gpu_fp8 import fp8
from benchmarks.gpu_more import default, load, sanitize
from benchmarks.gpu_profile import Clock, profile
from benchmarks.gpu_start import start
from benchmarks.harness import Budget, parse_with_options
from benchmarks.offline import machine, measure

if TYPE_CHECKING:
    from quire import LLM

MODELS = {
    "small": "qwen3-0.6b",
    "large": "llama-3.1-8b",
    "other": "llama-3.2-1b",
    "experts": "qwen3-30b-a3b",
}
MORE = {"load": load, "sanitize": sanitize, "default": default, "fp8": fp8}
PARTS = (*MODELS, "profile", "start", *MORE)
STARTED = ("small", "large")
VLLM = Path(__file__).parent / "vllm_h200.json"
# Seconds.
GOALS = {
    "qwen3-0.6b": {
        "mixed": 4.3,
        "prefill": 6.5,
        "decode": 11.3,
        "fewshot": 2.2,
        "subjects": 1.2,
        "samples": 6.2,
        "tail": 4.9,
        "nucleus": 2.2,
    },
    "llama-3.1-8b": {
        "mixed": 11.8,
        "prefill": 29.5,
        "decode": 24.5,
        "fewshot": 10.4,
        "subjects": 7.9,
        "samples": 18.0,
        "tail": 20.8,
        "nucleus": 7.4,
    },
}


def to_beat(model: str, workload: str) -> float | None:
    """vLLM's better figure: with its defaults, or tuned; None where it was not measured."""
    known = json.loads(VLLM.read_text())
    figures = (known[kind].get(model, {}) for kind in ("seconds_default", "seconds_tuned"))
    return min((float(found[workload]) for found in figures if workload in found), default=None)


def least(model: str, workload: str, items: Sequence[workloads.Item]) -> float:
    """Seconds that the hardware needs."""
    shape = roofline.Shape.of(json.loads((shapes.MODELS / f"{model}.json").read_text()))
    return roofline.seconds(shape, roofline.groups(workload, items))


@contextmanager
def opened(model: str, options: dict[str, Any]) -> Iterator[LLM]:
    from quire import LLM

    with shapes.opened(model, **options) as shape:
        started = time.perf_counter()
        with LLM(shape.path, **shape.options) as llm:
            print(f"{model}: ready after {time.perf_counter() - started:.2f} s", flush=True)
            yield llm


def table(
    part: str,
    budget: Budget,
    options: dict[str, Any],
    names: Sequence[str],
    once: Sequence[str] = (),
    profiled: Sequence[str] = (),
) -> None:
    """Every GPU workload, the second of two runs where the budget allows and it is not to be run
    `once`; then the kernels of the plans that are to be `profiled`."""
    model, rows = MODELS[part], []
    with opened(model, options) as llm:
        clock = Clock(llm)
        for name in names:
            items = workloads.build(name)
            vllm, limit = to_beat(model, name), least(model, name, items)
            expected = vllm or 2 * limit
            if budget.left < 1.1 * expected:
                print(f"{name}: not run, {budget.left:.0f} s are left", flush=True)
                continue
            runs = 1 if name in once or budget.left < 2 * expected + 20 else 2
            try:
                for _ in range(runs - 1):
                    measure(llm, name, items, 1)
                clock.reset()
                found = measure(llm, name, items, 1)
            except Exception:  # noqa: BLE001 - the other workloads still count
                traceback.print_exc()
                continue
            ours = found.seconds
            goal = GOALS.get(model, {}).get(name)
            ratio = vllm / ours if vllm else None
            rows.append(
                {
                    **asdict(found),
                    "runs": runs,
                    "vllm": vllm,
                    "goal": goal,
                    "limit": limit,
                    "ratio": ratio,
                }
            )
            beside = f"vLLM {vllm:.2f}  goal {goal:.1f}  {ratio:.2f}x  " if ratio else ""
            print(
                f"{model} {name:<9} {ours:.2f} s, run {runs}, {beside}limit {limit:.2f} "
                f"({limit / ours:.0%})  {found.steps} steps  {found.cached_tokens} cached",
                flush=True,
            )
            print(clock.line(), flush=True)
            budget.write(part, {"machine": machine(), "rows": rows})
        if profiled:
            profile(llm, budget, profiled)
    ratios = [row["ratio"] for row in rows if row["ratio"]]
    if ratios:
        mean = statistics.geometric_mean(ratios)
        print(f"{model}: geometric mean {mean:.3f}x over {len(ratios)} workloads", flush=True)
    if rows:
        mean = statistics.geometric_mean(row["limit"] / row["seconds"] for row in rows)
        print(f"{model}: geometric mean {mean:.3f} of the limit", flush=True)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--only", nargs="+", default=[], help="workloads")
    parser.add_argument("--once", nargs="+", default=[], help="workloads not to run twice")
    parser.add_argument(
        "--profiled", nargs="+", default=[], help="plans of `profile`, of this model"
    )
    arguments = parse_with_options(parser, words)
    options = arguments.options
    budget = Budget(arguments.seconds, arguments.out)
    names = arguments.only or [build.__name__ for build in workloads.GPU]
    for part in arguments.parts:
        print(f"== {part}, {budget.left:.0f} s left", flush=True)
        try:
            if part in MODELS:
                table(part, budget, options, names, arguments.once, arguments.profiled)
            elif part == "profile":
                with opened(MODELS["small"], options) as llm:
                    profile(llm, budget)
            elif part in MORE:
                MORE[part](budget)
            else:
                start(budget, [MODELS[part] for part in STARTED], options)
        except Exception:  # noqa: BLE001 - the other parts still count
            traceback.print_exc()


if __name__ == "__main__":
    main()
