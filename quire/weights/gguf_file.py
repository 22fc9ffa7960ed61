"""GGUF files: header, metadata, and where each tensor is. No torch, and no trust in the file.

All counts, lengths and offsets are Python ints, checked against the size of the file before memory
is allocated for them. Layout: magic, version, number of tensors, number of metadata entries; the
entries (key, type, value); the tensor table (name, dimensions, type, offset); padding to
`general.alignment`; the tensors' bytes. A large model may be split into parts, each a file of this
layout with some of the tensors; the first has the metadata.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quire.errors import CorruptModel, ModelNotFound, UnsupportedModel
from quire.weights.checkpoint import checked_file
from quire.weights.formats import GGUF_TYPES, READABLE, StoredTensor, check_no_overlap, num_bytes_of
from quire.weights.gguf_split import part_names
from quire.weights.json_file import refuse_pointer

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMENSIONS = 4
MAX_NAME = 65_535
# Everything before the tensors' bytes; the largest vocabularies take some 20 MB.
MAX_HEADER, MAX_ENTRIES, MAX_TENSORS, MAX_STRINGS = 1 << 27, 1 << 16, 1 << 20, 1 << 22

_STRING, _ARRAY = 8, 9
_SCALARS = dict(zip([0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12], "BbHhIif?Qqd", strict=True))
_LENGTH = struct.Struct("<Q")


class GgufFile:
    """A GGUF model, mapped into memory, from its file or any of its parts. `metadata` and `tensors`
    are complete and checked; `path` is the file with the metadata."""

    def __init__(self, path: str | Path) -> None:
        parts = _parts(Path(path))
        self.path = parts[0].path
        self.metadata: Mapping[str, Any] = parts[0].metadata
        self._bytes = {part.path: part.data for part in parts}
        self.tensors: Mapping[str, StoredTensor] = self._with_scales(_merged(parts))

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The stored bytes of a tensor, read only."""
        return self._raw(self.tensors[name])

    def _raw(self, tensor: StoredTensor) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self._bytes[tensor.path], np.uint8, tensor.num_bytes, tensor.offset)

    def _with_scales(self, found: dict[str, StoredTensor]) -> dict[str, StoredTensor]:
        """Attach the scales of NVFP4 to their weights, one for all or one for each expert. Scales
        of activations are dropped: they are not needed."""
        made = dict(found)
        for name, beside in found.items():
            module, _, end = name.rpartition(".")
            weight = found.get(f"{module}.weight")
            if end != "scale" or weight is None or beside.format.name != "F32":
                continue
            if math.prod(beside.shape) in (1, *weight.shape[:-2]):
                numbers = tuple(self._raw(beside).view("<f4").tolist())
                if not all(map(math.isfinite, numbers)):
                    raise CorruptModel(f"{self.path.name}: {name!r} holds what is no number")
                made[weight.name] = replace(weight, scales=numbers)
                del made[name]
                made.pop(f"{module}.input_scale", None)
        return made


@dataclass(frozen=True, slots=True)
class _Part:
    path: Path
    data: mmap.mmap
    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]

    def number(self, key: str) -> int:
        """A whole number about the split, 0 if the file does not have it."""
        value = self.metadata.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise CorruptModel(f"{self.path.name}: {key} is {str(value)[:40]}, not a whole number")
        return value


def _read_part(path: Path) -> _Part:
    data = _mapped(path)
    cursor = _Cursor(data, path.name)
    num_tensors, num_entries = _read_header(cursor)
    metadata = _read_metadata(cursor, num_entries)
    tensors = _read_tensors(cursor, num_tensors, _alignment(metadata, cursor), path)
    return _Part(path, data, metadata, tensors)


def _parts(path: Path) -> list[_Part]:
    """All parts of the model to which a file belongs; the one with the metadata first."""
    given = _read_part(path)
    count = given.number("split.count")
    if count <= 1:
        return [given]
    names = part_names(path.name)
    if len(names) != count:
        raise UnsupportedModel(
            f"{path.name}: one of {count} parts of a split GGUF, whose names end in "
            f"-00001-of-{count:05}.gguf and so on. Give the parts these names, or merge them "
            "(llama-gguf-split --merge)."
        )
    missing = [name for name in names if not (path.parent / name).exists()]
    if missing:
        raise ModelNotFound(
            f"{path}: {len(missing)} of its {count} parts are not beside it: "
            f"{', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}"
        )
    parts = [
        given if name == path.name else _read_part(checked_file(path.parent, name))
        for name in names
    ]
    for number, part in enumerate(parts):
        found = part.number("split.no"), part.number("split.count")
        if found != (number, count):
            raise CorruptModel(
                f"{part.path.name}: says it is part {found[0] + 1} of {found[1]}; by its name it "
                f"is part {number + 1} of {count}"
            )
    return parts


