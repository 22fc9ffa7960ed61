"""Products of few rows with plain weights on Hopper, by tile: the table behind
backends/cuda_c/plain.py.

    python benchmarks/gpu_plain.py qwen3-0.6b llama-3.1-8b --rows 16 64 96 128 --out results

Microseconds of each product of a model's layers and of its logits, beside the vendor's library,
which computes no norm, gate or addition. Weights are random, and so many that none is left in the
L2 cache.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import shapes
from benchmarks.gpu_attention import milliseconds
from benchmarks.gpu_products import NAMES
from quire.backends.cuda_c.few_rows import AddedRows, NormedRows, Way
from quire.backends.cuda_c.plain import PlainTile, multiply_plain, plain_tile, way_of
from quire.backends.triton.small_batch import products_of
from quire.weights.source import locate

WEIGHT_BYTES = 300 << 20  # of all copies of a weight
LINES = (16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192, 224, 256)
SPLITS = (1, 2, 4)


def tiles_of(shape: tuple[int, int], rows: int, way: Way) -> list[PlainTile]:
    """That which is chosen first, and others that keep most cores busy in one or two waves."""
    chosen, found = plain_tile(shape, rows, way), []
    for lines, splits in itertools.product(LINES, SPLITS):
        tile = PlainTile(chosen.groups, lines, splits)
        whole = lines // (2 if way == "gated" else 1) % (8 * splits) == 0
        if whole and 88 <= tile.blocks(shape[0]) <= 264 and shape[1] >= 256 * splits:
            found.append(tile)
    return list(dict.fromkeys((chosen, *found)))


def multiply(weights: list[Tensor], x: Tensor, way: Way, tile: PlainTile) -> None:
    lines = len(weights[0])
    norm = NormedRows(1e-5, torch.ones(len(x), 64, device="cuda"))
    out = x.new_zeros(len(x), lines)
    added = AddedRows.to(out, torch.empty_like(out), out[0], tile.blocks(lines))
    for weight in weights:
        if way == "adds":
            multiply_plain(weight, x, None, added=added, tile=tile)
        else:
            multiply_plain(weight, x, None, norm=norm, gated=way == "gated", tile=tile)


def measure(shape: tuple[int, int], rows: int, way: Way) -> Iterator[tuple[float, str]]:
    """(microseconds, by what); the tile that is chosen has a star."""
    copies = max(2, min(40, WEIGHT_BYTES // (2 * shape[0] * shape[1])))
    kind = {"device": "cuda", "dtype": torch.bfloat16}
    weights = [torch.randn(shape, **kind) * 0.02 for _ in range(copies)]  # type: ignore[call-overload]
    x = torch.randn(rows, shape[1], **kind)  # type: ignore[call-overload]

    def library() -> None:
        for weight in weights:
            F.linear(x, weight)

    yield milliseconds(library, 8) * 1000 / copies, "library"
    for tile in tiles_of(shape, rows, way):
        spent = milliseconds(partial(multiply, weights, x, way, tile), 8) * 1000 / copies
        star = "*" if tile == plain_tile(shape, rows, way) else ""
        yield spent, f"{tile.lines} lines, {tile.splits} share columns{star}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rows", type=int, nargs="*", default=[16, 64, 96, 128])
    parser.add_argument("--out", type=Path, default=Path("results"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    found = {}
    for model, rows in itertools.product(given.models, given.rows):
        with shapes.opened(model) as shape:
            spec = locate(shape.path, weights=False).spec(None)
        kinds = products_of(spec, torch.bfloat16)[: len(NAMES)]
        for name, kind in zip(NAMES, kinds, strict=True):
            lines = sorted(measure((kind.num_lines, kind.inner), rows, way_of(kind)))
            found[f"{model} {name} {rows}"] = lines
            said = "; ".join(f"{spent:.1f} us {by}" for spent, by in lines)
            print(
                f"{model} {name} {kind.num_lines} x {kind.inner}, {rows} rows: {said}", flush=True
            )
    (given.out / "plain.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
