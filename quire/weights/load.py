"""Stored tensors -> the named weights of a model (names in names.py), packed as the model needs
them.

Everything is checked first: each weight is there, with its shape, in a format that quire reads.
Then the files are read piece by piece straight into the final tensors, so that memory holds the
weights once, and a few MB more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from quire.backends.cpu.int8 import Int8Arithmetic, Int8Matrix
from quire.layers.linear import Matrix
from quire.ranks.shares import ALONE, RankShare
from quire.spec import ModelSpec
from quire.weights.checks import check_memory, check_merged, check_unused, sources_of
from quire.weights.cuts import Cut, Piece, cut_of, pieces_of
from quire.weights.dequantise import PLAIN
from quire.weights.formats import StoredTensor
from quire.weights.names import weights_of
from quire.weights.parts import Part, Weight
from quire.weights.quantised.stored import Source, StoredMatrix
from quire.weights.quantised.unpack import dequantised_rows
from quire.weights.read_rows import read_exactly, stored_rows, turned_blocks, unpack
from quire.weights.row_order import RowOrder
from quire.weights.source import ModelFiles

# Bytes read and weights unpacked at a time. On a CPU a piece stays below the 32,768 numbers from
# which torch divides an operation among its threads. Our own threads, one for each tensor, need no
# barriers, which are slow on a busy machine.
_CPU_READ, _CPU_PIECE = 1 << 20, 127 * 256
# For a GPU: pieces that a few threads copy at once, from pinned memory.
_DEVICE_READ = 1 << 23


def load_weights(
    files: ModelFiles,
    spec: ModelSpec,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    only: Collection[str] | None = None,
    share: RankShare = ALONE,
) -> dict[str, Tensor]:
    """The weights of a model in `dtype` on `device`, by quire's names. `only`: only those named.
    `share`: one rank's share of each."""
    tensors: dict[str, Tensor] = {}

    def fill(weight: Weight, pieces: Pieces) -> None:
        tensors[weight.name] = pieces.fill_plain(weight, dtype, device)

    fill_all(files, spec, dtype, torch.device(device), fill, only, share)
    return tensors


def load_int8_weights(
    files: ModelFiles, spec: ModelSpec, arithmetic: Int8Arithmetic, share: RankShare = ALONE
) -> dict[str, Matrix]:
    """The weights of a model for 8-bit arithmetic on a CPU: matrices in bytes, vectors in float32.

    Rows are unpacked, transformed and rounded a few at a time: the float matrix never exists as a
    whole."""
    weights: dict[str, Matrix] = {}

    def fill(weight: Weight, pieces: Pieces) -> None:
        if weight.is_matrix:
            matrix = Int8Matrix.empty((weight.shape[0], weight.shape[1]), arithmetic)
            weights[weight.name] = matrix
            pieces.start(partial(_fill_int8, matrix))
        else:
            weights[weight.name] = pieces.fill_plain(weight, torch.float32, "cpu")

    fill_all(files, spec, torch.int8, torch.device("cpu"), fill, share=share)
    return weights


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces that fill a weight. `start` fills them in, in threads. Rows that no piece fills
    are zeros."""

    all: Sequence[Piece]
    has_zeros: bool
    pool: ThreadPoolExecutor
    filling: list[Future[None]]

    def start(self, fill: Callable[[Piece], None]) -> None:
        self.filling.extend(self.pool.submit(fill, piece) for piece in self.all)

    def fill_plain(self, weight: Weight, dtype: torch.dtype, device: torch.device | str) -> Tensor:
        """A tensor in `dtype` for a weight, which threads begin to fill."""
        kept = torch.float32 if weight.is_wide else dtype
        make = torch.zeros if self.has_zeros else torch.empty
        out = make(weight.shape, dtype=kept, device=device)
        self.start(lambda piece: fill_rows(out[piece.first : piece.first + piece.rows], piece))
        return out


def fill_all(
    files: ModelFiles,
    spec: ModelSpec,
    dtype: torch.dtype,
    device: torch.device,
    fill: Callable[[Weight, Pieces], None],
    only: Collection[str] | None = None,
    share: RankShare = ALONE,
    kept: Callable[[Weight, Sequence[Source]], bool] = lambda weight, sources: False,
) -> None:
    """Check every weight, then let `fill` allocate each and begin to fill it, in threads. `kept`:
    whether a weight stays as in its files, and so takes as much memory."""
    stored = files.stored_tensors()
    check_merged(stored, files)
    wanted = [w for w in rank_weights(spec, share) if only is None or w.name in only]
    plan = [(weight, sources_of(weight, stored, files)) for weight in wanted]
    if only is None:
        check_unused(plan, stored, spec, files)
    cuts = [cut_of(weight, spec, share) for weight in wanted]
    own = [replace(w, shape=cut.shape(w.shape)) for w, cut in zip(wanted, cuts, strict=True)]
    stay = [kept(weight, sources) for weight, sources in plan]
    check_memory(
        [weight for weight, stays in zip(own, stay, strict=True) if not stays],
        dtype,
        device,
        beside=_kept_bytes(plan, stay, own),
    )
    pool = ThreadPoolExecutor(min(torch.get_num_threads(), 8), "quire-load")
    try:
        filling: list[Future[None]] = []
        for (weight, sources), cut, mine in zip(plan, cuts, own, strict=True):
            pieces = tuple(pieces_of(_stored_pieces(weight, sources, files), cut))
            fill(mine, Pieces(pieces, cut.has_zeros or weight.has_zeros, pool, filling))
        for done in filling:
            done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _kept_bytes(
    plan: Sequence[tuple[Weight, Sequence[Source]]], stay: Sequence[bool], own: Sequence[Weight]
) -> int:
    """Bytes of the weights that stay as in their files, for this rank's share."""
    total = 0
    for (weight, sources), stays, mine in zip(plan, stay, own, strict=True):
        share = math.prod(mine.shape) / math.prod(weight.shape)
        total += int(share * sum(source.num_bytes for source in sources)) if stays else 0
    return total


