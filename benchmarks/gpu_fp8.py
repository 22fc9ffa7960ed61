"""What fp8 costs and gains on a GPU, each part written as it ends.

    python benchmarks/gpu.py fp8 --out results --seconds 120
    python benchmarks/gpu_fp8.py decode accuracy --out results --seconds 60

    decode    attention of one step over a cache in fp8 and in bf16; the table behind tiles.py
    profiles  a decode step, kernel by kernel
    prompts   attention of prompts, and storing
    accuracy  perplexity, KL and choices of the default model against float32 on the same weights
    engine    milliseconds of a decode step and of prompts, 0.6B and 8B shapes

Parts run in the order they are named, or all in this one, until the seconds are used up.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import shapes
from benchmarks.harness import Budget, Line, Parts, main_of_parts, run_parts

if TYPE_CHECKING:
    from torch import Tensor

    from quire.backends.ops import HeadShape
    from quire.backends.triton.tiles import Tile

THREADS = 12
KV: Line = {"kv_cache_dtype": "fp8"}


def decode() -> Iterator[Line]:
    """Microseconds and TB/s (scales counted) of attention, by tile."""
    import torch

    from benchmarks.gpu_attention import copy_bandwidth
    from quire.backends.ops import HeadShape
    from quire.backends.triton.tiles import Tile

    yield {"copy TB/s": round(copy_bandwidth(), 3)}
    sizes = ((128, 4, 3), (128, 2, 3), (64, 1, 4), (64, 2, 4), (32, 1, 5), (64, 4, 4))
    tiles = [Tile(8, *size) for size in sizes]
    for heads, width in ((32, 128), (16, 128), (32, 64)):
        plain = HeadShape(heads, 8, width, 16, torch.bfloat16)
        narrow = HeadShape(heads, 8, width, 16, torch.bfloat16, True)
        settings = ((256, 1024), (256, 300)) if heads == 32 and width == 128 else ((256, 1024),)
        if heads == 16:
            settings = (*settings, (1024, 768), (16, 1024))
        with ThreadPoolExecutor(THREADS) as pool:  # to compile them
            list(pool.map(partial(run_decode, narrow, 16, 256), tiles))
        for rows, context in settings:
            wide_us, wide_tb = time_decode(plain, rows, context)
            found: Line = {"decode": f"{rows} x {context} {heads}/8x{width}"}
            found["bf16 us, TB/s"] = (wide_us, wide_tb)
            found |= {
                f"{tile.keys}/{tile.warps}/{tile.stages}": time_decode(narrow, rows, context, tile)
                for tile in tiles
            }
            yield found


def time_decode(
    shape: HeadShape, rows: int, context: int, tile: Tile | None = None
) -> tuple[float, float]:
    """(microseconds, TB/s)"""
    from benchmarks.gpu_attention import milliseconds

    run, moved = run_decode(shape, rows, context, tile)
    spent = milliseconds(run, rep=20)
    return round(spent * 1e3, 1), round(moved / spent / 1e9, 3)


def run_decode(
    shape: HeadShape, rows: int, context: int, tile: Tile | None
) -> tuple[Callable[[], object], int]:
    """A step's attention that has run once, and the bytes it reads."""
    import torch

    from quire.backends.fp8 import block_shape
    from quire.backends.triton.decode import DecodeAttention, DecodeBuffers

    cuda, blocks = torch.device("cuda"), rows * -(-context // 16)
    block = block_shape(shape.num_kv_heads, 16, shape.head_dim, shape.kv_dtype)
    keys, values = (make_random(shape, (blocks, *block)) for _ in range(2))
    tables = torch.randperm(blocks, dtype=torch.int32, device=cuda).view(rows, -1)
    lengths = torch.full((rows,), context, dtype=torch.int32, device=cuda)
    buffers = DecodeBuffers.make(shape, rows, cuda)
    attention = DecodeAttention(shape, buffers, rows, tile=tile)
    attention.plan(lengths, tables)
    q = torch.randn(rows, shape.num_heads, shape.head_dim, device=cuda, dtype=shape.dtype)
    out = torch.empty(rows, q[0].numel(), device=cuda, dtype=shape.dtype)
    run = partial(attention.attend, q, keys, values, out)
    run()
    return run, 2 * keys.nbytes


def make_random(shape: HeadShape, size: Sequence[int]) -> Tensor:
    """A cache of finite numbers and scales near 2^-6."""
    import torch

    cuda = torch.device("cuda")
    if not shape.fp8_kv:
        return torch.randn(size, device=cuda, dtype=shape.dtype)
    made = torch.randint(0, 120, tuple(size), dtype=torch.uint8, device=cuda)
    made.view(torch.float32)[..., -shape.block_size :] = -6.0
    return made.view(shape.kv_dtype)


def prompts() -> Iterator[Line]:
    """Prompts and storing, in microseconds; by tile in fp8."""
    import torch

    from benchmarks.gpu_attention import milliseconds
    from quire.backends.fp8 import block_shape
    from quire.backends.ops import HeadShape
    from quire.backends.triton.heads import norm_rope_store
    from quire.backends.triton.prefill import PrefillAttention
    from quire.backends.triton.tiles import Tile

    cuda, count, new = torch.device("cuda"), 16, 1024
    tables = torch.arange(count * new // 16, dtype=torch.int32, device=cuda).view(count, -1)
    lengths = torch.full((count,), new, device=cuda)
    starts = torch.arange(count + 1, device=cuda) * new
    q = torch.randn(count * new, 16, 128, device=cuda, dtype=torch.bfloat16)
    out = torch.empty(count * new, 2048, device=cuda, dtype=torch.bfloat16)
    qkv = torch.randn(count * new, 32, 128, device=cuda, dtype=torch.bfloat16)
    turn, slots = torch.rand(count * new, 64, device=cuda), torch.arange(count * new, device=cuda)
    sizes = ((128, 64, 8, 3), (64, 64, 4, 3))
    for fp8_kv in (False, True):
        shape = HeadShape(16, 8, 128, 16, torch.bfloat16, fp8_kv)
        block = block_shape(8, 16, 128, shape.kv_dtype)
        keys, values = (make_random(shape, (count * new // 16, *block)) for _ in range(2))
        found: Line = {"16 x 1024 prompts": "fp8" if fp8_kv else "bf16"}
        store = partial(norm_rope_store, qkv, turn, turn, slots, keys, values, shape)
        found["rope and store us"] = round(milliseconds(store, rep=10) * 1e3, 1)
        tiles = [None, *(Tile(*size) for size in sizes)] if fp8_kv else [None]
        passes = [
            PrefillAttention(shape, starts, lengths, tables, count * new, tile=tile)
            for tile in tiles
        ]
        with ThreadPoolExecutor(THREADS) as pool:  # to compile them
            list(pool.map(lambda one: one.attend(q, keys, values, out), passes))  # noqa: B023
        for tile, attention in zip(tiles, passes, strict=True):
            spent = milliseconds(partial(attention.attend, q, keys, values, out), rep=20)
            rate = 4 * count * 16 * 128 * new * (new + 1) / 2 / spent / 1e9
            found[str(tile)] = f"{spent * 1e3:.1f} us, {rate:.0f} TFLOP/s"
        yield found


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


def engine() -> Iterator[Line]:
    """A step and the prompts of a batch, by what is in fp8."""
    for model, rows, prompt in (("llama-3.1-8b", 256, 256), ("qwen3-0.6b", 256, 1024)):
        for options in ({}, KV):
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

    for model, length in (("llama-3.1-8b", 300), ("qwen3-0.6b", 700)):
        items = [
            workloads.Item([(7 * i + j) % 9000 + 10 for j in range(length)], 100)
            for i in range(256)
        ]
        with opened(model, KV) as llm:
            work = partial(measure, llm, model, items, 1)
            found = profile_plan(llm, f"{model}, KV in fp8", work, decodes, 2)
        yield {"profile": model, "found": found}


@contextmanager
def opened(model: str, options: Line) -> Iterator[Any]:
    from quire import LLM

    shape = shapes.opened(model, enable_prefix_caching=False, **options)
    with shape as found, LLM(found.path, **found.options) as llm:
        yield llm


PARTS: Parts = {
    "decode": decode,
    "profiles": profiles,
    "prompts": prompts,
    "accuracy": accuracy,
    "engine": engine,
}


def fp8(budget: Budget) -> None:
    run_parts(PARTS, list(PARTS), budget, "fp8")


if __name__ == "__main__":
    main_of_parts(__doc__, PARTS, "fp8", seconds=120.0)
