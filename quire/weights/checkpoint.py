"""Which tensors a directory of safetensors files has, and where their bytes are. No torch.

Only headers are read: a file's claims are checked against its size before anything is read or
allocated. Shards are named relative to the directory. A link may lead to another place inside it
or, as in a Hub cache, from snapshots/<commit>/ to the blobs beside it, and nowhere else.
"""

from __future__ import annotations

import math
import os
import stat
from pathlib import Path
from typing import Any

from quire.errors import CorruptModel, ModelNotFound, UnsupportedModel
from quire.weights.formats import SAFETENSORS_DTYPES, StoredTensor, check_no_overlap, num_bytes_of
from quire.weights.json_file import parse_object, read_json, refuse_pointer

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_HEADER = 8 << 20  # about 80,000 tensors in one file
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def stored_tensors(directory: Path) -> dict[str, StoredTensor]:
    if (directory / SINGLE).exists():
        return read_header(checked_file(directory, SINGLE))
    if (directory / INDEX).exists():
        return _indexed(directory)
    tensors: dict[str, StoredTensor] = {}
    for name in _loose_files(directory):
        for key, tensor in read_header(checked_file(directory, name)).items():
            if key in tensors:
                raise CorruptModel(f"tensor {key!r} is in {tensors[key].path.name} and in {name}")
            tensors[key] = tensor
    return tensors


def _indexed(directory: Path) -> dict[str, StoredTensor]:
    weight_map = read_json(checked_file(directory, INDEX)).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CorruptModel(f"{INDEX}: no weight_map from tensor names to files")
    for file in weight_map.values():
        if not isinstance(file, str):
            raise CorruptModel(f"{INDEX}: weight_map names a file {file!r}, which is not a string")
    headers = {
        name: read_header(checked_file(directory, name)) for name in sorted({*weight_map.values()})
    }
    # An index may name tensors that its files lack: the head of a tied model, layers that were cut
    # off. A tensor that the model needs is reported by name when it is read.
    return {key: headers[name][key] for key, name in weight_map.items() if key in headers[name]}


def _loose_files(directory: Path) -> list[str]:
    # consolidated.* is the same model again, with the names of another framework.
    names = sorted(os.listdir(directory))
    found = [n for n in names if n.endswith(".safetensors") and not n.startswith("consolidated")]
    if found:
        return found
    pickles = [n for n in names if n.endswith(PICKLES)]
    if pickles:
        raise UnsupportedModel(
            f"{directory}: weights only as {pickles[0]}, which can run code when it is loaded. "
            "Convert them to safetensors first: AutoModelForCausalLM.from_pretrained(...)"
            ".save_pretrained(...) in an environment you can lose."
        )
    if any(n.startswith("consolidated") for n in names):
        raise UnsupportedModel(
            f"{directory}: weights only as consolidated.*, in their makers' own format. Take the "
            f"model with {SINGLE} or {INDEX}."
        )
    raise ModelNotFound(f"{directory}: no {SINGLE}, no {INDEX} and no other safetensors file")


def checked_file(directory: Path, name: str) -> Path:
    """The path of a file of the model, which may be in a subfolder but not outside of the
    directory."""
    if {"", ".", ".."} & {*name.split("/")} or {"\\", "\0"} & {*name}:
        raise CorruptModel(f"{name[:200]!r} is not the name of a file in {directory}; refused")
    return check_inside(directory, directory / name)


def check_inside(directory: Path, path: Path) -> Path:
    """Return the path if it leads to a regular file of this model, and to no other place."""
    try:
        real = path.resolve(strict=True)
        mode = real.stat().st_mode
    except (OSError, RuntimeError) as error:
        raise CorruptModel(f"{path}: named by the model but not readable: {error}") from None
    home = directory.resolve()
    if not (real.is_relative_to(home) or real.is_relative_to(_blobs(home) or home)):
        raise CorruptModel(
            f"{path} is a link to {real}, outside of the model; refused. Copy the file, "
            "or give the directory that holds it."
        )
    if not stat.S_ISREG(mode):
        raise CorruptModel(f"{path} is not a regular file")
    if not os.access(real, os.R_OK):
        raise ModelNotFound(f"{path}: no permission to read it")
    return path


def _blobs(home: Path) -> Path | None:
    """The blobs of the Hub cache in which `home` is a snapshot, or a folder of one; or None."""
    above = (one for one in home.parents if one.name == "snapshots")
    return next((one.parent / "blobs" for one in above), None)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file, each claim checked against the file's size."""
    size = path.stat().st_size
    with path.open("rb") as file:
        refuse_pointer(file.read(64), path.name)
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise CorruptModel(
                f"{path.name}: {size:,} bytes cannot hold a header of {length:,}; "
                "the file may be cut short"
            )
        if length > MAX_HEADER:
            raise CorruptModel(
                f"{path.name}: a header of {length:,} bytes; quire reads up to {MAX_HEADER:,}"
            )
        header = parse_object(file.read(length), path.name)
    header.pop("__metadata__", None)
    start = 8 + length
    tensors = {key: _entry(path, key, entry, start, size) for key, entry in header.items()}
    check_no_overlap([tensor for tensor in tensors.values() if tensor.num_bytes])
    # Tensors are inside the file and do not overlap; with this check there are no gaps either.
    stored = sum(tensor.num_bytes for tensor in tensors.values())
    if start + stored != size:
        raise CorruptModel(
            f"{path.name}: its tensors take {stored:,} bytes, the file has {size - start:,} "
            "for them"
        )
    return tensors


def _entry(path: Path, key: str, entry: Any, start: int, size: int) -> StoredTensor:
    where = f"{path.name}: tensor {key[:200]!r}"
    if not isinstance(entry, dict) or not entry.keys() >= {"dtype", "shape", "data_offsets"}:
        raise CorruptModel(f"{where} has no dtype, shape and data_offsets")
    shape, offsets = _naturals(entry["shape"]), _naturals(entry["data_offsets"])
    if shape is None or len(shape) > 16:
        raise CorruptModel(f"{where} has the shape {str(entry['shape'])[:100]}")
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CorruptModel(f"{where} has the data_offsets {str(entry['data_offsets'])[:100]}")
    dtype = entry["dtype"]
    storage = SAFETENSORS_DTYPES.get(dtype) if isinstance(dtype, str) else None
    if storage is None:
        raise UnsupportedModel(f"{where} has the unknown dtype {str(dtype)[:40]!r}")
    claimed = offsets[1] - offsets[0]
    taken = num_bytes_of(shape, storage, row=math.prod(shape), what=where)
    if claimed != taken:
        raise CorruptModel(
            f"{where} {shape} in {storage.name} takes {taken:,} bytes, "
            f"its data_offsets give it {claimed:,}"
        )
    if start + offsets[1] > size:
        raise CorruptModel(
            f"{where} ends at byte {start + offsets[1]:,}, the file at {size:,}; "
            "it may be cut short"
        )
    return StoredTensor(key, shape, storage, path, start + offsets[0], claimed)


def _naturals(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    fine = all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 1 << 63 for v in value)
    return tuple(value) if fine else None
