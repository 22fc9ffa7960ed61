"""The end of a product whose sums are cut into parts, each computed by another program."""

from __future__ import annotations

import triton.language as tl

from quire.backends.triton.jit import part


@part
def finish(
    acc: tl.tensor,
    parts: tl.tensor,
    arrived: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    row: tl.tensor,
    own: tl.tensor,
    num_rows: tl.tensor,
    OUTER: tl.constexpr,
    SPLITS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
) -> None:
    """Store the sums [rows, lines] of program (tile, split, block). The last program of a tile adds
    up the parts, in their order, so bits do not depend on which is last. It resets the tile's
    counter to 0."""
    kept = (row < num_rows)[:, None] & (own < OUTER)[None, :]
    place = row.to(tl.int64)[:, None] * OUTER + own[None, :]
    is_last = True
    if SPLITS > 1:
        split = tl.program_id(1).to(tl.int64)
        size = num_rows.to(tl.int64) * OUTER
        tl.store(parts + split * size + place, acc, mask=kept)
        tl.debug_barrier()  # all of the program's threads have stored before it counts as done
        counter = arrived + tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
        is_last = tl.atomic_add(counter, 1, sem="acq_rel") == SPLITS - 1
        if is_last:
            tl.debug_barrier()
            acc = tl.load(parts + place, mask=kept, other=0.0, cache_modifier=".cg")
            for i in range(1, SPLITS):
                acc += tl.load(parts + i * size + place, mask=kept, other=0.0, cache_modifier=".cg")
            tl.atomic_xchg(counter, 0)
    if is_last:
        if HAS_BIAS:
            line = tl.minimum(own, OUTER - 1)
            acc += tl.load(bias + line).to(tl.float32)[None, :]
        tl.store(out + place, acc.to(out.dtype.element_ty), mask=kept)
