"""Stored tensors -> the named weights of a model (names.py has the names), packed as it wants them.

Everything is checked first: that each weight is there, with its shape, in a format we read.
Then the files are read piece by piece straight into the final tensors, so that memory holds the
weights once and a few MB more.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.errors import CorruptModel, NotEnoughMemory, UnsupportedModel
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
    stored = files.stored_tensors()
    plan = [(weight, _sources(weight, stored, files)) for weight in weights_of(spec)]
    _note_unused(plan, stored, spec)
    _check_memory([weight for weight, _ in plan], dtype, torch.device(device))
    # Only llama.cpp's converter for its "llama" architecture rearranges rows, for its own RoPE.
    rearranged = files.kind == "gguf" and files.gguf.metadata["general.architecture"] == "llama"
    tensors = {}
    pool = ThreadPoolExecutor(_num_threads(torch.device(device)), "quire-load")
    try:
        filling = []
        for weight, sources in plan:
            tensors[weight.name] = out = torch.empty(weight.shape, dtype=dtype, device=device)
            first = 0
            for part, source in zip(weight.parts, sources, strict=True):
                rows, heads = out[first : first + part.rows], part.heads if rearranged else 0
                filling.append(pool.submit(_fill, rows, source, heads))
                first += part.rows
        for done in filling:
            done.result()
    finally:
        pool.shutdown(cancel_futures=True)
    return tensors


def dummy_weights(
    spec: ModelSpec, *, dtype: torch.dtype, device: torch.device | str, seed: int = 0
) -> dict[str, Tensor]:
    """Random weights of the right shapes: norms 1, everything else normal with deviation 0.02."""
    weights = list(weights_of(spec))
    _check_memory(weights, dtype, torch.device(device))
    generator = torch.Generator(device=device).manual_seed(seed)
    tensors = {}
    for weight in weights:
        out = torch.empty(weight.shape, dtype=dtype, device=device)
        if weight.name.endswith("norm.weight"):
            out.fill_(1.0)
        else:
            out.normal_(0.0, 0.02, generator=generator)
        tensors[weight.name] = out
    return tensors


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
    read_size, piece = (_CPU_READ, _CPU_PIECE) if on_cpu else (_DEVICE_READ, _DEVICE_READ)
    with source.path.open("rb", buffering=0) as file:
        file.seek(source.offset)
        if not heads and on_cpu and PLAIN.get(source.format.name) == out.dtype:
            _read_exactly(file, out.view(-1).view(torch.uint8).numpy(), source)
            return
        unit = out.shape[0] // heads if heads else 1  # rows that must be read together
        rows = max(read_size // (source.row_bytes * unit), 1) * unit
        for first in range(0, out.shape[0], rows):
            part = out[first : first + rows]
            raw = np.empty(part.shape[0] * source.row_bytes, np.uint8)
            _read_exactly(file, raw, source)
            stored = torch.from_numpy(raw).to(out.device)
            if heads:
                stored = _in_order(stored, unit, source.row_bytes)
            _unpack(part.view(-1), stored, source.format, piece)


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