def _merged(parts: list[_Part]) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for part in parts:
        for name in part.tensors.keys() & tensors.keys():
            raise CorruptModel(
                f"tensor {name!r} is in {tensors[name].path.name} and in {part.path.name}"
            )
        tensors |= part.tensors
    expected = parts[0].number("split.tensors.count")
    if len(parts) > 1 and expected not in (0, len(tensors)):
        raise CorruptModel(
            f"{parts[0].path.name}: its parts should hold {expected:,} tensors, they hold "
            f"{len(tensors):,}"
        )
    return tensors


class _Cursor:
    """A position in the file that only moves forward, and never past the end."""

    def __init__(self, data: mmap.mmap, name: str) -> None:
        self.data, self.name, self.size, self.at = data, name, len(data), 0

    def corrupt(self, what: str) -> CorruptModel:
        return CorruptModel(f"{self.name}: {what} (byte {self.at:,} of {self.size:,})")

    def need(self, count: int, what: str) -> None:
        if count > self.size - self.at:
            raise self.corrupt(f"{what} needs {count:,} bytes, {self.size - self.at:,} are left")
        if count > MAX_HEADER - self.at:
            raise self.corrupt(
                f"{what} needs {count:,} bytes; metadata and names of tensors have at most "
                f"{MAX_HEADER:,} together"
            )

    def number(self, code: str, what: str) -> Any:
        form = struct.Struct("<" + code)
        self.need(form.size, what)
        (value,) = form.unpack_from(self.data, self.at)
        self.at += form.size
        return value

    def string(self, what: str) -> str:
        length = self.number("Q", f"the length of {what}")
        self.need(length, what)
        raw = self.data[self.at : self.at + length]
        self.at += length
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.corrupt(f"{what} is not UTF-8: {error.reason}") from None

    def strings(self, count: int, what: str) -> list[str]:
        """Many strings. The loop is bare because a vocabulary has 300,000 of them."""
        if count > MAX_STRINGS:
            raise self.corrupt(f"{what} has {count:,} strings; quire reads up to {MAX_STRINGS:,}")
        self.need(count * _LENGTH.size, what)
        data, size, at, unpack = self.data, self.size, self.at, _LENGTH.unpack_from
        found = []
        try:
            for _ in range(count):
                (length,) = unpack(data, at)
                at += 8
                if length > min(size, MAX_HEADER) - at:
                    raise self.corrupt(f"{what} holds a string of {length:,} bytes")
                found.append(data[at : at + length].decode())
                at += length
        except struct.error:
            raise self.corrupt(f"{what} ends before its {count:,} strings do") from None
        except UnicodeDecodeError as error:
            raise self.corrupt(f"{what} holds a string that is not UTF-8: {error.reason}") from None
        self.at = at
        return found


def _mapped(path: Path) -> mmap.mmap:
    if not path.is_file():
        raise ModelNotFound(f"{path} is not a file; give the path of a .gguf file")
    if not os.access(path, os.R_OK):
        raise ModelNotFound(f"{path}: no permission to read it")
    with path.open("rb") as file:
        try:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # an empty file cannot be mapped
            raise CorruptModel(f"{path.name}: the file is empty; fetch it again") from None


