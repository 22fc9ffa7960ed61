"""Stored tensors -> the named weights of a model (names.py has the names), packed as it wants them.

Everything is checked first: that each weight is there, with its shape, in a format we read.
Then the files are read piece by piece straight into the final tensors, so that memory holds the
weights once and a few MB more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from quire.backends.cpu.int8 import Int8Arithmetic, Int8Matrix
from quire.layers.linear import Matrix
from quire.spec import ModelSpec
from quire.weights.checks import check_memory, check_unused, sources_of
from quire.weights.dequantise import PLAIN
from quire.weights.formats import StoredTensor
from quire.weights.names import Part, Weight, weights_of
from quire.weights.read_rows import read_exactly, stored_rows, unpack
from quire.weights.row_order import RowOrder
from quire.weights.source import ModelFiles

# Bytes read and weights unpacked at a time. On a CPU a piece stays below the 32,768 numbers from
# which torch splits an operation among its threads: ours, one tensor each, need no barriers, and
# barriers are what hurts on a busy machine.
_CPU_READ, _CPU_PIECE = 1 << 20, 127 * 256
# For a GPU: pieces that a few threads have on their way at once, from memory it can read itself.
_DEVICE_READ = 1 << 23


def load_weights(
    files: ModelFiles,
    spec: ModelSpec,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    only: Collection[str] | None = None,
) -> dict[str, Tensor]:
    """The weights of a model in `dtype` on `device`, by quire's names; `only` those named."""
    tensors: dict[str, Tensor] = {}

    def fill(weight: Weight, start: Start) -> None:
        kept = torch.float32 if weight.is_wide else dtype
        tensors[weight.name] = out = torch.empty(weight.shape, dtype=kept, device=device)
        start(lambda first, rows, *where: _fill(out[first : first + rows], *where))

    _fill_all(files, spec, dtype, torch.device(device), fill, only)
    return tensors


def load_int8_weights(
    files: ModelFiles, spec: ModelSpec, arithmetic: Int8Arithmetic
) -> dict[str, Matrix]:
    """The same for 8-bit arithmetic on a CPU: matrices in bytes, vectors in float32.

    Rows are unpacked, turned and rounded a few at a time: the wide matrix never exists."""
    weights: dict[str, Matrix] = {}

    def fill(weight: Weight, start: Start) -> None:
        if is_in_bytes(weight):
            matrix = Int8Matrix.empty((weight.shape[0], weight.shape[1]), arithmetic)
            weights[weight.name] = matrix
            start(lambda *where: _fill_int8(matrix, *where))
            return
        weights[weight.name] = out = torch.empty(weight.shape)
        start(lambda first, rows, *where: _fill(out[first : first + rows], *where))

    _fill_all(files, spec, torch.int8, torch.device("cpu"), fill)
    return weights


def is_in_bytes(weight: Weight) -> bool:
    """Whether 8-bit arithmetic keeps this weight: a matrix that is multiplied with."""
    return len(weight.shape) == 2 and not weight.is_wide


# Fills rows first .. first + rows from a stored tensor whose rows are in that order, and adds a
# number to each.
FillRows = Callable[[int, int, StoredTensor, RowOrder | None, float], None]
Start = Callable[[FillRows], None]


def _fill_all(
    files: ModelFiles,
    spec: ModelSpec,
    dtype: torch.dtype,
    device: torch.device,
    fill: Callable[[Weight, Start], None],
    only: Collection[str] | None = None,
) -> None:
    """Check every weight, then let `fill` make room for each and start to fill it, in threads."""
    stored = files.stored_tensors()
    wanted = [w for w in weights_of(spec) if only is None or w.name in only]
    plan = [(weight, sources_of(weight, stored, files)) for weight in wanted]
    if only is None:
        check_unused(plan, stored, spec, files)
    check_memory([weight for weight, _ in plan], dtype, device)
    pool = ThreadPoolExecutor(min(torch.get_num_threads(), 8), "quire-load")
    try:
        filling: list[Future[None]] = []
        for weight, sources in plan:

            def start(
                rows: FillRows, weight: Weight = weight, sources: list[StoredTensor] = sources
            ) -> None:
                first = 0
                for part, source in zip(weight.parts, sources, strict=True):
                    order = _given_order(part, files)
                    if part.order is not None:
                        order = part.order.after(order)
                    less = part.hf_less if files.kind == "hf" else 0.0
                    filling.append(pool.submit(rows, first, part.rows, source, order, less))
                    first += part.rows

            fill(weight, start)
        for done in filling:
            done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def stored_weights(files: ModelFiles, spec: ModelSpec) -> Iterator[tuple[str, Tensor]]:
    """(name in Hugging Face checkpoints, float32 tensor) of every stored tensor, one at a time: for
    a model that is built already. Each is checked before the first is read."""
    stored = files.stored_tensors()
    plan = [(weight, sources_of(weight, stored, files)) for weight in weights_of(spec)]
    for weight, sources in plan:
        for part, source in zip(weight.parts, sources, strict=True):
            out = torch.empty(part.rows, *weight.shape[1:])
            less = 0.0 if files.kind == "hf" else -part.hf_less
            _fill(out, source, _given_order(part, files), less)
            yield part.hf, out


