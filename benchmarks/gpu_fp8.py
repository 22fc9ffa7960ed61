"""What fp8 costs and gains on a GPU, each section written as it ends.

    python benchmarks/gpu.py fp8 --out results --seconds 120
    python benchmarks/gpu_fp8.py checks decode --out results --seconds 60

    checks    kernels beside their references at real shapes
    decode    attention of one step over a cache in fp8 and in bf16; the table behind tiles.py
    profiles  a decode step, kernel by kernel
    prompts   attention of prompts, and storing
    accuracy  perplexity, KL and choices of the default model against float32 on the same weights
    engine    milliseconds of a decode step and of prompts, 0.6B and 8B shapes
    families  logprobs of tiny models through the engine against fp32

Sections run in the order they are named, or all in this one, until the seconds are used up.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.budget import Budget
from benchmarks.gpu_checks import stand_in_for_pytest
from benchmarks.gpu_fp8_kernels import decode, prompts

Line = dict[str, Any]
THREADS = 12


def checks() -> Iterator[Line]:
    """bf16, head_dim 128 and 64, ragged rows, windows, groups, prompts."""
    import torch

    from quire.backends.ops import HeadShape
    from tests.backends.triton import checks as attention
    from tests.backends.triton import fp8_checks as fp8

    place = attention.Place(torch.device("cuda"), torch.bfloat16)
    lengths = [(i * 977) % 2500 for i in range(60)]
    shared = ((32, tuple(range(70))), (50, tuple(range(3, 30))))
    nested = [900 + i for i in range(80)]
    slices = [(700, 0), (130, 900), (1, 33), (64, 64)]
    calls: dict[str, Callable[[], None]] = {}
    for heads, width in ((16, 128), (32, 64)):
        shape = HeadShape(heads, 8, width, 16, torch.bfloat16, True)
        step = partial(attention.check_decode, place, shape)
        calls |= {
            f"prefill {width}": partial(attention.check_prefill, place, shape, slices, queries=128),
            f"shared {width}": partial(step, nested, shared=shared),
            f"decode {width}": partial(step, lengths),
            f"window {width}": partial(step, lengths, window=301),
            f"stored {width}": partial(fp8.check_stored, place, shape, 1000, normed=True),
            f"broken {width}": partial(fp8.check_broken_numbers, place, shape),
        }
    import quire.backends.triton.kernels  # noqa: F401 - by one thread

    # In threads, because most of it is compiling.
    with ThreadPoolExecutor(THREADS) as pool:
        for name, result in zip(calls, pool.map(outcome, calls.values()), strict=True):
            yield {"check": name, "result": result}


def outcome(call: Callable[[], None]) -> str:
    """ok, or what went wrong."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the other checks still count
        traceback.print_exc(limit=4)
        return f"{type(error).__name__}: {error}"[:600]
    return "ok"


def accuracy(path: str = "smollm2") -> Iterator[Line]:
    """The default model, read as the gate of 8-bit arithmetic reads it, but on the GPU."""
    import torch

    from quire.executor.cpu.accuracy import Accuracy, compare
    from quire.session.int8_default import text_windows
    from quire.weights.load import load_weights
    from quire.weights.source import locate

    files = locate(path)
    spec, windows = files.spec(), text_windows(files, 16, 256)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    exact = built(spec, load_weights(files, spec, dtype=torch.float32, device=device), "float32")

    def read(fp8_kv: bool) -> Accuracy:
        weights = load_weights(files, spec, dtype=torch.bfloat16, device=device)
        return compare(exact, built(spec, weights, "bfloat16", fp8_kv), spec, windows)

    modes = {"bf16": False, "KV in fp8": True}
    with ThreadPoolExecutor(THREADS) as pool:
        for name, found in zip(modes, pool.map(read, modes.values()), strict=True):
            yield {
                "accuracy": name,
                "text": found.text,
                "clear": round(found.clear_agreement, 5),
                "KL": round(found.divergence, 6),
                "perplexity": round(found.perplexity, 5),
            }


def built(spec: Any, weights: Any, dtype: str, fp8_kv: bool = False) -> Any:
    """A model on the GPU, to be read eagerly."""
    import torch

    from quire.backends.choose import kernels_for
    from quire.layers.tp import TensorParallel
    from quire.models.decoder import head_shape
    from quire.models.registry import build_model

    shape = head_shape(spec, 16, getattr(torch, dtype), fp8_kv=fp8_kv)
    device = weights["norm.weight"].device.type
    kernels = kernels_for(device, shape, batch_invariant=False)
    return build_model(spec, weights, kernels, shape, max_len=256, tp=TensorParallel())


