"""Products with codes of 4 bits on a GPU, by tile: the table behind backends/cuda_c/packed.py.

    python benchmarks/gpu_packed.py --rows 1 4 16 32 64 --out results

Microseconds of each product of Llama-3.1-8B, beside the vendor's library with the plain weight.
Weights are random, and so many that none is left in the L2 cache.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.gpu_quant import BF16, SHAPES, _copies, _four_bits, _microseconds, _plain
from quire.backends.cuda_c.packed import (
    kernel_of,
    kind_of,
    multiply_packed,
    with_stages,
)
from quire.backends.quantised.fragments import fragments

# Warps along lines, warps along columns, tiles of lines to a warp, blocks to a core.
TILES: dict[int, tuple[tuple[int, int, int, int], ...]] = {
    8: ((2, 4, 4, 2), (1, 8, 4, 2), (1, 4, 4, 4), (2, 4, 2, 3)),
    16: ((2, 4, 4, 2), (1, 8, 4, 2), (1, 4, 4, 4), (2, 4, 2, 3)),
    32: ((4, 2, 2, 2), (2, 2, 2, 4), (2, 4, 2, 2)),
    64: ((4, 2, 2, 1),),
}
SPLITS = {"out": (4, 8), "down": (4, 8), "qkv": (2, 4), "gate_up": (1, 2)}


def table(name: str, count: int, group: int, kind: str) -> dict[str, Any]:
    shape = SHAPES[name]
    x = torch.randn(count, shape[1], device="cuda", dtype=BF16)
    copies = _copies(shape, 4)
    matrices = [fragments(_four_bits(shape, group, kind).narrowed(), BF16) for _ in range(copies)]
    made = kind_of(matrices[0], BF16)
    rows = next(one for one in TILES if count <= one)
    tiles = [with_stages(made, rows, size) for size in TILES[rows]]
    cases = list(itertools.product(tiles, SPLITS[name]))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda case: kernel_of(made, *case).load(), cases))
    line: dict[str, Any] = {"product": name, "rows": count, "group": group, "kind": kind}
    line["library"] = round(_plain(shape, x), 1)
    times = {}
    for tile, splits in cases:
        calls = [
            partial(multiply_packed, one, bias=None, tile=tile, splits=splits) for one in matrices
        ]
        times[f"{str(tile)[11:-1]}, splits={splits}"] = round(_microseconds(calls, x), 1)
    return {**line, **dict(sorted(times.items(), key=lambda item: item[1]))}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4, 16, 32, 64])
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--group", type=int, default=128)
    parser.add_argument("--kind", default="zeros", choices=["zeros", "none"])
    parser.add_argument("--out", type=Path, default=Path("results"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    found = []
    for count in given.rows:
        for name in given.shapes:
            found.append(table(name, count, given.group, given.kind))
            print(found[-1], flush=True)
    (given.out / "packed.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
