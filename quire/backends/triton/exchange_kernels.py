"""Parts of several ranks, added up or joined through memory that every rank's GPU can read.

A program copies tiles of its rank's part into the rank's own buffer, signals the programs of the
same number on all ranks, waits for theirs, and reads the same tiles of all buffers. A tile always
belongs to the same program, for parts of any size, so only that program uses its places in the
buffers. Each program counts its exchanges: the count is the signal's value, and selects one of the
two halves of the buffers in turn. When a program writes to a half again, all others have begun the
exchange after the one that they read there, so they have finished reading it.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl

from quire.backends.triton.jit import kernel, part

TILE_BYTES = 8192
MOST_PROGRAMS = 64


@part
def _peer(pointers: tl.tensor, rank: tl.constexpr, like: tl.tensor) -> Any:
    """Entry `rank` of a list of addresses, as a pointer of the type of `like`."""
    return tl.load(pointers + rank).to(tl.pointer_type(like.dtype.element_ty))


@part
def _meet(
    signals: tl.tensor,
    own: tl.tensor,
    program: tl.tensor,
    count: tl.tensor,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
) -> None:
    """Signal the programs of this number on all ranks that this one is at `count`, and wait until
    they are. Counts wrap around, so differences are compared."""
    tl.debug_barrier()  # all threads' writes come before the signal
    for rank in tl.static_range(SIZE):
        if rank != RANK:
            there = _peer(signals, rank, own) + program * SIZE + RANK
            tl.atomic_xchg(there, count, sem="release", scope="sys")
    for rank in tl.static_range(SIZE):
        if rank != RANK:
            here = own + program * SIZE + rank
            while tl.atomic_add(here, 0, sem="acquire", scope="sys") - count < 0:
                pass
    tl.debug_barrier()  # and all threads' reads come after it


@kernel("numel")
def exchange_kernel(
    given: tl.tensor,
    made: tl.tensor,
    buffers: tl.tensor,
    signals: tl.tensor,
    own_signals: tl.tensor,
    counts: tl.tensor,
    numel: tl.tensor,
    half: tl.tensor,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
    PROGRAMS: tl.constexpr,
    ADDS: tl.constexpr,
) -> None:
    """made [numel] = the sum of every rank's `given` [numel] in the order of ranks, in float32,
    rounded once; or, unless it ADDS, made [SIZE, numel] = all of them. `buffers` and `signals` are
    lists of addresses, one of each rank; `half` numbers lie in one half of a buffer."""
    program = tl.program_id(0)
    count = tl.load(counts + program) + 1
    first = (count & 1) * half
    mine = _peer(buffers, RANK, given) + first
    inside = tl.arange(0, TILE)
    for tile in range(program, tl.cdiv(numel, TILE), PROGRAMS):
        at = tile * TILE + inside
        tl.store(mine + at, tl.load(given + at, mask=at < numel), mask=at < numel)
    _meet(signals, own_signals, program, count, RANK, SIZE)
    for tile in range(program, tl.cdiv(numel, TILE), PROGRAMS):
        at = tile * TILE + inside
        there = at < numel
        total = tl.zeros([TILE], tl.float32)
        for rank in tl.static_range(SIZE):
            theirs = _peer(buffers, rank, given) + first
            values = tl.load(theirs + at, mask=there, volatile=True)
            if ADDS:
                wide = values.to(tl.float32)
                total = wide if rank == 0 else total + wide
            else:
                tl.store(made + rank * numel.to(tl.int64) + at, values, mask=there)
        if ADDS:
            tl.store(made + at, total.to(made.dtype.element_ty), mask=there)
    tl.store(counts + program, count)
