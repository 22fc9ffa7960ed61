"""What quantised weights cost and gain on a GPU, each section written as it ends.

    python benchmarks/gpu_quant.py checks tiles fp8 --out results --seconds 140

    checks   products with every kind of weight beside the plain weight, in three types
    tiles    products of few rows with codes of 4 bits, by tile; the table behind triton/grouped.py
    rows     the same by number of rows, beside the vendor's library with the plain weight
    fp8      products in fp8, by rows and by blocks, beside the plain weight
    models   small models in some layouts through the engine, beside the same with plain weights
    speed    tokens per second at that shape in each layout

Weights are random and made on the device, at the shapes of Llama-3.1-8B.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.budget import Budget
from benchmarks.gpu_attention import milliseconds
from benchmarks.gpu_checks import stand_in_for_pytest
from benchmarks.gpu_quant_engine import models, speed

Line = dict[str, Any]
SHAPES = {"out": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336), "qkv": (6144, 4096)}
THREADS = 14
WEIGHT_BYTES = 400 << 20  # of all copies of a weight, so that none is left in the L2 cache
BF16 = torch.bfloat16


def checks() -> Iterator[Line]:
    from tests.backends.triton import grouped_checks as grouped

    device = torch.device("cuda")
    calls: dict[str, Callable[[], None]] = {}
    for dtype in (BF16, torch.float16, torch.float32):
        for kind in grouped.matrices(1, 64, 64, dtype, torch.device("cpu")):
            for lines, columns, group, rows in ((1000, 1024, 128, 16), (320, 512, 32, 40)):
                scales = BF16 if dtype == BF16 else torch.float16
                matrix = grouped.matrices(lines, columns, group, scales, device)[kind]
                name = f"{kind} {dtype} {rows}"
                calls[name] = partial(grouped.check_product, matrix, rows, dtype)
                calls[f"plain {name}"] = partial(grouped.check_plain, matrix, dtype)
    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(outcome, calls.values()))
    failed = {name: found for name, found in zip(calls, results, strict=True) if found != "ok"}
    yield {"checks": len(calls), "failed": failed}


def outcome(call: Callable[[], object]) -> str:
    """ok, or what went wrong."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the other checks still count
        traceback.print_exc(limit=4)
        return f"{type(error).__name__}: {error}"[:600]
    return "ok"


def _copies(shape: tuple[int, int], bits: float) -> int:
    return max(2, min(24, int(WEIGHT_BYTES / (shape[0] * shape[1] * bits / 8))))


