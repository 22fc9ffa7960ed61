"""Stored tensors -> the named weights of a model (names.py has the names), packed as it wants them.

Everything is checked first: that each weight is there, with its shape, in a format we read.
Then the files are read piece by piece straight into the final tensors, so that memory holds the
weights once and a few MB more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.errors import CorruptModel, NotEnoughMemory, UnsupportedModel
from quire.kernels.cpu.int8 import Int8Arithmetic, Int8Matrix
from quire.notes import note
from quire.spec import ModelSpec
from quire.weights.dequantise import PLAIN, dequantise_into
from quire.weights.formats import READABLE, StorageFormat, StoredTensor
from quire.weights.names import Part, Weight, weights_of
from quire.weights.source import ModelFiles

# Bytes read and weights unpacked at a time. On a CPU a piece stays below the 32,768 numbers from
# which torch splits an operation among its threads: ours, one tensor each, need no barriers, and
# barriers are what hurts on a busy machine.
_CPU_READ, _CPU_PIECE, _DEVICE_READ = 1 << 20, 127 * 256, 1 << 26
_IGNORED = ("rotary_emb.inv_freq", "rope_freqs.weight")


def load_weights(
    files: ModelFiles, spec: ModelSpec, *, dtype: torch.dtype, device: torch.device | str
) -> dict[str, Tensor]:
    """The weights of a model in `dtype` on `device`, by quire's names."""
    tensors: dict[str, Tensor] = {}

    def fill(weight: Weight, start: Start) -> None:
        tensors[weight.name] = out = torch.empty(weight.shape, dtype=dtype, device=device)
        start(lambda first, rows, source, heads: _fill(out[first : first + rows], source, heads))

    _fill_all(files, spec, dtype, torch.device(device), fill)
    return tensors


def load_int8_weights(
    files: ModelFiles, spec: ModelSpec, arithmetic: Int8Arithmetic
) -> dict[str, Tensor | Int8Matrix]:
    """The same for 8-bit arithmetic on a CPU: matrices in bytes, vectors in float32.

    Rows are unpacked, turned and rounded a few at a time: the wide matrix never exists."""
    weights: dict[str, Tensor | Int8Matrix] = {}

    def fill(weight: Weight, start: Start) -> None:
        if len(weight.shape) == 2:
            matrix = Int8Matrix.empty((weight.shape[0], weight.shape[1]), arithmetic)
            weights[weight.name] = matrix
            start(lambda *where: _fill_int8(matrix, *where))
            return
        weights[weight.name] = out = torch.empty(weight.shape)
        start(lambda first, rows, source, heads: _fill(out[first : first + rows], source, heads))

    _fill_all(files, spec, torch.int8, torch.device("cpu"), fill)
    return weights


# Fills rows first .. first + rows from a stored tensor whose rows are rearranged by `heads`.
FillRows = Callable[[int, int, StoredTensor, int], None]
Start = Callable[[FillRows], None]


def _fill_all(
    files: ModelFiles,
    spec: ModelSpec,
    dtype: torch.dtype,
    device: torch.device,
    fill: Callable[[Weight, Start], None],
) -> None:
    """Check every weight, then let `fill` make room for each and start to fill it, in threads."""
    stored = files.stored_tensors()
    plan = [(weight, _sources(weight, stored, files)) for weight in weights_of(spec)]
    _note_unused(plan, stored, spec)
    _check_memory([weight for weight, _ in plan], dtype, device)
    # Only llama.cpp's converter for its "llama" architecture rearranges rows, for its own RoPE.
    rearranged = files.kind == "gguf" and files.gguf.metadata["general.architecture"] == "llama"
    pool = ThreadPoolExecutor(_num_threads(device), "quire-load")
    try:
        filling: list[Future[None]] = []
        for weight, sources in plan:

            def start(
                rows: FillRows, weight: Weight = weight, sources: list[StoredTensor] = sources
            ) -> None:
                first = 0
                for part, source in zip(weight.parts, sources, strict=True):
                    heads = part.heads if rearranged else 0
                    filling.append(pool.submit(rows, first, part.rows, source, heads))
                    first += part.rows

            fill(weight, start)
        for done in filling:
            done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def dummy_weights(
    spec: ModelSpec, *, dtype: torch.dtype, device: torch.device | str, seed: int = 0
) -> dict[str, Tensor]:
    """Random weights of the right shapes: norms 1, everything else normal with deviation 0.02."""
    _check_memory(list(weights_of(spec)), dtype, torch.device(device))
    return dict(_dummies(spec, dtype, device, seed))


def dummy_int8_weights(
    spec: ModelSpec, arithmetic: Int8Arithmetic, *, seed: int = 0
) -> dict[str, Tensor | Int8Matrix]:
    """The same, each matrix rounded to bytes before the next is made."""
    _check_memory(list(weights_of(spec)), torch.int8, torch.device("cpu"))
    return {
        name: Int8Matrix.of(weight, arithmetic) if weight.dim() == 2 else weight
        for name, weight in _dummies(spec, torch.float32, "cpu", seed)
    }


def _dummies(
    spec: ModelSpec, dtype: torch.dtype, device: torch.device | str, seed: int
) -> Iterator[tuple[str, Tensor]]:
    generator = torch.Generator(device=device).manual_seed(seed)
    for weight in weights_of(spec):
        out = torch.empty(weight.shape, dtype=dtype, device=device)
        if weight.name.endswith("norm.weight"):
            out.fill_(1.0)
        else:
            out.normal_(0.0, 0.02, generator=generator)
        yield weight.name, out


