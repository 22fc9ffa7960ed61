"""The products of one layer with adapters on a GPU: microseconds each, alone and with adapters.

    python benchmarks/gpu_lora_products.py qwen3-0.6b llama-3.1-8b --rows 256

`plain` is the library's product, `apart` that product and two launches after it, `behind` a product
with A behind the weight and one launch after it (triton/adapters.py), and `A` that product alone.
--columns are the widths of an expanding program to try. Every copy of a weight and of its adapters
is read in turn, so that none is found in the cache.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.gpu_attention import milliseconds
from benchmarks.shapes import MODELS
from quire.backends.adapter_ops import AdapterRoom, Added
from quire.backends.plain import PlainLinear
from quire.backends.triton import adapter_stacks
from quire.backends.triton.adapters import StackedAdapters

BF16, SLOTS, MOST_BYTES = torch.bfloat16, 32, 160 << 20
Pair = tuple[PlainLinear, Any]


def products(name: str) -> dict[str, tuple[tuple[int, ...], int]]:
    """Rows, part by part, and columns of the products of a layer."""
    config = json.loads((MODELS / f"{name}.json").read_text())
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    width = config.get("head_dim", hidden // heads)
    return {
        "qkv": ((heads * width, kv_heads * width, kv_heads * width), hidden),
        "o": ((hidden,), heads * width),
        "gate_up": ((inner, inner), hidden),
        "down": ((hidden,), inner),
    }


def filled(kernels: StackedAdapters, rows: tuple[int, ...], columns: int, rank: int) -> Pair:
    like: Any = {"device": "cuda", "dtype": BF16}
    base = PlainLinear(torch.randn(sum(rows), columns, **like) / columns**0.5, None)
    made = kernels.product(rows, columns, None, seldom=False, base=base)
    for slot in range(SLOTS):
        added = []
        for part, count in enumerate(rows):
            a = torch.randn(rank, columns, **like) / columns**0.5
            added.append(Added(part, sum(rows[:part]), a, torch.randn(count, rank, **like) / 4))
        made.load(slot, added)
    return base, made


def microseconds(pairs: Sequence[Pair], call: Callable[[PlainLinear, Any], Any]) -> float:
    def run() -> None:
        for base, product in pairs:
            call(base, product)

    return 1000 * milliseconds(run, rep=6) / len(pairs)


def measure(name: str, rows: tuple[int, ...], columns: int, given: argparse.Namespace) -> float:
    """Prints what a product takes; what adapters add to it, in microseconds."""
    kernels = StackedAdapters(AdapterRoom(SLOTS, given.rank, BF16, torch.device("cuda")))
    x = torch.randn(given.rows, columns, device="cuda", dtype=BF16)
    slots = (np.arange(given.rows) % given.adapters).astype(np.int32)
    lines, copies = kernels.lines(slots), max(3, MOST_BYTES // (2 * sum(rows) * columns))
    report, more = f"{name:8}", []
    for adapter_stacks.COLUMNS in given.columns:
        pairs = [filled(kernels, rows, columns, given.rank) for _ in range(copies)]
        wanted = pairs[0][1].add(x, pairs[0][0](x), lines).float()
        off = (pairs[0][1].multiply(pairs[0][0], x, lines).float() - wanted).abs().max()
        plain = microseconds(pairs, lambda base, _: base(x))
        wide = microseconds(pairs, lambda _, product: F.linear(x, product._wide))
        apart = microseconds(pairs, lambda base, product: product.add(x, base(x), lines))
        behind = microseconds(pairs, lambda base, product: product.multiply(base, x, lines))
        report += (
            f" | {adapter_stacks.COLUMNS} columns: plain {plain:.2f} apart {apart:.2f} behind "
        )
        report += f"{behind:.2f} (A {wide:.2f}) off {float(off / wanted.abs().max()):.4f}"
        more.append(behind - plain)
    print(report, flush=True)
    return min(more)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--adapters", type=int, default=32)
    parser.add_argument("--columns", type=int, nargs="+", default=[adapter_stacks.COLUMNS])
    given = parser.parse_args()
    with torch.inference_mode():
        for model in given.models:
            print(f"{model}, {given.rows} rows, rank {given.rank}", flush=True)
            found = products(model).items()
            more = sum(measure(name, *sizes, given) for name, sizes in found)
            print(f"  {given.adapters} adapters: {more:.1f} us more a layer", flush=True)


if __name__ == "__main__":
    main()