def _given_order(part: Part, files: ModelFiles) -> RowOrder | None:
    """How the rows of Hugging Face stand in these files."""
    return part.gguf_order if files.kind == "gguf" else None


def dummy_weights(
    spec: ModelSpec, *, dtype: torch.dtype, device: torch.device | str, seed: int = 0
) -> dict[str, Tensor]:
    """Random weights of the right shapes: norms 1, everything else normal with deviation 0.02."""
    check_memory(list(weights_of(spec)), dtype, torch.device(device))
    return dict(_dummies(spec, dtype, device, seed))


def dummy_int8_weights(
    spec: ModelSpec, arithmetic: Int8Arithmetic, *, seed: int = 0
) -> dict[str, Matrix]:
    """The same, each matrix rounded to bytes before the next is made."""
    check_memory(list(weights_of(spec)), torch.int8, torch.device("cpu"))
    in_bytes = {weight.name for weight in weights_of(spec) if is_in_bytes(weight)}
    return {
        name: Int8Matrix.of(weight, arithmetic) if name in in_bytes else weight
        for name, weight in _dummies(spec, torch.float32, "cpu", seed)
    }


def _dummies(
    spec: ModelSpec, dtype: torch.dtype, device: torch.device | str, seed: int
) -> Iterator[tuple[str, Tensor]]:
    generator = torch.Generator(device=device).manual_seed(seed)
    for weight in weights_of(spec):
        kept = torch.float32 if weight.is_wide else dtype
        out = torch.empty(weight.shape, dtype=kept, device=device)
        if weight.name.endswith("norm.weight"):
            out.fill_(1.0)
        else:
            out.normal_(0.0, 0.02, generator=generator)
        yield weight.name, out


def _fill(out: Tensor, source: StoredTensor, order: RowOrder | None, added: float) -> None:
    """Unpack a stored tensor into `out`, its rows put in order and a number added to each."""
    _unpack_into(out, source, order)
    if added:
        out += added


def _unpack_into(out: Tensor, source: StoredTensor, order: RowOrder | None) -> None:
    on_cpu = out.device.type == "cpu"
    if order is None and on_cpu and PLAIN.get(source.format.name) == out.dtype:
        with source.path.open("rb", buffering=0) as file:
            file.seek(source.offset)
            read_exactly(file, out.view(-1).view(torch.uint8).numpy(), source)
        return
    read_size, piece = (_CPU_READ, _CPU_PIECE) if on_cpu else (_DEVICE_READ, _DEVICE_READ)
    for first, count, raw in stored_rows(source, len(out), order, read_size, pinned=out.is_cuda):
        part = out[first : first + count].view(-1)
        unpack(part, raw.to(out.device, non_blocking=True), source.format, piece)


def _fill_int8(
    matrix: Int8Matrix,
    first_row: int,
    num_rows: int,
    source: StoredTensor,
    order: RowOrder | None,
    added: float,
) -> None:
    """Unpack a stored tensor into rows of a matrix of bytes."""
    for first, count, raw in stored_rows(source, num_rows, order, _CPU_READ):
        wide = torch.empty(count, matrix.shape[1])
        unpack(wide.view(-1), raw, source.format, _CPU_PIECE)
        matrix.pack(wide + added if added else wide, first_row + first)
