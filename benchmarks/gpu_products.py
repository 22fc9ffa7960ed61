"""The products of few rows, one by one: the vendor's library beside ours with every tile.

    python benchmarks/gpu_products.py qwen3-0.6b llama-3.1-8b --rows 4 16 32

Ours include the norm before a product, the gate and what is added to the stream; the library's
do not. Each is replayed over so many copies of its weight that none is left in the L2 cache.
What backends/triton/small_batch.py chooses is marked with a star.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import shapes
from benchmarks.gpu_attention import milliseconds
from quire.backends.triton.small_batch import (
    LEAST_COLUMNS,
    ROWS,
    Norm,
    Product,
    Stream,
    ThinProducts,
    ThinTile,
    compile_product,
    products_of,
    thin_tile,
)
from quire.weights.source import locate

NAMES = ("qkv", "out", "gate_up", "down", "head")
WEIGHT_BYTES = 800 << 20  # of all copies of a weight
MOST_BYTES = 227 << 10  # of shared memory that a program may have
# columns, depth, warps, stages
TILES = tuple(
    ThinTile(*sizes)
    for sizes in (
        *((8, 512, 4, 4), (8, 512, 4, 6), (8, 1024, 4, 4)),
        *((16, 128, 2, 8), (16, 256, 4, 4), (16, 256, 4, 6), (16, 512, 4, 3), (16, 512, 4, 4)),
        *((32, 128, 4, 6), (32, 256, 4, 4), (32, 256, 4, 6), (32, 256, 8, 4), (32, 512, 4, 3)),
        *((32, 512, 4, 4), (64, 64, 4, 6), (64, 128, 4, 4), (64, 128, 8, 4), (64, 256, 4, 3)),
        *((128, 64, 4, 4), (128, 128, 4, 3), (128, 128, 8, 5)),
    )
)


def kinds_of(model: str, rows: int) -> dict[str, Product]:
    """The products of a shape's decode step of so many rows in bf16."""
    with shapes.opened(model) as shape:
        spec = locate(shape.path, weights=False).spec(None)
    made = products_of(spec, torch.bfloat16)
    compiled = next(size for size in ROWS if rows <= size)
    return dict(zip(NAMES, (kind for kind in made if kind.rows == compiled), strict=True))


def tiles_of(kind: Product) -> list[ThinTile]:
    """Those tried that fit, that which is chosen among them."""
    fitting = (tile for tile in TILES if kind.num_bytes(tile) <= MOST_BYTES)
    return list(dict.fromkeys((thin_tile(kind), *fitting)))


def run(products: ThinProducts, kind: Product, weights: Sequence[Tensor], rows: int) -> None:
    """One product per weight."""
    like = weights[0]
    x, norm = like.new_ones(rows, kind.inner), Norm(like.new_ones(kind.outer), 1e-5)
    squares = torch.ones(rows, kind.inner // LEAST_COLUMNS, device=like.device)
    out = like.new_zeros(rows, kind.outer)
    for weight in weights:
        if kind.gated:
            products.gated(Stream(x, x, squares, 1e-5), weight)
        elif kind.normed:
            products.normed(Stream(x, x, squares, 1e-5), weight)
        else:
            scaled = torch.empty_like(out)
            products.add(Stream(out, scaled, squares, 1e-5), x, weight, None, norm)


def measure(kind: Product, rows: int) -> Iterator[tuple[float, str]]:
    """(microseconds, by what)"""
    size = kind.num_lines * kind.inner * kind.dtype.itemsize
    copies = min(64, max(2, WEIGHT_BYTES // size))
    weights = [
        torch.randn(kind.num_lines, kind.inner, device="cuda").to(kind.dtype) * 0.02
        for _ in range(copies)
    ]
    x = torch.ones(rows, kind.inner, dtype=kind.dtype, device="cuda")

    def library() -> None:
        for weight in weights:
            F.linear(x, weight)

    yield milliseconds(library) * 1000 / copies, "library"
    for tile in tiles_of(kind):
        work = partial(run, ThinProducts(tile), kind, weights, rows)
        star = "*" if tile == thin_tile(kind) else ""
        name = f"{tile.columns},{tile.depth},{tile.warps},{tile.stages}{star}"
        yield milliseconds(work) * 1000 / copies, name


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rows", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = {}
    for model in arguments.models:
        kinds = [
            (name, kind, rows)
            for rows in arguments.rows
            for name, kind in kinds_of(model, rows).items()
        ]
        with ThreadPoolExecutor(14) as pool:
            pairs = {(kind, tile): None for _, kind, _ in kinds for tile in tiles_of(kind)}
            list(pool.map(lambda pair: compile_product(*pair), pairs))
        for name, kind, rows in kinds:
            lines = sorted(measure(kind, rows))
            found[f"{model} {name} {rows}"] = lines
            kept = [
                line for i, line in enumerate(lines) if i < 4 or "*" in line[1] or "lib" in line[1]
            ]
            said = "; ".join(f"{spent:.1f} us {by}" for spent, by in kept)
            print(f"{model} {name} {kind.num_lines} x {kind.inner}, {rows} rows: {said}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
