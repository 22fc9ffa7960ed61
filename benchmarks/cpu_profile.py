"""Where the time of a workload goes on a CPU, operation by operation.

    OMP_NUM_THREADS=1 python benchmarks/cpu_profile.py --workload small_fewshot --quantization int8
    OMP_NUM_THREADS=1 python benchmarks/cpu_profile.py --workload small_mixed --quantization none \\
        --kernels torch --share 0.25

Every operation of the model, drawing and scheduling are timed where they are called; what an
operation calls is not counted twice. Beside the seconds are two shares: the arithmetic done, as a
share of the best rate that the same arithmetic reaches here with many rows, and the bytes that must
at least be moved, as a share of the speed of copying memory. A share near one is the limit. A share
above one means that data came from caches or, for attention, that it computed in bfloat16, since
its share is of the rate of float32.
With one thread seconds are CPU time, so that other programs matter little; with more they are real
time. The first run warms up, the best of the others counts. `--kernels torch` computes without the
native library, as quire does without a compiler. Words of the form key=value are options of
`LLM`, such as kv_cache_dtype=float32 or batch_invariant=True.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import shapes, workloads
from benchmarks.harness import parse_with_options, parser_of

if TYPE_CHECKING:
    from torch import Tensor

    from quire import LLM
from quire.layers.mlp import GatedMLP
from quire.models.decoder import Decoder

PEAK_ROWS, PEAK_SIZE, PEAK_SECONDS = 1024, (1536, 1536), 0.4
MEMORY_BYTES = 1 << 29  # more than caches hold
REST = "the rest of the host"


class Work(NamedTuple):
    """What an operation must do: arithmetic, and bytes to move at least."""

    operations: float = 0
    bytes: float = 0


@dataclass(slots=True)
class Entry:
    """What one kind of operation took in a run."""

    kind: str  # "int8" or "float": whose peak its arithmetic is compared to
    seconds: float = 0.0
    calls: int = 0
    operations: float = 0.0
    bytes: float = 0.0


class Meter:
    """Adds up what operations take, less what the operations inside them take."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.entries: dict[str, Entry] = {}
        self._inner: list[float] = []

    def timed(
        self,
        name: str | Callable[..., str],
        function: Callable[..., Any],
        work: Callable[..., Work] = lambda *arguments: Work(),
        kind: str = "float",
    ) -> Callable[..., Any]:
        """The function, measured. A name or work that depends on the arguments is asked of them."""

        def measured(*arguments: Any, **named: Any) -> Any:
            self._inner.append(0.0)
            before = self.clock()
            try:
                return function(*arguments, **named)
            finally:
                took = self.clock() - before
                own = took - self._inner.pop()
                if self._inner:
                    self._inner[-1] += took
                called = name if isinstance(name, str) else name(*arguments)
                entry = self.entries.setdefault(called, Entry(kind))
                done = work(*arguments)
                entry.seconds += own
                entry.calls += 1
                entry.operations += done.operations
                entry.bytes += done.bytes

        return measured


def watch(llm: LLM, meter: Meter) -> None:
    """Measure everything this LLM does from now on."""
    engine = llm._session.engine
    executor: Any = engine.executor
    scheduler: Any = engine.scheduler
    runner = executor._runner
    model = runner.model
    executor.submit = meter.timed("batches and rows", executor.submit)
    for method in ("schedule", "commit"):
        setattr(scheduler, method, meter.timed("scheduling", getattr(scheduler, method)))
    runner.sampler.sample = meter.timed(
        "drawing", runner.sampler.sample, lambda logits, *rest: Work(bytes=logits.numel() * 4)
    )
    runner.model = meter.timed("between operations", model)
    runner.model.kernels, runner.model.head = model.kernels, model.head
    runner.model.logits = model.logits
    kind = "int8" if executor.config.quantization == "int8" else "float"
    _watch_model(model, meter, kind)
    _watch_kernels(model.kernels, meter, runner.cache.element_size())


