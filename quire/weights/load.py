"""Stored tensors -> the named weights of a model (names.py has the names), packed as it wants them.

Everything is checked first: that each weight is there, with its shape, in a format we read.
Then the files are read piece by piece straight into the final tensors, so that memory holds the
weights once and a few MB more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from quire.backends.cpu.int8 import Int8Arithmetic, Int8Matrix
from quire.backends.fp8 import FP8, MULTIPLE, Fp8Matrix
from quire.base.notes import note
from quire.errors import CorruptModel, NotEnoughMemory, UnsupportedModel
from quire.layers.linear import Matrix
from quire.spec import ModelSpec
from quire.weights.dequantise import PLAIN
from quire.weights.formats import READABLE, StoredTensor
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
_ROUNDED_READ = 1 << 24  # rounding takes room for several copies in float32
_IGNORED = (
    *("rotary_emb.inv_freq", "rope_freqs.weight"),
    *("rope_factors_long.weight", "rope_factors_short.weight"),
)


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
        tensors[weight.name] = out = torch.empty(weight.shape, dtype=dtype, device=device)
        start(lambda first, rows, source, order: _fill(out[first : first + rows], source, order))

    _fill_all(files, spec, dtype, torch.device(device), fill, only)
    return tensors


def load_int8_weights(
    files: ModelFiles, spec: ModelSpec, arithmetic: Int8Arithmetic
) -> dict[str, Matrix]:
    """The same for 8-bit arithmetic on a CPU: matrices in bytes, vectors in float32.

    Rows are unpacked, turned and rounded a few at a time: the wide matrix never exists."""
    weights: dict[str, Matrix] = {}

    def fill(weight: Weight, start: Start) -> None:
        if len(weight.shape) == 2:
            matrix = Int8Matrix.empty((weight.shape[0], weight.shape[1]), arithmetic)
            weights[weight.name] = matrix
            start(lambda *where: _fill_int8(matrix, *where))
            return
        weights[weight.name] = out = torch.empty(weight.shape)
        start(lambda first, rows, source, order: _fill(out[first : first + rows], source, order))

    _fill_all(files, spec, torch.int8, torch.device("cpu"), fill)
    return weights


def load_fp8_weights(
    files: ModelFiles, spec: ModelSpec, *, device: torch.device | str
) -> dict[str, Matrix]:
    """The same with the matrices of the layers in fp8, the rest in bfloat16.

    Rows are unpacked as float32 and rounded a few at a time: the wide matrix never exists."""
    weights: dict[str, Matrix] = {}

    def fill(weight: Weight, start: Start) -> None:
        if is_rounded(weight):
            matrix = Fp8Matrix.empty((weight.shape[0], weight.shape[1]), device)
            weights[weight.name] = matrix
            start(lambda *where: _fill_fp8(matrix, *where))
            return
        out = torch.empty(weight.shape, dtype=torch.bfloat16, device=device)
        weights[weight.name] = out
        start(lambda first, rows, source, order: _fill(out[first : first + rows], source, order))

    _fill_all(files, spec, FP8, torch.device(device), fill)
    _note_unrounded(spec)
    return weights


def is_rounded(weight: Weight) -> bool:
    """Whether fp8 keeps this weight: a matrix of a layer, of a shape that torch multiplies."""
    return weight.name.startswith("layers.") and Fp8Matrix.fits(weight.shape)


# Fills rows first .. first + rows from a stored tensor whose rows are in that order.
FillRows = Callable[[int, int, StoredTensor, RowOrder | None], None]
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
    plan = [(weight, _sources(weight, stored, files)) for weight in wanted]
    if only is None:
        _check_unused(plan, stored, spec, files)
    _check_memory([weight for weight, _ in plan], dtype, device)
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
                    filling.append(pool.submit(rows, first, part.rows, source, order))
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
    plan = [(weight, _sources(weight, stored, files)) for weight in weights_of(spec)]
    for weight, sources in plan:
        for part, source in zip(weight.parts, sources, strict=True):
            out = torch.empty(part.rows, *weight.shape[1:])
            _fill(out, source, _given_order(part, files))
            yield part.hf, out


def _given_order(part: Part, files: ModelFiles) -> RowOrder | None:
    """How the rows of Hugging Face stand in these files."""
    return part.gguf_order if files.kind == "gguf" else None


def dummy_weights(
    spec: ModelSpec, *, dtype: torch.dtype, device: torch.device | str, seed: int = 0
) -> dict[str, Tensor]:
    """Random weights of the right shapes: norms 1, everything else normal with deviation 0.02."""
    _check_memory(list(weights_of(spec)), dtype, torch.device(device))
    return dict(_dummies(spec, dtype, device, seed))


def dummy_int8_weights(
    spec: ModelSpec, arithmetic: Int8Arithmetic, *, seed: int = 0
) -> dict[str, Matrix]:
    """The same, each matrix rounded to bytes before the next is made."""
    _check_memory(list(weights_of(spec)), torch.int8, torch.device("cpu"))
    return {
        name: Int8Matrix.of(weight, arithmetic) if weight.dim() == 2 else weight
        for name, weight in _dummies(spec, torch.float32, "cpu", seed)
    }


def dummy_fp8_weights(
    spec: ModelSpec, *, device: torch.device | str, seed: int = 0
) -> dict[str, Matrix]:
    """Dummy weights in bfloat16, the matrices of the layers rounded one after the other."""
    _check_memory(list(weights_of(spec)), FP8, torch.device(device))
    _note_unrounded(spec)
    rounded = {weight.name for weight in weights_of(spec) if is_rounded(weight)}
    return {
        name: Fp8Matrix.of(weight) if name in rounded else weight
        for name, weight in _dummies(spec, torch.bfloat16, device, seed)
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


def _check_unused(
    plan: list[tuple[Weight, list[StoredTensor]]],
    stored: Mapping[str, StoredTensor],
    spec: ModelSpec,
    files: ModelFiles,
) -> None:
    """Say which tensors nothing was made of. In a layer of a GGUF file there are no such: they are
    a part that the model has and quire does not know."""
    used = {source.name for _, sources in plan for source in sources}
    ignored = (*_IGNORED, "lm_head.weight") if spec.tied_embeddings else _IGNORED
    unused = [name for name in stored if name not in used and not name.endswith(ignored)]
    if not unused:
        return
    names = ", ".join(sorted(unused)[:3]) + (", ..." if len(unused) > 3 else "")
    if files.kind == "gguf" and any(name.startswith("blk.") for name in unused):
        raise UnsupportedModel(
            f"{files.path}: {len(unused)} tensors that quire has no part for: {names}. It is "
            "another model than its architecture says."
        )
    note(f"{len(unused)} tensors of the model's files are not used: {names}")


def _check_memory(weights: list[Weight], dtype: torch.dtype, device: torch.device) -> None:
    needed = sum(math.prod(weight.shape) * _itemsize(weight, dtype) for weight in weights)
    available = _available(device)
    if available is not None and needed > available:
        raise NotEnoughMemory(
            f"the weights take {needed / 1e9:.1f} GB in {str(dtype).removeprefix('torch.')}, "
            f"{available / 1e9:.1f} GB are free on {device}. "
            "A 16-bit dtype or a smaller model takes less."
        )


def _itemsize(weight: Weight, dtype: torch.dtype) -> int:
    return torch.bfloat16.itemsize if dtype == FP8 and not is_rounded(weight) else dtype.itemsize


def _note_unrounded(spec: ModelSpec) -> None:
    """Say which matrices torch does not multiply in fp8."""
    layers = (w for w in weights_of(spec) if w.name.startswith("layers.") and len(w.shape) == 2)
    if left := [f"{w.name} {list(w.shape)}" for w in layers if not is_rounded(w)]:
        note(
            f"fp8: {len(left)} matrices stay in bfloat16, since their sizes are not multiples of "
            f"{MULTIPLE}; the first is {left[0]}"
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


def _fill(out: Tensor, source: StoredTensor, order: RowOrder | None) -> None:
    """Unpack a stored tensor into `out`, its rows put in order."""
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
    matrix: Int8Matrix, first_row: int, num_rows: int, source: StoredTensor, order: RowOrder | None
) -> None:
    """Unpack a stored tensor into rows of a matrix of bytes."""
    for first, count, raw in stored_rows(source, num_rows, order, _CPU_READ):
        wide = torch.empty(count, matrix.shape[1])
        unpack(wide.view(-1), raw, source.format, _CPU_PIECE)
        matrix.pack(wide, first_row + first)


def _fill_fp8(
    matrix: Fp8Matrix, first_row: int, num_rows: int, source: StoredTensor, order: RowOrder | None
) -> None:
    """Unpack a stored tensor into rows of a matrix in fp8."""
    pinned = torch.device(matrix.device).type == "cuda"
    rows = stored_rows(source, num_rows, order, _ROUNDED_READ, pinned=pinned)
    for first, count, raw in rows:
        wide = torch.empty(count, matrix.shape[1], device=matrix.device)
        on_device = raw.to(matrix.device, non_blocking=True)
        unpack(wide.view(-1), on_device, source.format, _DEVICE_READ)
        matrix.pack(wide, first_row + first)
