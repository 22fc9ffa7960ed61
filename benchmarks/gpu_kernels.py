"""Every Triton kernel on one GPU: first whether it is right, then how fast it is.

    python benchmarks/gpu_kernels.py [--out FILE] [--only checks,decode,...] [--seconds N]

Needs torch and Triton only. Each part prints its lines as it ends and appends them to FILE as
JSON, so that a run that is cut short has still said what it found. After `--seconds` no further
part is begun.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.gpu_attention import (
    BF16,
    CUDA,
    Line,
    decode,
    decode_sweep,
    lengths_of,
    milliseconds,
    prefill,
    prefix,
)
from benchmarks.gpu_long import prompts, steady
from quire.backends.ops import HeadNorms, HeadShape
from quire.backends.triton import blocks, elementwise
from quire.backends.triton.decode import DecodeAttention, DecodeBuffers
from quire.backends.triton.heads import norm_rope_store
from quire.backends.triton.sample import SampleBuffers, SamplingColumns, sample

Check = Callable[[], object]


def quick() -> Iterator[Line]:
    """Of the checks, those of the default model's kind."""
    yield from _checks(((BF16, ((16, 8, 128),)),))


def draws() -> Iterator[Line]:
    """Of the checks, those of sampling."""
    yield from _checks(((BF16, ()),))


def checks() -> Iterator[Line]:
    """The parity checks of tests/backends/triton at real shapes."""
    yield from _checks(
        (
            (BF16, ((16, 8, 128), (32, 8, 64), (16, 1, 256), (9, 3, 80))),
            (torch.float32, ((8, 1, 64),)),
            (torch.float16, ((32, 8, 64),)),
        )
    )


Shapes = tuple[tuple[int, int, int], ...]


def _checks(kinds: tuple[tuple[torch.dtype, Shapes], ...]) -> Iterator[Line]:
    from tests.backends.triton import checks as c
    from tests.backends.triton import sampling_checks as s
    from tests.backends.triton.thin_checks import check_thin
    from tests.backends.triton.wishes import CUT, KEPT, PLAIN

    for dtype, shapes in kinds:
        place = c.Place(CUDA, dtype)
        for heads, kv_heads, width in shapes:
            shape = HeadShape(heads, kv_heads, width, 16, dtype)
            for name, run in _attention_checks(place, shape):
                yield _verdict(f"{name} {dtype} {heads}/{kv_heads}x{width}", run)
        for name, run in (
            ("thin", partial(check_thin, place, 9, 1024, 3072)),
            ("thin, 16 rows", partial(check_thin, place, 16, 4096, 14336)),
            ("norms", partial(c.check_norms, place, 700, 4096)),
            ("silu", partial(c.check_activations, place, 700, 14336)),
            ("noise", partial(s.check_noise, place, 151_936, 64)),
            ("draw", partial(s.check_sampling, place, PLAIN * 3, 151_936)),
            ("limits", partial(s.check_sampling, place, CUT * 3, 128_256)),
            ("kept", partial(s.check_kept, place, KEPT, 151_936)),
            ("flat", partial(s.check_kept, place, KEPT, 151_936, spread=0.5)),
        ):
            yield _verdict(f"{name} {dtype}", run)


def _attention_checks(place: Any, shape: HeadShape) -> Iterator[tuple[str, Check]]:
    from tests.backends.triton import checks as c
    from tests.backends.triton.thin_checks import check_packed

    lengths = [(i * 977) % 2500 for i in range(60)]
    groups = ((32, tuple(range(70))), (50, tuple(range(3, 30))))
    slices = [(700, 0), (130, 900), (1, 33), (64, 64)]
    grouped = [900 + i for i in range(80)]
    yield "heads", partial(c.check_heads, place, shape, 900, normed=True)
    yield "decode", partial(c.check_decode, place, shape, lengths)
    yield "window", partial(c.check_decode, place, shape, lengths, window=300)
    few = lengths[:16]
    yield "packed", partial(check_packed, place, shape, few, window=None, normed=True)
    yield "packed, window", partial(check_packed, place, shape, few, window=300, normed=False)
    yield "prefix", partial(c.check_decode, place, shape, grouped, shared=groups)
    yield "prefill", partial(c.check_prefill, place, shape, slices, queries=128)


def _verdict(name: str, run: Check) -> Line:
    begin = time.perf_counter()
    try:
        run()
        torch.cuda.synchronize()
    except AssertionError as wrong:
        return {"check": name, "ok": False, "why": str(wrong)[:400]}
    except Exception as broken:  # a kernel that does not run must not hide the other results
        return {
            "check": name,
            "ok": False,
            "why": repr(broken)[:400],
            "at": traceback.format_exc()[-300:],
        }
    return {"check": name, "ok": True, "s": round(time.perf_counter() - begin, 2)}