def rank_weights(spec: ModelSpec, share: RankShare) -> Iterator[Weight]:
    """The weights of a model of which a rank has a share. With a tied embedding, every rank has the
    whole embedding, and its rows of the head as another weight."""
    for weight in weights_of(spec):
        yield weight
        if weight.name == "embed.weight" and spec.tied_embeddings and share.size > 1:
            yield replace(weight, name="head.weight")


def _stored_pieces(weight: Weight, sources: Sequence[Source], files: ModelFiles) -> Iterator[Piece]:
    """The pieces of a whole weight, as they are stored."""
    first = 0
    for part, source in zip(weight.parts, sources, strict=True):
        order = _given_order(part, files)
        if part.order is not None:
            order = part.order.after(order)
        less = part.hf_added if files.kind == "hf" else 0.0
        first += part.zeros
        is_minus_exp = part.gguf_minus_exp and files.kind == "gguf"
        yield Piece(first, part.rows, source, order, less, is_minus_exp=is_minus_exp)
        first += part.rows


def stored_weights(
    files: ModelFiles, spec: ModelSpec, *, only: Collection[str] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """(name in Hugging Face checkpoints, float32 tensor) of every stored tensor, or of `only` those
    named, one at a time: for replacing weights of a built model. All are checked before the first
    is read."""
    stored = files.stored_tensors()
    by_name: dict[str, list[tuple[Part, tuple[int, ...], Source]]] = {}
    for weight in weights_of(spec):
        for part, source in zip(weight.parts, sources_of(weight, stored, files), strict=True):
            if only is not None and part.hf not in only:
                continue
            piece = part, (part.rows, *weight.shape[1:]), source
            by_name.setdefault(part.hf, []).append(piece)
    for name, pieces in by_name.items():
        first, shape, _ = pieces[0]
        experts = 1 + max(part.hf_within.expert or 0 for part, _, _ in pieces)
        whole = torch.empty(first.hf_within.wholes(shape, experts)[0])
        for part, shape, source in pieces:
            out = torch.empty(shape)
            less = 0.0 if files.kind == "hf" else -part.hf_added
            minus_exp = part.gguf_minus_exp and files.kind == "gguf"
            order = _given_order(part, files)
            fill_rows(out, Piece(0, part.rows, source, order, less, is_minus_exp=minus_exp))
            part.hf_within.of_tensor(whole, part.rows).copy_(out)
        yield name, whole


def _given_order(part: Part, files: ModelFiles) -> RowOrder | None:
    """The order of Hugging Face's rows in these files."""
    return part.gguf_order if files.kind == "gguf" else None


def dummy_weights(
    spec: ModelSpec,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    seed: int = 0,
    share: RankShare = ALONE,
) -> dict[str, Tensor]:
    """Random weights of the right shapes: norms are 1, all others normal with deviation 0.02. A
    rank's share is cut from the same numbers."""
    if share.size == 1:
        check_memory(list(weights_of(spec)), dtype, torch.device(device))
    return dict(_dummies(spec, dtype, device, seed, share))


def dummy_int8_weights(
    spec: ModelSpec, arithmetic: Int8Arithmetic, *, seed: int = 0, share: RankShare = ALONE
) -> dict[str, Matrix]:
    """Random weights for 8-bit arithmetic; each matrix is rounded to bytes before the next is
    made."""
    check_memory(list(weights_of(spec)), torch.int8, torch.device("cpu"))
    in_bytes = {weight.name for weight in rank_weights(spec, share) if weight.is_matrix}
    return {
        name: Int8Matrix.of(weight, arithmetic) if name in in_bytes else weight
        for name, weight in _dummies(spec, torch.float32, "cpu", seed, share)
    }


def _dummies(
    spec: ModelSpec, dtype: torch.dtype, device: torch.device | str, seed: int, share: RankShare
) -> Iterator[tuple[str, Tensor]]:
    generator = torch.Generator(device=device).manual_seed(seed)
    out = torch.empty(0)
    for weight in rank_weights(spec, share):
        if weight.name != "head.weight" or not spec.tied_embeddings:  # else cut from the embedding
            out = dummy(weight, dtype, device, generator)
        yield weight.name, cut_tensor(out, cut_of(weight, spec, share))


def dummy(
    weight: Weight, dtype: torch.dtype, device: torch.device | str, generator: torch.Generator
) -> Tensor:
    kept = torch.float32 if weight.is_wide else dtype
    out = torch.empty(weight.shape, dtype=kept, device=device)
    if weight.name.endswith("norm.weight"):
        return out.fill_(1.0)
    return out.normal_(0.0, 0.02, generator=generator)


def cut_tensor(whole: Tensor, cut: Cut) -> Tensor:
    """A rank's share of a weight; the tensor itself if that is all of it."""
    shape = cut.shape(tuple(whole.shape))
    if shape == tuple(whole.shape) and not cut.has_zeros:
        return whole
    out, at = whole.new_zeros(shape), 0
    for rows in cut.rows:
        part = whole[rows.start : rows.stop]
        if cut.columns is not None:
            part = part[:, cut.columns.start : cut.columns.stop]
        out[at : at + len(rows)] = part
        at += len(rows)
    return out


def fill_rows(out: Tensor, piece: Piece) -> None:
    """Unpack rows of a stored tensor into `out`, in order, and apply the piece's changes."""
    source = piece.source
    if isinstance(source, StoredMatrix):
        for first, wide in dequantised_rows(source, piece.order, piece.columns, out):
            out[first : first + len(wide)] = wide
    else:
        _unpack_into(out, source, piece)
    if piece.added:
        out += piece.added
    if piece.is_minus_exp:
        out.neg_().log_()


def _unpack_into(out: Tensor, source: StoredTensor, piece: Piece) -> None:
    order, columns = piece.order, piece.columns
    if source.transposed and source.format.block > 1:
        out.copy_(turned_blocks(source))
        return
    on_cpu = out.device.type == "cpu"
    as_it_lies = (order, columns, source.scales) == (None, None, ()) and not source.is_scattered
    if as_it_lies and on_cpu and PLAIN.get(source.format.name) == out.dtype:
        with source.path.open("rb", buffering=0) as file:
            file.seek(source.offset)
            read_exactly(file, out.view(-1).view(torch.uint8).numpy(), source)
        return
    read_size, unit = (_CPU_READ, _CPU_PIECE) if on_cpu else (_DEVICE_READ, _DEVICE_READ)
    for first, count, raw in stored_rows(source, len(out), order, read_size, pinned=out.is_cuda):
        into = part = out[first : first + count]
        if columns is not None:  # whole rows, as a block may cross the cut
            into = out.new_empty(count, source.shape[1])
        unpack(into.view(-1), raw.to(out.device, non_blocking=True), source, unit)
        if columns is not None:
            part.copy_(into[:, columns.start : columns.stop])


def _fill_int8(matrix: Int8Matrix, piece: Piece) -> None:
    """Unpack rows of a stored tensor, and pack them into rows of a matrix of bytes."""
    source, columns = piece.source, piece.columns
    if isinstance(source, StoredMatrix):
        like = torch.empty(0, matrix.shape[1])
        for first, wide in dequantised_rows(source, piece.order, columns, like):
            matrix.pack(wide, piece.first + first)
        return
    for first, count, raw in stored_rows(source, piece.rows, piece.order, _CPU_READ):
        wide = torch.empty(count, source.shape[1])
        unpack(wide.view(-1), raw, source, _CPU_PIECE)
        if columns is not None:
            wide = wide[:, columns.start : columns.stop].contiguous()
        matrix.pack(wide + piece.added if piece.added else wide, piece.first + first)