def _watch_model(model: Decoder, meter: Meter, kind: str) -> None:
    embedding: Any = meter.timed("embedding", model.embedding)
    model.embedding = embedding
    for layer in model.layers:
        behind = () if layer.mlp is None else layer.mlp.products
        for linear in (*layer.attention.products, *behind):
            _watch_linear(linear, "product", meter, kind)
        if isinstance(layer.mlp, GatedMLP):
            work = lambda x: Work(bytes=2.0 * x.numel() * 4)  # noqa: E731
            gated: Any = layer.mlp.opened
            gated.opened = meter.timed("gates", gated.opened, work)
    _watch_linear(model.head, "logits", meter, kind)


def _watch_linear(linear: Any, word: str, meter: Meter, kind: str) -> None:
    channels, weight_bytes = linear.out_features, 1 if kind == "int8" else 4

    def name(x: Tensor) -> str:
        rows = x.shape[0]
        few = "1-16" if rows <= 16 else "17-128" if rows <= 128 else "129-"
        return f"{word} {x.shape[1]} x {channels}, {few} rows"

    def work(x: Tensor) -> Work:
        rows, depth = x.shape
        moved = weight_bytes * depth * channels + 4 * rows * (depth + channels)
        return Work(2.0 * rows * depth * channels, moved)

    linear.multiply = meter.timed(name, linear.multiply, work, kind)


def _watch_kernels(kernels: Any, meter: Meter, cache_bytes: int) -> None:
    plan_attention = kernels.plan_attention

    def rows_in_and_out(x: Tensor, *rest: Any) -> Work:
        return Work(bytes=2.0 * x.numel() * 4)

    def stored(qk: Tensor, v: Tensor, *rest: Any) -> Work:
        return Work(bytes=8.0 * (qk.numel() + v.numel()))

    for method in ("rms_norm", "add_rms_norm"):
        watched = meter.timed("norms", getattr(kernels, method), rows_in_and_out)
        setattr(kernels, method, watched)

    def planned(inputs: Any, window: int | None) -> Any:
        step = plan_attention(inputs, window)
        work = attention_work(kernels.shape, inputs, cache_bytes)
        word = "prompts" if inputs.num_prefill else "decoding"
        step.rope_and_store = meter.timed("turns and KV writes", step.rope_and_store, stored)
        step.attend = meter.timed(f"attention, {word}", step.attend, lambda *arguments: work)
        return step

    kernels.plan_attention = meter.timed("planning attention", planned)


def attention_work(shape: Any, inputs: Any, cache_bytes: int) -> Work:
    """Two products per query head and key; each sequence's KV once, a shared prefix once at all."""
    starts, lengths = inputs.query_starts.numpy(), inputs.context_lens.numpy()
    counts = starts[1:] - starts[:-1]
    # The first of n tokens sees n - 1 keys less than the last.
    keys_seen = float((counts * lengths - counts * (counts - 1) / 2).sum())
    keys_read = float(lengths.sum())
    for blocks, members in inputs.prefixes:
        keys_read -= (len(members) - 1) * len(blocks) * shape.block_size
    operations = 4.0 * shape.head_dim * shape.num_heads * keys_seen
    return Work(operations, 2.0 * cache_bytes * shape.head_dim * shape.num_kv_heads * keys_read)


@dataclass(frozen=True, slots=True)
class Peaks:
    """What this machine reaches, per second."""

    int8: float
    floats: float
    bytes: float