def families() -> Iterator[Line]:
    """Chunked, cached and preempted runs of tiny models; the weights have a spread of 0.1."""
    try:
        import pytest  # noqa: F401
    except ImportError:
        stand_in_for_pytest()
    from tests.executor.cuda.fp8_differences import MODES, differences

    for mode in MODES:
        for name in ("qwen3", "mistral, window 9"):
            yield {"family": name, "mode": mode, "mean, p99": differences(name, mode)}


def engine() -> Iterator[Line]:
    """A step and the prompts of a batch, by what is in fp8."""
    kv, small, large = (
        {"kv_cache_dtype": "fp8"},
        ("qwen3-0.6b", 256, 1024),
        ("llama-3.1-8b", 256, 256),
    )
    runs: tuple[tuple[tuple[str, int, int], Line], ...] = (
        *((large, {}), (large, kv), (small, {}), (small, kv)),
    )
    for (model, rows, prompt), options in runs:
        yield {"engine": model, "options": options, **step_times(model, rows, prompt, options)}


def step_times(model: str, rows: int, prompt: int, options: Line, steps: int = 64) -> Line:
    """Answers of 1 token and of 1 + steps, after a short run that compiles and captures."""
    from quire import SamplingParams

    begun = time.perf_counter()
    prompts = [
        {"prompt_token_ids": [(i * 311 + j * 7) % 30_000 for j in range(prompt)]}
        for i in range(rows)
    ]

    def seconds(llm: Any, tokens: int) -> float:
        params = SamplingParams(max_tokens=tokens, ignore_eos=True, detokenize=False)
        before = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - before

    with opened(model, options) as llm:
        ready = time.perf_counter() - begun
        seconds(llm, steps + 1)
        first, longer = seconds(llm, 1), seconds(llm, steps + 1)
        return {
            "ready s": round(ready, 2),
            "step ms": round((longer - first) / steps * 1e3, 3),
            "prompts s": round(first, 3),
            "prompt tokens/s": round(rows * prompt / first),
            "KV tokens": llm.kv_cache.num_blocks * llm.kv_cache.block_size,
        }


def profiles() -> Iterator[Line]:
    """A decode step of 256 rows, kernel by kernel."""
    from benchmarks import workloads
    from benchmarks.gpu_profile import profile_plan
    from benchmarks.offline import measure

    def decodes(plan: Any) -> bool:
        return not plan.prefill and plan.repeat >= 8

    kv = {"kv_cache_dtype": "fp8"}
    for model, length, options in (
        ("llama-3.1-8b", 300, kv),
        ("qwen3-0.6b", 700, kv),
    ):
        items = [
            workloads.Item([(7 * i + j) % 9000 + 10 for j in range(length)], 100)
            for i in range(256)
        ]
        with opened(model, options) as llm:
            work = partial(measure, llm, model, items, 1)
            found = profile_plan(llm, f"{model} {options}", work, decodes, 2)
        yield {"profile": model, "options": options, "found": found}


@contextmanager
def opened(model: str, options: Line) -> Iterator[Any]:
    from benchmarks import shapes
    from quire import LLM

    shape = shapes.opened(model, enable_prefix_caching=False, **options)
    with shape as found, LLM(found.path, **found.options) as llm:
        yield llm


SECTIONS: dict[str, Callable[[], Iterator[Line]]] = {
    "checks": checks,
    "decode": decode,
    "profiles": profiles,
    "prompts": prompts,
    "accuracy": accuracy,
    "engine": engine,
    "families": families,
}
# Seconds that must be left for the next line of a section.
LEAST = {"engine": 15.0, "families": 10.0, "profiles": 12.0}


def fp8(budget: Budget, names: Sequence[str] = tuple(SECTIONS)) -> None:
    report: dict[str, list[Line]] = {}
    for name in names:
        lines = report.setdefault(name, [])
        began = time.perf_counter()
        try:
            for line in SECTIONS[name]():
                lines.append(line)
                print(name, line, flush=True)
                budget.write("fp8", report)
                if budget.left < LEAST.get(name, 5.0):
                    print(f"{name}: cut short, {budget.left:.0f} s are left", flush=True)
                    break
        except Exception:  # noqa: BLE001 - the other sections still count
            traceback.print_exc()
        print(f"-- {name}: {time.perf_counter() - began:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []])
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--seconds", type=float, default=120.0)
    arguments = parser.parse_args()
    fp8(Budget(arguments.seconds, arguments.out), arguments.sections or tuple(SECTIONS))


if __name__ == "__main__":
    main()