def _read_header(cursor: _Cursor) -> tuple[int, int]:
    refuse_pointer(cursor.data[:64], cursor.name)
    magic = cursor.data[:4]
    if magic != MAGIC:
        raise CorruptModel(
            f"{cursor.name}: not a GGUF file: it begins with {magic!r}, not {MAGIC!r}"
        )
    cursor.at = 4
    version = cursor.number("I", "the version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        kind = "big-endian " if swapped in VERSIONS else ""
        raise UnsupportedModel(
            f"{cursor.name}: {kind}GGUF version {min(version, swapped)}; quire reads little-endian "
            "versions 2 and 3. Convert the model again with a current converter."
        )
    num_tensors = cursor.number("Q", "the number of tensors")
    num_entries = cursor.number("Q", "the number of metadata entries")
    for count, most, what in (
        (num_tensors, MAX_TENSORS, "tensors"),
        (num_entries, MAX_ENTRIES, "metadata entries"),
    ):
        if count > most:
            raise cursor.corrupt(f"{count:,} {what}; quire reads up to {most:,}")
    # The shortest entry has a key length, a type and one byte; the shortest tensor 8+4+8+4+8.
    cursor.need(num_entries * 13, f"metadata of {num_entries:,} entries")
    cursor.need(num_tensors * 32, f"a table of {num_tensors:,} tensors")
    return num_tensors, num_entries


def _read_metadata(cursor: _Cursor, num_entries: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(num_entries):
        key = cursor.string("a metadata key")
        if not 0 < len(key) <= MAX_NAME:
            raise cursor.corrupt(f"a metadata key has {len(key):,} characters")
        if key in metadata:
            raise cursor.corrupt(f"metadata key {key!r} appears twice")
        metadata[key] = _read_value(cursor, cursor.number("I", f"the type of {key!r}"), key)
    return metadata


def _read_value(cursor: _Cursor, kind: int, key: str) -> Any:
    if kind == _STRING:
        return cursor.string(f"the value of {key!r}")
    if kind == _ARRAY:
        return _read_array(cursor, key)
    if kind not in _SCALARS:
        raise cursor.corrupt(f"metadata key {key!r} has the unknown type {kind}")
    return cursor.number(_SCALARS[kind], f"the value of {key!r}")


def _read_array(cursor: _Cursor, key: str) -> list[str] | npt.NDArray[Any]:
    kind = cursor.number("I", f"the element type of {key!r}")
    count = cursor.number("Q", f"the length of {key!r}")
    if kind == _STRING:
        return cursor.strings(count, f"the array {key!r}")
    if kind not in _SCALARS:
        raise cursor.corrupt(f"array {key!r} has elements of type {kind}, which quire cannot read")
    dtype = np.dtype(_SCALARS[kind]).newbyteorder("<")
    cursor.need(count * dtype.itemsize, f"the array {key!r} of {count:,} elements")
    values = np.frombuffer(cursor.data, dtype, count, cursor.at).copy()
    cursor.at += count * dtype.itemsize
    values.setflags(write=False)
    return values


def _alignment(metadata: Mapping[str, Any], cursor: _Cursor) -> int:
    alignment = metadata.get("general.alignment", 32)
    if isinstance(alignment, bool) or not isinstance(alignment, int):
        raise cursor.corrupt(f"general.alignment is {alignment!r}, not a whole number")
    if not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
        raise cursor.corrupt(f"general.alignment is {alignment}, not a power of two up to 2^20")
    return alignment


def _read_tensors(
    cursor: _Cursor, num_tensors: int, alignment: int, path: Path
) -> dict[str, StoredTensor]:
    entries = [_read_tensor_entry(cursor) for _ in range(num_tensors)]
    start = -(-cursor.at // alignment) * alignment
    tensors: dict[str, StoredTensor] = {}
    for name, shape, kind, offset in entries:
        if name in tensors:
            raise cursor.corrupt(f"tensor {name!r} appears twice")
        tensors[name] = _located(cursor, path, (name, shape, kind), start, offset, alignment)
    check_no_overlap(list(tensors.values()))
    return tensors


def _read_tensor_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string("a tensor name")
    rank = cursor.number("I", f"the dimensions of {name!r}")
    if not 1 <= rank <= MAX_DIMENSIONS:
        raise cursor.corrupt(f"tensor {name!r} has {rank} dimensions, not 1 to {MAX_DIMENSIONS}")
    # The file has the fastest dimension first, shapes here have it last.
    shape = tuple(cursor.number("Q", f"the shape of {name!r}") for _ in range(rank))[::-1]
    if min(shape) < 1:
        raise cursor.corrupt(f"tensor {name!r} has the shape {shape}")
    kind = cursor.number("I", f"the type of {name!r}")
    return name, shape, kind, cursor.number("Q", f"the offset of {name!r}")


def _located(
    cursor: _Cursor,
    path: Path,
    entry: tuple[str, tuple[int, ...], int],
    start: int,
    offset: int,
    alignment: int,
) -> StoredTensor:
    name, shape, kind = entry
    storage = READABLE.get(GGUF_TYPES.get(kind, ""))
    if storage is None:
        raise UnsupportedModel(
            f"{cursor.name}: tensor {name!r} is stored as {GGUF_TYPES.get(kind, f'type {kind}')}; "
            f"quire reads {', '.join(READABLE)}. Take another quantisation of this model."
        )
    if offset % alignment:
        raise cursor.corrupt(f"tensor {name!r} is at offset {offset}, not aligned to {alignment}")
    what = f"{cursor.name}: tensor {name!r}"
    num_bytes = num_bytes_of(shape, storage, row=shape[-1], what=what)
    if start + offset + num_bytes > cursor.size:
        raise cursor.corrupt(
            f"tensor {name!r} {shape} in {storage.name} takes bytes {start + offset:,} to "
            f"{start + offset + num_bytes:,}, past the end of the file; it may be cut short"
        )
    return StoredTensor(name, shape, storage, path, start + offset, num_bytes)