def small() -> Iterator[Line]:
    """What happens once per step or is small: microseconds."""
    shape = HeadShape(16, 8, 128, 16, BF16)
    for rows in (256, 1024, 2048):
        lengths = lengths_of(rows, 512, "uniform")
        tables = torch.zeros(rows, 64, dtype=torch.int32, device=CUDA)
        buffers = DecodeBuffers.make(shape, rows, CUDA)
        attention = DecodeAttention(shape, buffers, rows)
        spent = milliseconds(partial(attention.plan, lengths, tables))
        yield {"small": f"plan {rows} rows", "us": round(spent * 1e3, 2)}
    for tokens in (256, 1024, 16384):
        yield from _elementwise(shape, tokens)
    cache = torch.randn(28, 2, 512, 8, 16, 128, device=CUDA, dtype=BF16)
    pairs = torch.arange(256, dtype=torch.int32, device=CUDA).view(128, 2)
    spent = milliseconds(lambda: blocks.copy_blocks(cache, pairs))
    moved = 2 * 128 * cache[:, :, 0].nbytes
    yield {
        "small": "copy 128 blocks",
        "us": round(spent * 1e3, 2),
        "TB/s": round(moved / spent / 1e9, 3),
    }


def _elementwise(shape: HeadShape, tokens: int) -> Iterator[Line]:
    hidden, inner = 1024, 3072
    x, residual = (torch.randn(tokens, hidden, device=CUDA, dtype=BF16) for _ in range(2))
    weight = torch.randn(hidden, device=CUDA, dtype=BF16)
    gate_up = torch.randn(tokens, 2 * inner, device=CUDA, dtype=BF16)
    qkv = torch.randn(tokens, 32, 128, device=CUDA, dtype=BF16)
    angles = torch.randn(tokens, 64, device=CUDA)
    cos, sin = angles.cos(), angles.sin()
    keys, values = torch.randn(2, tokens // 16 + 1, 8, 16, 128, device=CUDA, dtype=BF16)
    slots = torch.randperm(tokens, device=CUDA)
    norms = HeadNorms(weight[:128].contiguous(), weight[128:256].contiguous(), 1e-6)
    for name, run, num_bytes in (
        ("rms_norm", lambda: elementwise.rms_norm(x, weight, 1e-6), 2 * x.nbytes),
        ("add_rms_norm", lambda: elementwise.add_rms_norm(x, residual, weight, 1e-6), 4 * x.nbytes),
        ("silu_mul", lambda: elementwise.gate_mul(gate_up), 3 * gate_up.nbytes // 2),
        (
            "norm_rope_store",
            lambda: norm_rope_store(qkv, cos, sin, slots, keys, values, shape, norms),
            2 * qkv.nbytes + cos.nbytes * 2,
        ),
    ):
        spent = milliseconds(run)
        speed = num_bytes / spent / 1e9
        yield {"small": f"{name} {tokens}", "us": round(spent * 1e3, 2), "TB/s": round(speed, 3)}


def sampling() -> Iterator[Line]:
    """Microseconds to draw one token per line."""
    for lines, vocab in ((256, 151_936), (1024, 151_936), (8, 151_936)):
        for spread in (1.0, 3.0):
            logits = (torch.randn(lines, vocab, device=CUDA) * spread).to(BF16)
            out = SampleBuffers(lines, vocab, CUDA)
            rows = torch.arange(lines, dtype=torch.int32, device=CUDA)
            columns = SamplingColumns.greedy(lines, CUDA)
            found: Line = {"sampling": f"{lines} x {vocab}, logits x {spread}"}
            found["argmax us"] = round(milliseconds(partial(logits.argmax, 1)) * 1e3, 1)

            def run(
                truncated: bool,
                x: Tensor = logits,
                o: Any = out,
                r: Tensor = rows,
                c: Any = columns,
            ) -> None:
                sample(x, r, r, c, o, truncated=truncated)

            found["greedy us"] = round(milliseconds(lambda: run(False)) * 1e3, 1)
            columns.temperature.fill_(0.8)
            found["noise us"] = round(milliseconds(lambda: run(False)) * 1e3, 1)
            columns.top_k.fill_(50)
            found["top_k us"] = round(milliseconds(lambda: run(True)) * 1e3, 1)
            columns.top_p.fill_(0.95)
            found["top_k, top_p us"] = round(milliseconds(lambda: run(True)) * 1e3, 1)
            columns.top_k.fill_(0)
            found["top_p us"] = round(milliseconds(lambda: run(True)) * 1e3, 1)
            yield found


_TIMED = (decode_sweep, decode, small, sampling, prefix, prefill, prompts, steady)
_ALL = (checks, quick, draws, *_TIMED)
PARTS: dict[str, Callable[[], Iterator[Line]]] = {f.__name__: f for f in _ALL}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--seconds", type=float, default=600.0)
    options = parser.parse_args()
    begin = time.perf_counter()
    for name in options.only.split(","):
        if time.perf_counter() - begin > options.seconds:
            print(f"{name}: not begun, the time is over", flush=True)
            continue
        for line in PARTS[name]():
            text = json.dumps({**line, "t": round(time.perf_counter() - begin, 1)})
            if options.out:
                with options.out.open("a") as file:
                    file.write(text + "\n")
            shown = {key: value for key, value in line.items() if key != "all"}
            print(json.dumps(shown), flush=True)


if __name__ == "__main__":
    main()
