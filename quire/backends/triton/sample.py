"""One token per line of logits, drawn on the device without sorting and without the host.

The order is the sampler's: temperature, min_p, top_k, top_p, Gumbel noise, the largest; greedy
lines (temperature 0) take the likeliest token. The noise is what quire.sampling.seeds defines,
bit for bit. Which tokens stay is what quire.sampling.truncation says, with two liberties: ties
are told by logits rather than by logits / temperature, and masses are float32 sums.
A line whose logits have NaN or +inf or are all -inf fails; its token is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import triton

from quire.backends.triton.draw_kernels import draw, pick
from quire.backends.triton.jit import power_of_two
from quire.backends.triton.truncate_kernels import find_limits

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_TOKENS = 4096  # of a tile: four lanes of 1,024, as the noise is laid out
_ROOM = 2048  # most tokens collected for a line
_LANES = 16384  # tokens loaded at once, to hide the latency of memory
_PROGRAMS = 1056  # programs wanted: eight on each of 132 cores
# Low bits that a dtype leaves zero in a float32: fewer steps for the search.
_UNUSED_BITS = {"torch.bfloat16": 16, "torch.float16": 13, "torch.float32": 0}


@dataclass(frozen=True, slots=True)
class SamplingColumns:
    """The sampling parameters of rows, on the device: one entry for each row."""

    temperature: Tensor  # float32, 0 = take the likeliest
    top_k: Tensor  # int32, 0 = off
    log_min_p: Tensor  # float32, log(min_p), -inf = off
    top_p: Tensor  # float64, 1 = off
    noise_key: Tensor  # int64, the 64 bits of the key
    sample: Tensor  # int32, the number of the sibling

    @staticmethod
    def greedy(num_rows: int, device: torch.device) -> SamplingColumns:
        """Columns with which every row takes the likeliest token."""
        import torch

        def column(value: float, dtype: torch.dtype) -> Tensor:
            return torch.full((num_rows,), value, dtype=dtype, device=device)

        return SamplingColumns(
            temperature=column(0.0, torch.float32),
            top_k=column(0, torch.int32),
            log_min_p=column(-torch.inf, torch.float32),
            top_p=column(1.0, torch.float64),
            noise_key=column(0, torch.int64),
            sample=column(0, torch.int32),
        )


class SampleBuffers:
    """The results of sampling up to `max_lines` lines: `tokens` int64, and `failed` uint8, which
    says why a line has no token; 0: it has one (steps/row_schema.py)."""

    def __init__(self, max_lines: int, vocab_size: int, device: torch.device) -> None:
        import torch

        self.vocab_size = vocab_size
        self.num_tiles = triton.cdiv(vocab_size, _TOKENS)
        self.tokens = torch.zeros(max_lines, dtype=torch.int64, device=device)
        self.failed = torch.zeros(max_lines, dtype=torch.uint8, device=device)
        # The best of each part of a line: score, token, and whether it is sound.
        size = (max_lines, self.num_tiles)
        self.scores = torch.empty(size, dtype=torch.float32, device=device)
        self.finalists = torch.empty(size, dtype=torch.int32, device=device)
        self.unsound = torch.empty(size, dtype=torch.int32, device=device)
        # A token stays if its logit is above least, or equal and its id not above last.
        self.least = torch.empty(max_lines, dtype=torch.float32, device=device)
        self.last = torch.empty(max_lines, dtype=torch.int32, device=device)
        # The likeliest tokens of a line, collected while its limits are searched.
        size = (max_lines, _ROOM)
        self.few = torch.empty(size, dtype=torch.float32, device=device)
        self.few_ids = torch.empty(size, dtype=torch.int32, device=device)
        self.num_few = torch.zeros(max_lines, dtype=torch.int32, device=device)


def truncate(logits: Tensor, rows: Tensor, columns: SamplingColumns, out: SampleBuffers) -> None:
    """Write the limits of each line to out.least and out.last; for -1 in rows: no limits."""
    find_limits[(logits.shape[0],)](
        *(logits, rows, columns.temperature, columns.top_k, columns.log_min_p, columns.top_p),
        *(out.least, out.last, out.few, out.few_ids, out.num_few),
        *(logits.stride(0), out.vocab_size),
        **limits_constants(logits.dtype),
    )


def limits_constants(dtype: torch.dtype) -> dict[str, int]:
    """The constants of `find_limits`."""
    return {"ROOM": _ROOM, "TILE": _LANES, "SHIFT": _UNUSED_BITS[str(dtype)], "num_warps": 16}


def sample(
    logits: Tensor,
    rows: Tensor,
    positions: Tensor,
    columns: SamplingColumns,
    out: SampleBuffers,
    *,
    truncated: bool,
    limited: Tensor | None = None,
) -> None:
    """Draw the next token of row rows[i] from logits[i] into out.tokens[i].

    logits [lines, vocab or more]; rows int32 [lines], -1 = no row (token 0, not failed); positions
    int32 [lines]: of the drawn token. Without `truncated`, top_k, top_p and min_p are ignored, and
    also where limited[i] is -1; elsewhere limited[i] is rows[i].
    """
    lines = logits.shape[0]
    limits = (out.least, out.last)
    if truncated:
        truncate(logits, rows if limited is None else limited, columns, out)
    splits = max(1, min(out.num_tiles, triton.cdiv(_PROGRAMS, lines)))
    draw[(lines, splits)](
        *(logits, rows, positions, columns.temperature, columns.noise_key, columns.sample),
        *(*limits, out.scores, out.finalists, out.unsound),
        *(logits.stride(0), out.vocab_size, out.num_tiles),
        TRUNCATED=truncated,
        num_warps=8,
    )
    pick[(lines,)](
        *(rows, out.scores, out.finalists, out.unsound, out.tokens, out.failed),
        *(splits, out.num_tiles),
        BLOCK=power_of_two(out.num_tiles),
        num_warps=1,
    )