def peaks(llm: LLM, clock: Callable[[], float]) -> Peaks:
    """The best rates of this model's own products with many rows, and of copying memory."""
    import torch

    from quire.backends.cpu.int8 import Int8Matrix
    from quire.executor.cpu.int8_probe import int8_arithmetic

    executor: Any = llm._session.engine.executor
    weight, x = torch.randn(PEAK_SIZE), torch.randn(PEAK_ROWS, PEAK_SIZE[1])
    narrow = Int8Matrix.of(weight, int8_arithmetic()).linear(None)
    wide = executor._runner.model.kernels.make_linear(weight, None)
    large, copied = torch.ones(MEMORY_BYTES // 8), torch.ones(MEMORY_BYTES // 8)
    operations = 2.0 * x.numel() * PEAK_SIZE[0]
    return Peaks(
        operations / _best(lambda: narrow(x), clock),
        operations / _best(lambda: wide(x), clock),
        MEMORY_BYTES / _best(lambda: copied.copy_(large), clock),
    )


def _best(way: Callable[[], Any], clock: Callable[[], float]) -> float:
    """Seconds of the best of many tries."""
    import torch

    best, begin = math.inf, time.perf_counter()
    with torch.inference_mode():
        while time.perf_counter() - begin < PEAK_SECONDS:
            before = clock()
            way()
            best = min(best, clock() - before)
    return best


def run(llm: LLM, items: Sequence[workloads.Item], meter: Meter) -> float:
    """One run with an empty cache; what it took in all. The meter holds this run alone."""
    prompts, params = workloads.requests(items)
    llm.reset_prefix_cache()
    meter.entries.clear()
    before = meter.clock()
    meter.timed(REST, llm.generate)(prompts, params, use_tqdm=False)
    return meter.clock() - before


def table(entries: dict[str, Entry], whole: float, peak: Peaks) -> str:
    """One line per kind of operation, the dearest first, as Markdown."""
    lines = [
        "| operation | seconds | share | calls | GOP | of its peak | GB | of memory's |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, e in sorted(entries.items(), key=lambda item: -item[1].seconds):
        top = peak.int8 if e.kind == "int8" else peak.floats
        rate = f"{e.operations / e.seconds / top:.0%}" if e.operations else ""
        moved = f"{e.bytes / e.seconds / peak.bytes:.0%}" if e.bytes else ""
        lines.append(
            f"| {name} | {e.seconds:.3f} | {e.seconds / whole:.1%} | {e.calls:,} | "
            f"{e.operations / 1e9:,.0f} | {rate} | {e.bytes / 1e9:,.1f} | {moved} |"
        )
    done = sum(e.operations for e in entries.values()) / 1e9
    lines.append(f"| all | {whole:.3f} | 100% | | {done:,.0f} | | | |")
    return "\n".join(lines)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    known = [f.__name__ for f in workloads.CPU]
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--workload", nargs="+", default=known, choices=known)
    parser.add_argument("--quantization", default="int8", choices=["int8", "none"])
    parser.add_argument("--kernels", default="native", choices=["native", "torch"])
    parser.add_argument("--share", type=float, default=1.0, help="a leading part of each workload")
    parser.add_argument("--runs", type=int, default=2, help="after one to warm up; the best counts")
    arguments = parse_with_options(parser, words)
    if arguments.runs < 1:
        parser.error(f"--runs must be at least 1, got {arguments.runs}")
    return arguments


def main(words: Sequence[str] | None = None) -> None:
    arguments = parse(words)
    if arguments.kernels == "torch":
        os.environ["PATH"] = ""  # where no compiler is
    import torch

    from quire import LLM
    from quire.backends.cpu.native.library import loaded

    options: dict[str, Any] = {"quantization": arguments.quantization}
    if arguments.quantization == "none":
        options["dtype"] = "float32"
    options |= arguments.options
    with (
        shapes.opened(arguments.model, **options) as model,
        LLM(model.path, **model.options) as llm,
    ):
        threads = torch.get_num_threads()
        clock = time.thread_time if threads == 1 else time.perf_counter
        meter = Meter(clock)
        peak = peaks(llm, clock)
        print(
            f"{loaded().text}; {threads} threads, seconds of "
            f"{'CPU time' if threads == 1 else 'the clock'}; peaks: 8 bits {peak.int8 / 1e9:,.0f} "
            f"and floats {peak.floats / 1e9:,.0f} GOP/s, memory {peak.bytes / 1e9:,.1f} GB/s"
        )
        watch(llm, meter)
        for name in arguments.workload:
            items = workloads.build(name, arguments.share)
            run(llm, items, meter)
            best, entries = math.inf, meter.entries
            for _ in range(arguments.runs):
                took = run(llm, items, meter)
                if took < best:
                    best, entries = took, dict(meter.entries)
            print(f"\n{name}, {arguments.quantization}, {arguments.share:g} of it:\n")
            print(table(entries, best, peak), flush=True)


if __name__ == "__main__":
    main()
