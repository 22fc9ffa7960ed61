"""How fast each path of 8-bit products is, by number of rows, beside float products.

    python benchmarks/int8_paths.py --size 576 3072 --rows 1 4 16 64 256

Billions of operations a second on one thread, turning and rounding of the rows included; the best
of many short tries, so that other programs matter little.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor

from quire.backends.cpu.int8 import Int8Matrix, TorchInt8
from quire.backends.cpu.linear import make_linear
from quire.backends.cpu.native.library import loaded
from quire.backends.cpu.native_int8 import Choice, NativeInt8, paths_here
from quire.backends.linear import LinearOp


def linears(weight: Tensor) -> dict[str, LinearOp]:
    """Every way to multiply with this weight here."""
    ways: dict[str, LinearOp] = {
        "torch float32": make_linear(weight, None),
        "torch int8": Int8Matrix.of(weight, TorchInt8()).linear(None),
    }
    native = loaded().library
    if native is not None:
        for path in paths_here(native):
            arithmetic = NativeInt8(native, [Choice(0, path)])
            ways[path] = Int8Matrix.of(weight, arithmetic).linear(None)
    return ways


@torch.inference_mode()
def rate(linear: LinearOp, x: Tensor, channels: int, seconds: float) -> float:
    """Operations a second, by the best try."""
    best, begin = math.inf, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        before = time.perf_counter()
        linear(x)
        best = min(best, time.perf_counter() - before)
    return 2 * x.numel() * channels / best


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, nargs=2, default=[576, 3072], metavar=("K", "N"))
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 64, 256])
    parser.add_argument("--seconds", type=float, default=0.2, help="of tries per figure")
    arguments = parser.parse_args(words)
    torch.set_num_threads(1)
    depth, channels = arguments.size
    weight = torch.randn(channels, depth)
    print(f"{'rows':<14}" + "".join(f"{rows:>8}" for rows in arguments.rows))
    for name, linear in linears(weight).items():
        rates = [
            rate(linear, torch.randn(rows, depth), channels, arguments.seconds)
            for rows in arguments.rows
        ]
        print(f"{name:<14}" + "".join(f"{r / 1e9:>8.0f}" for r in rates), flush=True)


if __name__ == "__main__":
    main()
