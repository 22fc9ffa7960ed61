"""How much accuracy fp8 weights cost, with a scale for a matrix, a row or a block.

    python benchmarks/fp8_weights.py [--model smollm2] [--windows 16]

The weights of a model's layers are rounded as in an fp8 checkpoint. Then the model reads the text
of the 8-bit gate twice: with these weights dequantised, and with the fp8 weights, whose products
round activations, too. Both are compared with the original weights in float32. On a GPU
the products are quire's own; elsewhere they are the same rounding in torch, in float32.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu_fp8 import built
from quire.backends.fp8 import round_lines
from quire.backends.linear import KeptQuantised, LinearOp
from quire.backends.ops import PackedMatrix
from quire.backends.quantised.fp8_matrix import Fp8Matrix
from quire.executor.cpu.accuracy import compare
from quire.session.int8_default import text_windows
from quire.weights.load import load_weights
from quire.weights.source import locate

SHARED = {"tensor": (0, 0), "row": (1, 0), "blocks of 128": (128, 128)}  # 0: all
ON_GPU = torch.cuda.is_available()


def rounded(weight: Tensor, tall: int, wide: int) -> Fp8Matrix:
    """In blocks of so many lines and columns, each by its largest number."""
    lines, columns = weight.shape
    tall, wide = tall or lines, wide or columns
    whole = F.pad(weight.float(), (0, -columns % wide, 0, -lines % tall))
    high, far = whole.shape[0] // tall, whole.shape[1] // wide
    blocks = whole.view(high, tall, far, wide).transpose(1, 2).reshape(high, far, -1)
    codes, scales = round_lines(blocks)
    plain = codes.view(torch.uint8).view(high, far, tall, wide).transpose(1, 2)
    lying = plain.reshape(whole.shape)[:lines, :columns].contiguous()
    return Fp8Matrix(lying.view(codes.dtype), scales, tall, wide)


class InTorch(KeptQuantised):
    """A weight in fp8 and its product, as the kernels round."""

    def __init__(self, matrix: Fp8Matrix, bias: Tensor | None = None) -> None:
        self.matrix, self.bias, self._plain = matrix, bias, matrix.dequantised()
        self.shape, self.device = matrix.shape, matrix.device

    def linear(self, bias: Tensor | None) -> LinearOp:
        return InTorch(self.matrix, bias)

    def __call__(self, x: Tensor) -> Tensor:
        columns, wide = x.shape[1], self.matrix.wide
        runs = F.pad(x, (0, -columns % wide)).view(len(x), -1, wide)
        codes, scales = round_lines(runs)
        kept = (codes.float() * scales[..., None]).view(len(x), -1)[:, :columns]
        return F.linear(kept, self._plain, self.bias)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.matrix.tensors()


def kept(matrices: dict[str, Fp8Matrix], dtype: torch.dtype) -> dict[str, PackedMatrix]:
    if not ON_GPU:
        return {name: InTorch(matrix) for name, matrix in matrices.items()}
    from quire.backends.triton.grouped import Scratch
    from quire.backends.triton.quantised import DeviceMatrix

    scratch = Scratch(torch.device("cuda"), dtype)
    return {name: DeviceMatrix(matrix, scratch) for name, matrix in matrices.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--windows", type=int, default=16, help="of 256 tokens")
    asked = parser.parse_args()
    files = locate(asked.model)
    spec, windows = files.spec(), text_windows(files, asked.windows, 256)
    device, name = ("cuda", "bfloat16") if ON_GPU else ("cpu", "float32")
    dtype: torch.dtype = getattr(torch, name)
    exact = load_weights(files, spec, dtype=torch.float32, device=device)
    reference = built(spec, dict(exact), "float32")  # it takes what it is given
    others = {key: one.to(dtype) for key, one in exact.items()}
    print("plain", name, compare(reference, built(spec, dict(others), name), spec, windows).text)
    for shared, (tall, wide) in SHARED.items():
        matrices = {
            key: rounded(one, tall, wide)
            for key, one in exact.items()
            if key.startswith("layers.") and one.dim() == 2
        }
        plain = {key: one.dequantised(dtype) for key, one in matrices.items()}
        for how, made in (("made plain", plain), ("kept", kept(matrices, dtype))):
            model = built(spec, {**others, **made}, name)
            print(shared, how, compare(reference, model, spec, windows).text, flush=True)


if __name__ == "__main__":
    main()