def _sources(
    weight: Weight, stored: Mapping[str, StoredTensor], files: ModelFiles
) -> list[StoredTensor]:
    found = []
    for part in weight.parts:
        name = _stored_name(part, stored, files)
        if name not in stored:
            raise CorruptModel(f"{files.path}: tensor {name!r} is missing")
        source, expected = stored[name], (part.rows, *weight.shape[1:])
        if source.shape != expected:
            raise CorruptModel(
                f"{files.path}: tensor {name!r} has the shape {source.shape}; "
                f"the model's config asks for {expected}"
            )
        if source.format.name not in READABLE:
            raise UnsupportedModel(
                f"{files.path}: tensor {name!r} is stored as {source.format.name}; "
                f"quire reads {', '.join(PLAIN)} from safetensors"
            )
        found.append(source)
    return found


def _stored_name(part: Part, stored: Mapping[str, StoredTensor], files: ModelFiles) -> str:
    if files.kind == "gguf":
        return part.gguf
    # A checkpoint of the bare model, without its head, leaves the prefix out.
    bare = part.hf.removeprefix("model.")
    return bare if bare in stored else part.hf


def _note_unused(
    plan: list[tuple[Weight, list[StoredTensor]]],
    stored: Mapping[str, StoredTensor],
    spec: ModelSpec,
) -> None:
    used = {source.name for _, sources in plan for source in sources}
    ignored = (*_IGNORED, "lm_head.weight") if spec.tied_embeddings else _IGNORED
    unused = [name for name in stored if name not in used and not name.endswith(ignored)]
    if unused:
        names = ", ".join(sorted(unused)[:3]) + (", ..." if len(unused) > 3 else "")
        note(f"{len(unused)} tensors of the model's files are not used: {names}")


def _check_memory(weights: list[Weight], dtype: torch.dtype, device: torch.device) -> None:
    needed = sum(torch.Size(weight.shape).numel() for weight in weights) * dtype.itemsize
    available = _available(device)
    if available is not None and needed > available:
        raise NotEnoughMemory(
            f"the weights take {needed / 1e9:.1f} GB in {str(dtype).removeprefix('torch.')}, "
            f"{available / 1e9:.1f} GB are free on {device}. "
            "A 16-bit dtype or a smaller model takes less."
        )


def _available(device: torch.device) -> int | None:
    """Free bytes of a device, None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    meminfo = Path("/proc/meminfo")
    if device.type != "cpu" or not meminfo.exists():
        return None
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    kilobytes = lines.get("MemAvailable", "").split()
    return int(kilobytes[0]) * 1024 if kilobytes else None


def _num_threads(device: torch.device) -> int:
    return min(torch.get_num_threads(), 8) if device.type == "cpu" else 1


def _fill(out: Tensor, source: StoredTensor, heads: int) -> None:
    """Unpack a stored tensor into `out`; with `heads`, put rearranged rows back in order."""
    on_cpu = out.device.type == "cpu"
    if not heads and on_cpu and PLAIN.get(source.format.name) == out.dtype:
        with source.path.open("rb", buffering=0) as file:
            file.seek(source.offset)
            _read_exactly(file, out.view(-1).view(torch.uint8).numpy(), source)
        return
    read_size, piece = (_CPU_READ, _CPU_PIECE) if on_cpu else (_DEVICE_READ, _DEVICE_READ)
    for first, count, raw in _stored_rows(source, out.shape[0], heads, read_size):
        part = out[first : first + count].view(-1)
        _unpack(part, raw.to(out.device), source.format, piece)


def _fill_int8(
    matrix: Int8Matrix, first_row: int, num_rows: int, source: StoredTensor, heads: int
) -> None:
    """Unpack a stored tensor into rows of a matrix of bytes."""
    for first, count, raw in _stored_rows(source, num_rows, heads, _CPU_READ):
        wide = torch.empty(count, matrix.shape[1])
        _unpack(wide.view(-1), raw, source.format, _CPU_PIECE)
        matrix.pack(wide, first_row + first)


def _stored_rows(
    source: StoredTensor, num_rows: int, heads: int, read_size: int
) -> Iterator[tuple[int, int, Tensor]]:
    """Read about `read_size` bytes at a time: (first row, number of rows, their bytes in order)."""
    unit = num_rows // heads if heads else 1  # rows that must be read together
    rows = max(read_size // (source.row_bytes * unit), 1) * unit
    with source.path.open("rb", buffering=0) as file:
        file.seek(source.offset)
        for first in range(0, num_rows, rows):
            count = min(rows, num_rows - first)
            read = np.empty(count * source.row_bytes, np.uint8)
            _read_exactly(file, read, source)
            raw = torch.from_numpy(read)
            yield first, count, _in_order(raw, unit, source.row_bytes) if heads else raw


def _unpack(out: Tensor, raw: Tensor, format: StorageFormat, piece: int) -> None:
    """Dequantise `piece` weights at a time, a multiple of every format's block."""
    for first in range(0, out.numel(), piece):
        weights = out[first : first + piece]
        start = first // format.block * format.block_bytes
        num_bytes = weights.numel() // format.block * format.block_bytes
        dequantise_into(weights, raw[start : start + num_bytes], format.name)


def _in_order(raw: Tensor, rows_per_head: int, row_bytes: int) -> Tensor:
    """Undo the interleaving of a head's two halves: rows [0 4 1 5 2 6 3 7] -> [0 1 2 3 4 5 6 7]."""
    pairs = raw.view(-1, rows_per_head // 2, 2, row_bytes)
    return pairs.transpose(1, 2).contiguous().view(-1)


def _read_exactly(file: BinaryIO, into: npt.NDArray[np.uint8], source: StoredTensor) -> None:
    view = into.data
    while view:
        count = file.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise CorruptModel(
                f"{source.path}: the file ended inside tensor {source.name!r}; it was cut short "
                "while it was read"
            )
        view = view[count:]
