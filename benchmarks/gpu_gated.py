"""Products of gate and up of many rows, with the gate inside, by tile, on Hopper: the table behind
backends/cuda_c/gated.py.

    python benchmarks/gpu_gated.py qwen3-0.6b llama-3.1-8b --rows 208 256 512 1024 16384

Microseconds beside the vendor's product alone and with a launch for the gate. Large products are
repeated for a fifth of a second, since they take as long as the card's power allows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F

from benchmarks import shapes
from benchmarks.gpu_attention import milliseconds
from quire.backends.cuda_c.gated import GatedTile, clusters_of, gated_tile, multiply_gated
from quire.backends.triton.elementwise import gate_mul
from quire.backends.triton.small_batch import layer_products
from quire.weights.source import locate

WEIGHT_BYTES = 300 << 20  # of all copies of a weight, so that none is left in the L2 cache
LINES = (256, 224, 192, 128)
LARGE = 5e11  # multiplications


def measure(shape: tuple[int, int], rows: int) -> None:
    copies = max(2, min(12, WEIGHT_BYTES // (2 * shape[0] * shape[1])))
    kind: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    weights = [torch.randn(shape, **kind) * 0.02 for _ in range(copies)]
    x = torch.randn(rows, shape[1], **kind)
    rep = 200 if rows * shape[0] * shape[1] > LARGE else 10

    def time_of(multiply: Callable[[torch.Tensor], object]) -> float:
        def all_of_them() -> None:
            for weight in weights:
                multiply(weight)

        return milliseconds(all_of_them, rep) * 1000 / copies

    chosen = gated_tile(shape[0], rows, clusters_of(x.device))
    apart = f"{time_of(lambda w: F.linear(x, w)):.1f} the library"
    apart += f", {time_of(lambda w: gate_mul(F.linear(x, w))):.1f} with a gate"
    joined = []
    for lines in LINES:
        tile = GatedTile(lines)
        spent = time_of(partial(multiply_gated, x=x, bias=None, activation="silu", tile=tile))
        joined.append(f"{spent:.1f} {lines} lines{'*' if tile == chosen else ''}")
    print(f"{shape[0]} x {shape[1]}, {rows} rows, us: {apart}; {', '.join(joined)}", flush=True)


def gate_shape(model: str) -> tuple[int, int]:
    with shapes.opened(model) as shape:
        spec = locate(shape.path, weights=False).spec(None)
    (product,) = (one for one in layer_products(spec, torch.bfloat16) if one.gated)
    return product.num_lines, product.inner


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rows", type=int, nargs="*", default=[208, 256, 384, 512, 1024, 16384])
    given = parser.parse_args(arguments)
    for model in given.models:
        for rows in given.rows:
            measure(gate_shape(model), rows)


if __name__ == "__main__":
    main()