def _four_bits(shape: tuple[int, int], group: int = 128, kind: str = "zeros") -> Any:
    from quire.backends.quantised.grouped import GroupedMatrix

    lines, columns = shape
    ends, size = (-(1 << 15), 1 << 15), (lines, columns // 4)
    codes = torch.randint(*ends, size, dtype=torch.int16, device="cuda")
    groups = (lines, columns // group)
    scales = torch.rand(groups, device="cuda").div_(64).half()
    if kind == "table":
        return GroupedMatrix(4, codes, scales, table=torch.randn(16, device="cuda"))
    if kind == "none":
        return GroupedMatrix(4, codes, scales, zero=8)
    zeros = torch.randint(1, 16, groups, dtype=torch.uint8, device="cuda")
    return GroupedMatrix(4, codes, scales, zeros=zeros)


def _microseconds(linears: Sequence[Callable[[Tensor], object]], x: Tensor) -> float:
    def run() -> None:
        for linear in linears:
            linear(x)

    return milliseconds(run) * 1000 / len(linears)


def _plain(shape: tuple[int, int], x: Tensor) -> float:
    weights = [torch.randn(shape, device="cuda", dtype=BF16) for _ in range(_copies(shape, 16))]
    return _microseconds([partial(F.linear, weight=weight) for weight in weights], x)


def tiles() -> Iterator[Line]:
    from quire.backends.triton.grouped import GroupedLinear, GroupedTile, Scratch

    sizes = (
        *((64, 128, 4, 3), (64, 128, 4, 4), (128, 128, 4, 3), (128, 128, 4, 4), (128, 128, 8, 3)),
        *((128, 128, 8, 4), (256, 128, 8, 3), (64, 64, 4, 5), (128, 64, 4, 5), (128, 64, 8, 5)),
    )
    scratch = Scratch(torch.device("cuda"), BF16)
    x = {width: torch.randn(16, width, device="cuda", dtype=BF16) for width in (4096, 14336)}
    for name, group, kind in (
        *(("gate_up", 128, "zeros"), ("gate_up", 128, "none"), ("down", 128, "zeros")),
        *(("out", 128, "zeros"), ("gate_up", 32, "none")),
    ):
        shape = SHAPES[name]
        matrices = [_four_bits(shape, group, kind) for _ in range(_copies(shape, 4))]
        mine = x[shape[1]]
        cases = []
        for (lines, depth, warps, stages), per_core in itertools.product(sizes, (1, 2, 4)):
            tiles_ = -(-shape[0] // lines)
            splits = max(1, min(8, round(per_core * 132 / tiles_)))
            tile = GroupedTile(16, lines, depth, splits, warps, stages)
            fits = depth <= group or depth == 2 * group
            if tile not in cases and fits and (kind == "zeros" or per_core == 1):
                cases.append(tile)
        made = {t: [GroupedLinear(m, None, scratch, t) for m in matrices] for t in cases}

        def compiled(tile: GroupedTile, made: Any = made, mine: Tensor = mine) -> str:
            return outcome(lambda: made[tile][0].fused(mine))

        with ThreadPoolExecutor(THREADS) as pool:
            results = dict(zip(cases, pool.map(compiled, cases), strict=True))
        torch.cuda.synchronize()
        times = sorted(
            (_microseconds([one.fused for one in made[tile]], mine), str(tile))
            for tile in cases
            if results[tile] == "ok"
        )
        failed = [str(tile) for tile in cases if results[tile] != "ok"]
        yield {
            "product": name,
            "group": group,
            "kind": kind,
            "library": _plain(shape, mine),
            "best": times[:14],
            "failed": failed,
        }


def _made_plain(linear: Any, x: Tensor) -> Tensor:
    return F.linear(x, linear.plain())


def rows() -> Iterator[Line]:
    from quire.backends.triton.grouped import GroupedLinear, GroupedTile, Scratch

    scratch = Scratch(torch.device("cuda"), BF16)
    for name in ("gate_up", "down"):
        shape = SHAPES[name]
        linears = [GroupedLinear(_four_bits(shape), None, scratch) for _ in range(4)]
        for count in (1, 32, 64, 128, 256):
            x = torch.randn(count, shape[1], device="cuda", dtype=BF16)
            line: Line = {"product": name, "rows": count, "library": _plain(shape, x)}
            line["made plain first"] = _microseconds(
                [partial(_made_plain, one) for one in linears], x
            )
            for tall, lines, depth, warps, stages in (
                *((16, 64, 128, 4, 4), (16, 128, 128, 4, 4), (32, 64, 128, 4, 4)),
                *((32, 128, 128, 4, 4), (64, 64, 128, 4, 3), (64, 128, 128, 4, 3)),
                *((64, 128, 128, 8, 3), (64, 128, 64, 4, 4), (128, 128, 64, 8, 3)),
                *((128, 128, 128, 8, 3), (128, 64, 64, 4, 4)),
            ):
                if count > 512 or not count <= tall * 4 or tall >= 4 * count:
                    continue
                splits = max(1, min(8, round(2 * 132 / (shape[0] // lines * -(-count // tall)))))
                if splits * count > 8 * 64:
                    splits = 1
                tile = GroupedTile(tall, lines, depth, splits, warps, stages)
                ones = [GroupedLinear(one.matrix, None, scratch, tile) for one in linears]
                if outcome(partial(ones[0].fused, x)) == "ok":
                    line[str(tile)] = _microseconds([one.fused for one in ones], x)
            yield line


def fp8() -> Iterator[Line]:
    from quire.backends.quantised.fp8_matrix import Fp8Matrix
    from quire.backends.triton.fp8_product import Fp8Linear
    from quire.backends.triton.grouped import Scratch

    scratch = Scratch(torch.device("cuda"), BF16)
    for name, count in itertools.product(("gate_up", "down"), (64, 128, 4096, 16384)):
        shape = SHAPES[name]
        copies = 4 if count <= 256 else 2
        codes = [torch.randn(shape, device="cuda").to(torch.float8_e4m3fn) for _ in range(copies)]
        x = torch.randn(count, shape[1], device="cuda", dtype=BF16)
        by_row = [Fp8Matrix(c, torch.rand(shape[0], 1, device="cuda"), 1, shape[1]) for c in codes]
        by_block = [
            Fp8Matrix(c, torch.rand(shape[0] // 128, shape[1] // 128, device="cuda"), 128, 128)
            for c in codes
        ]
        line: Line = {"product": name, "rows": count, "library": _plain(shape, x)}
        rows_, blocks = ([Fp8Linear(m, None, scratch) for m in kind] for kind in (by_row, by_block))
        line["rounding"] = _microseconds([one.rounded for one in rows_], x)
        line["rounding by block"] = _microseconds([one.rounded for one in blocks], x)
        for kind, ones in (("row", rows_), ("block", blocks)):
            small = [one.rounded(x) for one in ones]
            expected = _expected(ones[0].matrix, *small[0])
            ways: dict[str, Callable[..., Tensor]] = {
                "ours": _ours,
                "scaled_mm": partial(_scaled_mm, fast=True),
                "scaled_mm, exact": partial(_scaled_mm, fast=False),
            }
            for way, call in ways.items():
                result = outcome(partial(call, ones[0], *small[0]))
                if result != "ok":
                    line[f"{kind} {way}"] = result[:200]
                    continue
                found = call(ones[0], *small[0]).float()
                error = (found - expected).abs().max() / expected.abs().max()
                calls = [partial(call, one, *two) for one, two in zip(ones, small, strict=True)]
                line[f"{kind} {way}"] = (_timed(calls), float(error))
        yield line


def _ours(linear: Any, codes: Tensor, scales: Tensor) -> Tensor:
    made: Tensor = linear.multiply(codes, scales, BF16)
    return made


def _timed(calls: Sequence[Callable[[], object]]) -> float:
    def run() -> None:
        for call in calls:
            call()

    return milliseconds(run) * 1000 / len(calls)


def _scaled_mm(linear: Any, codes: Tensor, scales: Tensor, *, fast: bool) -> Tensor:
    from torch.nn.functional import ScalingType, scaled_mm

    matrix = linear.matrix
    if matrix.by_row:
        return torch._scaled_mm(
            codes, matrix.codes.t(), scales, matrix.scales.t(), out_dtype=BF16, use_fast_accum=fast
        )
    # Scales of rows lie one block of columns after the other, those of the weight likewise.
    return scaled_mm(
        codes,
        matrix.codes.t(),
        scales.t().contiguous().t(),
        ScalingType.BlockWise1x128,
        matrix.scales.t(),
        ScalingType.BlockWise128x128,
        output_dtype=BF16,
        use_fast_accum=fast,
    )


def _expected(matrix: Any, codes: Tensor, scales: Tensor) -> Tensor:
    wide = codes.float().view(len(codes), scales.shape[1], -1) * scales[..., None]
    plain: Tensor = matrix.dequantised()
    return wide.view(codes.shape) @ plain.t()


SECTIONS: dict[str, Callable[[], Iterator[Line]]] = {
    "checks": checks,
    "tiles": tiles,
    "rows": rows,
    "fp8": fp8,
    "models": models,
    "speed": speed,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sections", nargs="*", default=list(SECTIONS))
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--seconds", type=float, default=140)
    arguments = parser.parse_args()
    stand_in_for_pytest()
    budget = Budget(arguments.seconds, arguments.out)
    for section in arguments.sections:
        found: list[Line] = []
        try:
            for line in SECTIONS[section]():
                print(section, line, flush=True)
                found.append(line)
                budget.write(f"quant_{section}", found)
                if budget.left <= 0:
                    print("no time left", section, flush=True)
                    return
        except Exception:  # noqa: BLE001 - the other sections still count
            traceback.print_exc()
        print(f"{section}: {budget.left:.0f} s left", flush=True)


if __name__ == "__main__":
    main()
