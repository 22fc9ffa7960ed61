"""What quantised weights cost and gain on a GPU, each part written as it ends.

    python benchmarks/gpu_quant.py tiles fp8 --out results --seconds 140

    tiles    products of few rows with codes of 4 bits, by tile; the table behind triton/grouped.py
    rows     the same by number of rows, beside the vendor's library with the plain weight
    fp8      products in fp8, by rows and by blocks, beside the plain weight
    speed    tokens per second at that shape in each layout
    experts  the same of mixtures, whose experts stay quantised

Weights are random and made on the device, at the shapes of Llama-3.1-8B if no other is named.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
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

from benchmarks.gpu_attention import milliseconds
from benchmarks.harness import Line, Parts, main_of_parts
from benchmarks.shapes import MODELS

SHAPES = {"out": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336), "qkv": (6144, 4096)}
THREADS = 14
WEIGHT_BYTES = 400 << 20  # of all copies of a weight, so that none is left in the L2 cache
BF16 = torch.bfloat16


def outcome(call: Callable[[], object]) -> str:
    """The word ok, or the error."""
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


LAYOUTS: dict[str, dict[str, Any] | None] = {
    "bf16": None,
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True},
    "fp8": {"quant_method": "fbgemm_fp8"},
    "fp8 blocks": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
# Rows, tokens of each prompt, tokens of each answer.
WORK = ((16, 16, 256), (64, 16, 128), (256, 16, 64), (64, 1024, 1))


MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        *("model.layers.*.self_attn", "model.layers.*.mlp.router"),
        *("model.embed_tokens", "lm_head"),
    ],
}
MIXTURES: dict[str, dict[str, dict[str, Any] | None]] = {
    "gpt-oss-20b": {"bf16": None, "mxfp4": MXFP4},
    "gpt-oss-120b": {"mxfp4": MXFP4},
    "qwen3-30b-a3b": {"bf16": None, "awq": LAYOUTS["awq"], "fp8 blocks": LAYOUTS["fp8 blocks"]},
}


def speed() -> Iterator[Line]:
    """Tokens per second at the shape of Llama-3.1-8B, random weights kept in each layout."""
    yield from speed_of("llama-3.1-8b", LAYOUTS)


def experts() -> Iterator[Line]:
    for model, layouts in MIXTURES.items():
        for line in speed_of(model, layouts):
            yield {"model": model, **line}


def speed_of(model: str, layouts: dict[str, dict[str, Any] | None]) -> Iterator[Line]:
    from quire import LLM, SamplingParams

    config = json.loads((MODELS / f"{model}.json").read_text())
    usual: dict[str, Any] = {"load_format": "dummy", "skip_tokenizer_init": True}
    for name, said in layouts.items():
        with tempfile.TemporaryDirectory() as directory:
            full = config if said is None else {**config, "quantization_config": said}
            (Path(directory) / "config.json").write_text(json.dumps(full))
            began = time.perf_counter()
            kept = None if said is None else said["quant_method"]
            more = {"enable_prefix_caching": False, "max_model_len": 4096, "quantization": kept}
            with LLM(directory, **usual, **more) as llm:
                line: Line = {"layout": name, "start": time.perf_counter() - began}
                for rows_, prompt, most in WORK:
                    prompts = [[(i * 31 + j) % 9999 for j in range(prompt)] for i in range(rows_)]
                    params = SamplingParams(temperature=0, max_tokens=most, ignore_eos=True)
                    for _ in range(2):
                        began = time.perf_counter()
                        llm.generate(prompts, params, use_tqdm=False)
                        seconds = time.perf_counter() - began
                    tokens = rows_ * (most if most > 1 else prompt)
                    line[f"{rows_} x {prompt} + {most}"] = tokens / seconds
                yield line


PARTS: Parts = {"tiles": tiles, "rows": rows, "fp8": fp8, "speed": speed, "experts": experts}

if __name__ == "__main__":
    main_of_parts(__doc__, PARTS, "quant", seconds=140.0)
